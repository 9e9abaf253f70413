//! Is a process that compresses pages for its agent, with CPU that nobody else wants.
//!
//! The kernel gives such CPU to processes ([`skein_host::idle_scheduling`]), and the agent must not be one of them. The
//! agent starts the process when there is something to compress, and ends it when there has been nothing for a while.
//! The process ends by itself when the agent is gone.
//!
//! ```text
//!  agent                              process
//!  packer ─┬─ socket ───────────────── thread      a request: effort, bytes      an answer: packing, bytes
//!          └─ memory ─────────────────┘            the pages                     the result
//!  packer ─── …                        thread
//!  link ────────────────────────────── main        first, what it lacks; then socket and memory for each new thread
//! ```
//!
//! The memory is a file that neither has mapped. With the pages themselves shared, or read by the process out of the
//! agent (process_vm_readv(2)), the process would hold locks of the agent's memory that others wait for, and it may get
//! no CPU for a while.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use skein_dataplane::source::{Compress, PackResult};
use skein_host::idle_scheduling::{settle_down, starter};
use skein_host::thread_time;
use skein_pages::BATCH_BYTES_MAX;
use skein_pages::packing::{Compressed, Effort, Packing, PageCompressor};
use tracing::{info, warn};

use crate::pass_descriptor::{receive, send};

/// Bounds the start of a process, and an answer: a process may get next to no CPU. The pages go as they are meanwhile.
const ANSWER_TIME: Duration = if cfg!(test) { BUSY_TIME } else { Duration::from_secs(10) };
/// The same in tests: a process that only gets CPU that nobody else wants gets next to none beside other tests.
const BUSY_TIME: Duration = Duration::from_secs(240);
/// Holds the pause between two starts.
const RESTART_PAUSE: Duration = Duration::from_secs(5);
/// Says how often a waiting thread checks whether it is to end.
const END_CHECK_PERIOD: Duration = Duration::from_millis(50);
/// Says where results begin in the memory; before them are pages.
const RESULT_OFFSET: u64 = BATCH_BYTES_MAX as u64;

/// The request to compress the first so many bytes in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackRequest {
    effort: Effort,
    len: usize,
}

const PACK_REQUEST_BYTES: usize = 5;

impl PackRequest {
    fn bytes(self) -> [u8; PACK_REQUEST_BYTES] {
        let mut bytes = [self.effort.step(); PACK_REQUEST_BYTES];
        bytes[1..].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes
    }

    fn of(bytes: [u8; PACK_REQUEST_BYTES]) -> Option<PackRequest> {
        let [effort, len @ ..] = bytes;
        let (effort, len) = (Effort::nth(effort), u32::from_le_bytes(len) as usize);
        ((1..=BATCH_BYTES_MAX).contains(&len)).then_some(PackRequest { effort, len })
    }
}

/// Holds the length of an answer: packing, length, microseconds.
const ANSWER_BYTES: usize = 9;

fn answer((done, cpu): PackResult) -> [u8; ANSWER_BYTES] {
    let (packing, len) = done.map_or((Packing::None, 0), |done| (done.packing, done.len as u32));
    let mut bytes = [packing as u8; ANSWER_BYTES];
    bytes[1..5].copy_from_slice(&len.to_le_bytes());
    bytes[5..].copy_from_slice(&u32::try_from(cpu.as_micros()).unwrap_or(u32::MAX).to_le_bytes());
    bytes
}

/// Reads an answer.
///
/// # Errors
/// The answer makes no sense after this request.
fn answered(bytes: [u8; ANSWER_BYTES], order: PackRequest) -> io::Result<PackResult> {
    let [packing, numbers @ ..] = bytes;
    let [len, cpu] = [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|nth| numbers[at + nth])));
    let (len, cpu) = (len as usize, Duration::from_micros(cpu.into()));
    match Packing::numbered(packing) {
        Some(Packing::None) if len == 0 => Ok((None, cpu)),
        Some(packing @ (Packing::Lz4 | Packing::Zstd)) if (1..order.len).contains(&len) => {
            Ok((Some(Compressed { packing, len }), cpu))
        }
        _ => Err(io::Error::other("the process that compresses pages says something that makes no sense")),
    }
}

/// Compresses pages until the agent ends: all that the packer process does. Its standard input is connected to the
/// agent.
///
/// # Errors
/// The standard input is no such connection.
pub fn pack_pages() -> io::Result<()> {
    // This holds in the middle of its work, too. The end of the thread that started the process, one of the agent's
    // packers, counts.
    set_pdeathsig(Signal::SIGKILL)?;
    // The path that started the process tells nothing.
    set_name(c"skein-packer")?;
    let mut link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let lacks = settle_down().err().unwrap_or_default();
    link.write_all(format!("{lacks}\n").as_bytes())?;
    loop {
        let fds = receive(&link).and_then(|socket| Ok((socket, receive(&link)?)));
        match fds {
            Ok((Some(socket), Some(memory))) => {
                let (socket, memory) = (UnixStream::from(socket), File::from(memory));
                // The agent sees the thread's end.
                thread::Builder::new().name("packer".into()).spawn(move || work(socket, memory))?;
            }
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => return Ok(()),
        }
    }
}

fn work(mut socket: UnixStream, memory: File) -> io::Result<()> {
    let (mut pages, mut out) = (vec![0; BATCH_BYTES_MAX], vec![0; PageCompressor::OUT_BYTES]);
    let mut packer = PageCompressor::new()?;
    loop {
        let mut order = [0; PACK_REQUEST_BYTES];
        socket.read_exact(&mut order)?;
        let order = PackRequest::of(order).ok_or(io::ErrorKind::InvalidData)?;
        let pages = &mut pages[..order.len];
        memory.read_exact_at(pages, 0)?;
        let begin = thread_time();
        let done = packer.pack(pages, order.effort, &mut out);
        if let Some(done) = done {
            memory.write_all_at(&out[..done.len], RESULT_OFFSET)?;
        }
        socket.write_all(&answer((done, thread_time().saturating_sub(begin))))?;
    }
}

/// Starts the process when a packer needs it.
pub(crate) struct PackerProcessStarter {
    /// A program that calls [`pack_pages`], and its arguments.
    words: Vec<OsString>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    process: Weak<PackerProcess>,
    started: Option<Instant>,
    /// The last logged problem, so that it is not logged again.
    said: String,
}

impl PackerProcessStarter {
    pub(crate) fn new(words: Vec<OsString>) -> PackerProcessStarter {
        PackerProcessStarter { words, state: Mutex::default() }
    }

    /// Returns a thread of the process; `None`: there is none now, and the log says why.
    pub(crate) fn hire(&self, is_over: &dyn Fn() -> bool) -> Option<Box<dyn Compress>> {
        let mut state = self.state.lock();
        if let Some(Ok(hand)) = state.process.upgrade().filter(|process| process.is_up()).map(PackerConnection::new) {
            return Some(Box::new(hand));
        }
        if is_over() || state.started.is_some_and(|at| at.elapsed() < RESTART_PAUSE) {
            return None;
        }
        state.started = Some(Instant::now());
        let hired = self.start(is_over).and_then(|(process, lacks)| {
            let process = Arc::new(process);
            state.process = Arc::downgrade(&process);
            Ok((PackerConnection::new(process)?, lacks))
        });
        let said = match &hired {
            Ok((_, lacks)) if lacks.is_empty() => String::new(),
            Ok((_, lacks)) => format!("guests in other control groups may lose some CPU to compression: {lacks}"),
            Err(error) => format!("pages are not compressed, as no process can be had for it: {error}"),
        };
        if said != state.said && !said.is_empty() {
            info!("{said}");
        }
        state.said = said;
        Some(Box::new(hired.ok()?.0))
    }

    fn start(&self, is_over: &dyn Fn() -> bool) -> io::Result<(PackerProcess, String)> {
        if let Some(starter) = starter().filter(|_| !self.words.is_empty()) {
            let words = starter.into_iter().map(OsString::from).chain(self.words.iter().cloned()).collect::<Vec<_>>();
            match PackerProcess::start(&words, is_over) {
                Ok(started) => return Ok(started),
                Err(error) => info!("systemd does not start the process that compresses pages: {error}"),
            }
        }
        PackerProcess::start(&self.words, is_over)
    }
}

/// The process, at its agent's end. The process ends when this is dropped.
struct PackerProcess {
    link: UnixStream,
    child: Mutex<Option<Child>>,
}

impl PackerProcess {
    /// Starts the process, and returns what it says that it lacks.
    fn start(words: &[OsString], is_over: &dyn Fn() -> bool) -> io::Result<(PackerProcess, String)> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let (link, other) = UnixStream::pair()?;
        link.set_read_timeout(Some(END_CHECK_PERIOD))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(OwnedFd::from(other)).stdout(Stdio::null());
        // A Ctrl-C in the agent's terminal is not meant for the process.
        let child = command.process_group(0).spawn()?;
        // From here on the process alone has the other end.
        drop(command);
        let process = PackerProcess { link, child: Mutex::new(Some(child)) };
        let mut lacks = [0; 1024];
        let len = read_message(&process.link, &mut lacks, is_over)?;
        Ok((process, String::from_utf8_lossy(&lacks[..len]).trim().to_owned()))
    }

    fn is_up(&self) -> bool {
        self.child.lock().is_some()
    }

    fn end(&self) {
        let Some(mut child) = self.child.lock().take() else { return };
        let _ = child.kill();
        // The process may have to wait for the CPU to end with.
        let _ = thread::Builder::new().name("reaper".into()).spawn(move || child.wait());
    }
}

impl Drop for PackerProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads what comes in one piece.
///
/// # Errors
/// Nothing comes.
fn read_message(mut socket: &UnixStream, bytes: &mut [u8], is_over: &dyn Fn() -> bool) -> io::Result<usize> {
    let end = Instant::now() + ANSWER_TIME;
    loop {
        match socket.read(bytes) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended")),
            Ok(len) => return Ok(len),
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Err(error);
            }
            Err(_) if is_over() || Instant::now() >= end => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => {}
        }
    }
}

/// A thread of the process, at its agent's end.
struct PackerConnection {
    socket: UnixStream,
    memory: File,
    process: Arc<PackerProcess>,
}

impl PackerConnection {
    fn new(process: Arc<PackerProcess>) -> io::Result<PackerConnection> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(END_CHECK_PERIOD))?;
        let memory = File::from(memfd_create(c"skein-pages", MFdFlags::MFD_CLOEXEC)?);
        send(&process.link, other.as_fd())?;
        send(&process.link, memory.as_fd())?;
        Ok(PackerConnection { socket, memory, process })
    }

    fn ask(
        &mut self,
        pages: &[Bytes],
        effort: Effort,
        out: &mut [u8],
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<PackResult> {
        let mut at = 0;
        for part in pages {
            self.memory.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        let order = PackRequest { effort, len: at as usize };
        self.socket.write_all(&order.bytes())?;
        let mut bytes = [0; ANSWER_BYTES];
        if read_message(&self.socket, &mut bytes, is_over)? != bytes.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let done = answered(bytes, order)?;
        if let (Some(done), _) = done {
            let out = out.get_mut(..done.len).ok_or(io::ErrorKind::InvalidData)?;
            self.memory.read_exact_at(out, RESULT_OFFSET)?;
        }
        Ok(done)
    }
}

impl Compress for PackerConnection {
    fn compress(
        &mut self,
        pages: &[Bytes],
        effort: Effort,
        out: &mut [u8],
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<PackResult> {
        let done = self.ask(pages, effort, out, is_over);
        if let Err(error) = &done
            && !is_over()
            && self.process.is_up()
        {
            warn!("the process that compresses pages is started again: {error}");
            self.process.end();
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use proptest::prelude::*;
    use skein_pages::packing::PageDecompressor;
    use skein_pages::{BATCH_PAGES_MAX, PAGE_BYTES};

    use super::*;

    /// Names the variable that says which of the processes below a test program is to be.
    const ROLE: &str = "SKEIN_TEST_ROLE";
    const NEVER: &dyn Fn() -> bool = &|| false;

    /// Returns the command of this very test program, as one of those processes.
    fn words(role: &str) -> Vec<OsString> {
        let program = format!("/proc/{}/exe", std::process::id());
        let role = format!("{ROLE}={role}");
        let (_, module) = module_path!().split_once("::").unwrap();
        ["env", &role, &program, "--exact", &format!("{module}::a_role"), "--nocapture"].map(Into::into).into()
    }

    /// Is no test, but what other processes are.
    #[test]
    fn a_role() {
        match std::env::var(ROLE).as_deref() {
            Ok("packer") => pack_pages().unwrap(),
            Ok("mute") => thread::sleep(Duration::from_secs(60)),
            Ok("agent") => {
                let crew = PackerProcessStarter::new(words("packer"));
                let _hand = hired(&crew);
                println!("\npid={}", pid(&crew));
                thread::sleep(Duration::from_secs(60));
            }
            _ => {}
        }
    }

    fn pid(crew: &PackerProcessStarter) -> Pid {
        let process = crew.state.lock().process.upgrade().unwrap();
        let child = process.child.lock();
        Pid::from_raw(child.as_ref().unwrap().id() as i32)
    }

    /// Waits long, for processes that get next to no CPU if other tests run, too.
    fn until(mut is_so: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + BUSY_TIME;
        while !is_so() && Instant::now() < end {
            thread::sleep(END_CHECK_PERIOD);
        }
        is_so()
    }

    /// Returns the state of a process; `None`: the process has ended.
    fn state(pid: Pid) -> Option<char> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("State:\t"))?.chars().next().filter(|state| *state != 'Z')
    }

    fn is_gone(pid: Pid) -> bool {
        until(|| state(pid).is_none())
    }

    fn hired(crew: &PackerProcessStarter) -> Box<dyn Compress> {
        let mut hand = None;
        until(|| {
            hand = hand.take().or_else(|| crew.hire(NEVER));
            hand.is_some()
        });
        hand.unwrap()
    }

    fn stop(pid: Pid) {
        kill(pid, Signal::SIGSTOP).unwrap();
        assert!(until(|| state(pid) == Some('T')));
    }

    fn page(seed: u8) -> Bytes {
        (0..PAGE_BYTES).map(|at| (at / 40) as u8 ^ seed).collect::<Vec<u8>>().into()
    }

    fn packs(hand: &mut dyn Compress) -> io::Result<()> {
        let mut out = vec![0; PageCompressor::OUT_BYTES];
        for (count, effort) in [(1, Effort::LEAST), (BATCH_PAGES_MAX, Effort::MOST), (7, Effort::nth(2))] {
            let pages: Vec<Bytes> = (0..count).map(|nth| page(nth as u8)).collect();
            let done = hand.compress(&pages, effort, &mut out, NEVER)?.0.expect("it is worth it");
            let mut unpacker = PageDecompressor::new()?;
            let back = unpacker.unpack(done.packing, count * PAGE_BYTES, &out[..done.len]).expect("it unpacks");
            assert!(back == pages.concat());
        }
        Ok(())
    }

    #[test]
    fn pages_are_packed_by_another_process_which_ends_when_nobody_needs_it() {
        let crew = PackerProcessStarter::new(words("packer"));
        let (mut one, mut other) = (hired(&crew), hired(&crew));
        packs(&mut *one).unwrap();
        packs(&mut *other).unwrap();
        let pid = pid(&crew);
        // proc_pid_stat(5): the name, and field 41, which is SCHED_IDLE.
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let threads = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap());
        let idle = threads.filter(|stat| stat.contains("(packer)") && stat.split(' ').nth(40) == Some("5"));
        assert_eq!(idle.count(), 2);
        // Random bytes cannot be compressed.
        let mut random = vec![0; PAGE_BYTES];
        File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
        let mut out = vec![0; PageCompressor::OUT_BYTES];
        assert_eq!(one.compress(&[random.into()], Effort::LEAST, &mut out, NEVER).unwrap().0, None);
        drop(one);
        packs(&mut *other).unwrap();
        drop(other);
        assert!(is_gone(pid));
    }

    #[test]
    fn a_process_that_dies_in_the_middle_is_replaced_after_a_pause() {
        let crew = PackerProcessStarter::new(words("packer"));
        let mut hand = hired(&crew);
        packs(&mut *hand).unwrap();
        let pid = pid(&crew);
        let begun = crew.state.lock().started.unwrap();
        // The process has the pages and says nothing.
        stop(pid);
        let asked = thread::spawn(move || packs(&mut *hand));
        thread::sleep(4 * END_CHECK_PERIOD);
        assert!(!asked.is_finished());
        kill(pid, Signal::SIGKILL).unwrap();
        asked.join().unwrap().unwrap_err();
        assert!(is_gone(pid));
        let again = crew.hire(NEVER);
        assert!(again.is_none() || begun.elapsed() > RESTART_PAUSE, "not at once");
        drop(again);
        packs(&mut *hired(&crew)).unwrap();
    }

    #[test]
    fn who_waits_is_let_go() {
        let crew = PackerProcessStarter::new(words("packer"));
        let mut hand = hired(&crew);
        stop(pid(&crew));
        let begin = Instant::now();
        let mut out = vec![0; PageCompressor::OUT_BYTES];
        hand.compress(&[page(0)], Effort::LEAST, &mut out, &|| true).unwrap_err();
        // The same holds for a process that says nothing at all, and for what is no such program.
        for words in [words("mute"), vec!["true".into()], vec!["/nonexistent".into()], Vec::new()] {
            assert!(PackerProcessStarter::new(words).hire(&|| begin.elapsed() > END_CHECK_PERIOD).is_none());
        }
        assert!(begin.elapsed() < ANSWER_TIME / 2);
    }

    #[test]
    fn no_process_outlives_its_agent() {
        let agent = words("agent");
        let mut agent = Command::new(&agent[0]).args(&agent[1..]).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(agent.stdout.take().unwrap()).lines().map_while(Result::ok);
        let pid = said.into_iter().find_map(|line| line.strip_prefix("pid=")?.parse().ok()).unwrap();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        agent.kill().unwrap();
        assert!(is_gone(Pid::from_raw(pid)));
        agent.wait().unwrap();
    }

    proptest! {
        #[test]
        fn what_is_asked_and_answered_is_understood(
            of in 2usize..=BATCH_BYTES_MAX,
            step in 0u8..=5,
            len: u32,
            cpu: u32,
            zstd: bool,
        ) {
            let order = PackRequest { effort: Effort::nth(step), len: of };
            prop_assert_eq!(PackRequest::of(order.bytes()), Some(order));
            let len = 1 + len as usize % (of - 1);
            let done = Some(Compressed { packing: if zstd { Packing::Zstd } else { Packing::Lz4 }, len });
            for done in [(done, Duration::from_micros(cpu.into())), (None, Duration::ZERO)] {
                prop_assert_eq!(answered(answer(done), order).unwrap(), done);
            }
        }

        #[test]
        fn nonsense_is_refused_or_bounded(
            order: [u8; PACK_REQUEST_BYTES],
            bytes: [u8; ANSWER_BYTES],
            len in 1usize..=BATCH_BYTES_MAX,
        ) {
            prop_assert!(PackRequest::of(order).is_none_or(|order| (1..=BATCH_BYTES_MAX).contains(&order.len)));
            let order = PackRequest { effort: Effort::LEAST, len };
            if let Ok((Some(done), _)) = answered(bytes, order) {
                prop_assert!(done.len > 0 && done.len < len && done.packing != Packing::None);
            }
        }
    }
}
