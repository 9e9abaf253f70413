//! Carries the bytes of a console between a socket and a controller: reads and types, comes back after what broke, and
//! goes on after a move. What is asked is in `docs/api.md`, "A guest's console".

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;
use skein_api::cluster::{ConsoleAnswer, ConsoleAsk, VmRunState};
use skein_api::{ConsoleBytes, ConsoleState, ConsoleStep, ConsoleView};
use skein_client::{ControllerClient, ControllerError, random_key};

use crate::commands::text::clean_line;

/// How long the controller and the agent wait for output before they answer that there is none.
const WAIT_MS: u64 = 10_000;
/// How much is typed in one request.
const INPUT_BYTES_MAX: usize = 4096;
/// The time between two tries of what failed, or was not taken.
const AGAIN: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });
/// How long a console may be out of reach before it is given up.
const LOST_TIME: Duration = Duration::from_secs(120);
/// How long a VM whose console closed may take until it runs elsewhere, or again.
const MOVE_TIME: Duration = Duration::from_secs(15);
/// When a console that closed is begun again on the same host, if the VM runs there.
const RESTART_TIME: Duration = Duration::from_secs(2);
/// How long what was typed last has to arrive after somebody has left.
const END_TIME: Duration = Duration::from_secs(3);

/// Asks a controller about one VM.
pub(super) trait Asks: Send + Sync {
    /// Asks the VM's host about its console.
    fn console(&self, asked: &ConsoleAsk) -> Result<ConsoleAnswer, ControllerError>;
    /// Returns where the VM is, and how.
    fn vm(&self) -> Result<(Option<String>, VmRunState), ControllerError>;
}

/// A controller's client, and the VM's name.
impl Asks for (ControllerClient, String) {
    fn console(&self, asked: &ConsoleAsk) -> Result<ConsoleAnswer, ControllerError> {
        self.0.console(&self.1, asked)
    }

    fn vm(&self) -> Result<(Option<String>, VmRunState), ControllerError> {
        self.0.vm(&self.1).map(|vm| (vm.host, vm.state))
    }
}

/// Carries a console's bytes. Two threads do: one waits for output, the other sends what is typed.
pub(super) struct Relay {
    shared: Arc<Shared>,
    sender_end: Receiver<()>,
}

/// What both threads have.
struct Shared {
    controller: Box<dyn Asks>,
    /// Says something to the user.
    note: Box<dyn Fn(&str) + Send + Sync>,
    /// This end of the socket.
    socket: UnixStream,
    session: Mutex<Session>,
    /// Whether something is on its way that was typed.
    is_typing: AtomicBool,
    /// Whether nobody wants the console any more.
    is_over: AtomicBool,
    /// Why the console does not come back.
    why_lost: Mutex<Option<anyhow::Error>>,
}

/// A session of a console.
#[derive(Debug, Default)]
struct Session {
    id: String,
    host: String,
    /// How many bytes of output were read, and of input taken.
    read: u64,
    typed: u64,
    /// Whether something that was typed in an earlier session has not arrived.
    has_lost: bool,
}

impl Relay {
    /// Begins a session; `takes_over`: whoever else has the console loses it. `note` is called with what the user is to
    /// know. Returns the socket to which the console is joined, which does not block.
    ///
    /// # Errors
    /// Somebody else has the console, the VM has none now, or no controller answers.
    pub(super) fn begin(
        controller: Box<dyn Asks>,
        takes_over: bool,
        note: Box<dyn Fn(&str) + Send + Sync>,
    ) -> anyhow::Result<(Relay, UnixStream)> {
        let (socket, console) = UnixStream::pair().context("no socket for the console")?;
        console.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            controller,
            note,
            socket,
            session: Mutex::default(),
            is_typing: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            why_lost: Mutex::new(None),
        });
        if !shared.open(if takes_over { ConsoleStep::TakeOver } else { ConsoleStep::Begin })? {
            bail!("the console closes at once: is the VM being stopped?");
        }
        let (has_ended, sender_end) = sync_channel(1);
        let (reader, sender) = (shared.clone(), shared.clone());
        thread::Builder::new().name("console-reader".into()).spawn(move || reader.follow())?;
        thread::Builder::new().name("console-sender".into()).spawn(move || {
            sender.send_typed();
            let session = sender.session.lock().id.clone();
            // The host lets the console go by itself, only later.
            let _ = sender.controller.console(&ConsoleAsk { session, step: ConsoleStep::End, ..ConsoleAsk::default() });
            let _ = has_ended.send(());
        })?;
        Ok((Relay { shared, sender_end }, console))
    }

    /// Returns the host where the console is.
    pub(super) fn host(&self) -> String {
        self.shared.session.lock().host.clone()
    }

    /// Returns whether something is on its way that was typed.
    pub(super) fn is_typing(&self) -> bool {
        self.shared.is_typing.load(Ordering::Relaxed)
    }

    /// Lets the console go once what was typed has arrived. The socket's other end is dropped before.
    ///
    /// # Errors
    /// The console was lost before, or what was typed has not arrived.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let has_ended = self.sender_end.recv_timeout(END_TIME).is_ok();
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(why) = self.shared.why_lost.lock().take() {
            return Err(why);
        }
        let is_lost = !has_ended || self.shared.session.lock().has_lost;
        ensure!(!is_lost, "not all that was typed has arrived");
        Ok(())
    }
}

impl Shared {
    /// Begins a session in the place of the last one. Returns whether the console is open; it closes otherwise.
    fn open(&self, step: ConsoleStep) -> anyhow::Result<bool> {
        let id = random_key().context("the kernel gives no random name")?;
        let answer = self.controller.console(&ConsoleAsk { session: id.clone(), step, ..ConsoleAsk::default() })?;
        let host = answer.host;
        if answer.view.state == ConsoleState::Held {
            let holder = holder(&answer.view);
            bail!("{holder} has the console, and one has it at a time: --take-over takes it");
        }
        if answer.view.state != ConsoleState::Open {
            return Ok(false);
        }
        let mut session = self.session.lock();
        *session = Session { id, host, read: 0, typed: 0, has_lost: session.has_lost };
        self.take(&mut session, &answer.view);
        Ok(true)
    }

    /// Waits for output, until the console is lost or nobody wants it.
    fn follow(&self) {
        if let Err(why) = self.read_output() {
            *self.why_lost.lock() = Some(why);
        }
        // Ends the console for who is joined to it, and the sender.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn read_output(&self) -> anyhow::Result<()> {
        let mut lost_since = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let asked = {
                let session = self.session.lock();
                let (session, after) = (session.id.clone(), session.read);
                ConsoleAsk { session, after, wait_ms: WAIT_MS, ..ConsoleAsk::default() }
            };
            let answer = match self.controller.console(&asked) {
                Ok(answer) => answer,
                // As of a VM that is off, or on its way.
                Err(error) if is_not_now(&error) => match self.reopen(RESTART_TIME)? {
                    true => continue,
                    false => return Ok(()),
                },
                Err(error) if error.may_pass() => {
                    let since = *lost_since.get_or_insert_with(|| {
                        (self.note)(&format!("{error}; trying again"));
                        Instant::now()
                    });
                    if since.elapsed() >= LOST_TIME {
                        return Err(error.into());
                    }
                    thread::sleep(AGAIN);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if lost_since.take().is_some() {
                (self.note)("there it is again");
            }
            self.take(&mut self.session.lock(), &answer.view);
            match answer.view.state {
                ConsoleState::Open => {}
                ConsoleState::Held => bail!("{} has taken it", holder(&answer.view)),
                ConsoleState::Closed if !self.reopen(RESTART_TIME)? => return Ok(()),
                ConsoleState::Unknown if !self.reopen(Duration::ZERO)? => return Ok(()),
                ConsoleState::Closed | ConsoleState::Unknown => {}
            }
        }
        Ok(())
    }

    /// Begins a session again where the VM runs now; on the same host `after` a time. Returns whether the VM runs.
    fn reopen(&self, after: Duration) -> anyhow::Result<bool> {
        let (since, was_on) = (Instant::now(), self.session.lock().host.clone());
        let mut stopped = 0;
        while since.elapsed() < MOVE_TIME && !self.is_over.load(Ordering::Relaxed) {
            let (host, state) = match self.controller.vm() {
                Ok(vm) => vm,
                Err(error) if error.may_pass() => (None, VmRunState::Lost),
                Err(error) => return Err(error.into()),
            };
            stopped = if state == VmRunState::Stopped { stopped + 1 } else { 0 };
            let is_elsewhere = host.is_some_and(|host| host != was_on);
            let runs = matches!(state, VmRunState::Running | VmRunState::Paused);
            if runs && (is_elsewhere || since.elapsed() >= after) {
                match self.open(ConsoleStep::Begin) {
                    Ok(true) => {
                        let host = self.session.lock().host.clone();
                        if host != was_on {
                            (self.note)(&format!("the VM runs on {} now", clean_line(&host)));
                        }
                        return Ok(true);
                    }
                    Ok(false) => {}
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            // A VM that has just moved may count as stopped where it was for a moment.
            if stopped > 1 {
                break;
            }
            thread::sleep(AGAIN);
        }
        Ok(false)
    }

    /// Takes what is new of an answer: the other thread may have brought the same.
    fn take(&self, session: &mut Session, view: &ConsoleView) {
        let output = &view.output.0[..];
        if view.at > session.read {
            (self.note)(&format!("{} bytes of output are lost", view.at - session.read));
            session.read = view.at;
        }
        let known = usize::try_from(session.read - view.at).unwrap_or(usize::MAX);
        if let Some(new) = output.get(known..).filter(|new| !new.is_empty()) {
            session.read += new.len() as u64;
            // Who reads no more has left.
            let _ = (&self.socket).write_all(new);
        }
    }

    /// Sends what is typed, until the socket is closed.
    fn send_typed(&self) {
        let mut typed = vec![0; INPUT_BYTES_MAX];
        while let Ok(length @ 1..) = (&self.socket).read(&mut typed) {
            let id = self.session.lock().id.clone();
            let sent = self.send(&id, &typed[..length]);
            self.is_typing.store(false, Ordering::Relaxed);
            if sent < length {
                self.session.lock().has_lost = true;
                (self.note)(&format!("{} bytes that were typed did not arrive", length - sent));
            }
        }
    }

    /// Sends bytes in a session, until the guest has all of them. Returns how many it has: in another session what was
    /// typed for this one could do what nobody expects any more.
    fn send(&self, id: &str, typed: &[u8]) -> usize {
        let mut sent = 0;
        let mut is_stuck = false;
        while sent < typed.len() && !self.is_over.load(Ordering::Relaxed) {
            let asked = {
                let session = self.session.lock();
                if session.id != id {
                    break;
                }
                let input = ConsoleBytes(typed[sent..].to_vec());
                let (input_at, after) = (session.typed, session.read);
                ConsoleAsk { session: id.to_owned(), input, input_at, after, ..ConsoleAsk::default() }
            };
            self.is_typing.store(!is_stuck, Ordering::Relaxed);
            let taken = match self.controller.console(&asked) {
                Ok(answer) if answer.view.state == ConsoleState::Open => {
                    self.taken(id, &answer.view, typed.len() - sent)
                }
                // The other thread finds out what is wrong, and says so.
                Ok(_) | Err(_) => 0,
            };
            sent += taken;
            // The guest may read nothing at the moment.
            is_stuck = taken == 0;
            if is_stuck {
                self.is_typing.store(false, Ordering::Relaxed);
                thread::sleep(AGAIN);
            }
        }
        sent
    }

    /// Takes an answer to what was typed, `most` bytes. Returns how many of them the guest has taken.
    fn taken(&self, id: &str, view: &ConsoleView, most: usize) -> usize {
        let mut session = self.session.lock();
        if session.id != id {
            return 0;
        }
        let taken = view.typed.saturating_sub(session.typed).min(most as u64);
        session.typed += taken;
        self.take(&mut session, view);
        taken as usize
    }
}

/// Returns who else has the console.
fn holder(view: &ConsoleView) -> String {
    clean_line(view.holder.as_deref().unwrap_or("somebody else"))
}

/// Returns whether the VM has no console at the moment.
fn is_not_now(error: &ControllerError) -> bool {
    error.status() == Some(409)
}

/// Returns whether the same may succeed soon.
fn is_passing(error: &anyhow::Error) -> bool {
    let passes = |error: &ControllerError| error.may_pass() || is_not_now(error);
    error.downcast_ref::<ControllerError>().is_some_and(passes)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use skein_api::cluster::ProblemDetails;

    use super::*;

    /// Longer than any test takes, also on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A VM with a console that repeats what is typed.
    #[derive(Default)]
    struct FakeVm {
        host: String,
        state: VmRunState,
        session: String,
        /// Who else has the console.
        holder: Option<String>,
        is_closed: bool,
        /// How many bytes of output are not kept any more.
        forgotten: usize,
        output: Vec<u8>,
        typed: Vec<u8>,
        /// How many answers are lost on their way.
        lost_answers: u32,
        steps: Vec<ConsoleStep>,
    }

    impl FakeVm {
        fn on(host: &str) -> Arc<Mutex<FakeVm>> {
            Arc::new(Mutex::new(FakeVm { host: host.into(), state: VmRunState::Running, ..FakeVm::default() }))
        }

        fn answer(&mut self, asked: &ConsoleAsk) -> ConsoleView {
            if asked.step != ConsoleStep::GoOn {
                self.steps.push(asked.step);
            }
            match asked.step {
                ConsoleStep::TakeOver => self.holder = None,
                ConsoleStep::End => self.session.clear(),
                ConsoleStep::Begin | ConsoleStep::GoOn => {}
            }
            if self.holder.is_some() {
                return ConsoleView {
                    state: ConsoleState::Held,
                    holder: self.holder.clone(),
                    ..ConsoleView::default()
                };
            }
            if matches!(asked.step, ConsoleStep::Begin | ConsoleStep::TakeOver) {
                (self.session, self.forgotten, self.is_closed) = (asked.session.clone(), 0, false);
                (self.output, self.typed) = (Vec::new(), Vec::new());
            }
            if self.session != asked.session {
                return ConsoleView::default();
            }
            let known = self.typed.len() - asked.input_at as usize;
            let new = asked.input.0.get(known..).unwrap_or_default();
            self.typed.extend(new);
            self.output.extend(new);
            let state = if self.is_closed { ConsoleState::Closed } else { ConsoleState::Open };
            let at = self.forgotten.max(asked.after as usize);
            let output = ConsoleBytes(self.output[at.min(self.output.len())..].to_vec());
            ConsoleView { state, output, at: at as u64, typed: self.typed.len() as u64, holder: None }
        }
    }

    impl Asks for Arc<Mutex<FakeVm>> {
        fn console(&self, asked: &ConsoleAsk) -> Result<ConsoleAnswer, ControllerError> {
            if asked.wait_ms > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            let mut vm = self.lock();
            let (host, view) = (vm.host.clone(), vm.answer(asked));
            if vm.lost_answers > 0 && !asked.input.is_empty() {
                vm.lost_answers -= 1;
                return Err(refused(503));
            }
            Ok(ConsoleAnswer { host, view })
        }

        fn vm(&self) -> Result<(Option<String>, VmRunState), ControllerError> {
            let vm = self.lock();
            Ok((Some(vm.host.clone()), vm.state))
        }
    }

    fn refused(status: u16) -> ControllerError {
        let (kind, title, detail, cure) = Default::default();
        ControllerError::Refused(Box::new(ProblemDetails { kind, title, status, detail, cure }))
    }

    struct Joined {
        relay: Relay,
        console: UnixStream,
        notes: Arc<Mutex<Vec<String>>>,
    }

    fn begun(vm: &Arc<Mutex<FakeVm>>, takes_over: bool) -> anyhow::Result<Joined> {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let noted = notes.clone();
        let note = move |words: &str| noted.lock().push(words.to_owned());
        let (relay, console) = Relay::begin(Box::new(vm.clone()), takes_over, Box::new(note))?;
        console.set_nonblocking(false)?;
        console.set_read_timeout(Some(PATIENCE))?;
        Ok(Joined { relay, console, notes })
    }

    impl Joined {
        fn read(&mut self, length: usize) -> String {
            let mut bytes = vec![0; length];
            self.console.read_exact(&mut bytes).unwrap();
            String::from_utf8(bytes).unwrap()
        }

        /// Waits until the console closes, and lets go of that.
        fn end(mut self) -> (anyhow::Result<()>, Vec<String>) {
            let closed = self.console.read(&mut [0]);
            assert!(matches!(closed, Ok(0)) || closed.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
            drop(self.console);
            let ended = self.relay.end();
            let notes = self.notes.lock().clone();
            (ended, notes)
        }
    }

    fn until(holds: impl Fn() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_typed_arrives_once_whatever_answers_are_lost() {
        let vm = FakeVm::on("a");
        let mut joined = begun(&vm, false).unwrap();
        assert_eq!(joined.relay.host(), "a");
        vm.lock().lost_answers = 3;
        let typed: String = (0..2000).map(|n| format!("{n}\n")).collect();
        joined.console.write_all(typed.as_bytes()).unwrap();
        assert_eq!(joined.read(typed.len()), typed);
        until(|| !joined.relay.is_typing());
        // What is typed at the last moment arrives, too.
        joined.console.write_all(b"bye").unwrap();
        drop(joined.console);
        joined.relay.end().unwrap();
        let vm = vm.lock();
        assert_eq!(vm.typed, (typed + "bye").into_bytes());
        assert_eq!(vm.steps, [ConsoleStep::Begin, ConsoleStep::End]);
    }

    #[test]
    fn a_console_goes_on_where_the_vm_moves_and_what_was_typed_before_is_not_typed_there() {
        let vm = FakeVm::on("a");
        let mut joined = begun(&vm, false).unwrap();
        joined.console.write_all(b"on a").unwrap();
        assert_eq!(joined.read(4), "on a");
        (vm.lock().is_closed, vm.lock().state) = (true, VmRunState::Handover);
        thread::sleep(Duration::from_millis(5));
        *vm.lock() = FakeVm { host: "b".into(), state: VmRunState::Running, ..FakeVm::default() };
        until(|| joined.relay.host() == "b");
        joined.console.write_all(b"on b").unwrap();
        assert_eq!(joined.read(4), "on b");
        assert_eq!(vm.lock().typed, b"on b");
        assert_eq!(joined.notes.lock()[..], ["the VM runs on b now"]);
        // The agent was started again.
        vm.lock().session.clear();
        until(|| vm.lock().steps.len() == 2);
        vm.lock().forgotten = 7;
        vm.lock().output = b"1234567890".to_vec();
        assert_eq!(joined.read(3), "890");
        assert_eq!(joined.notes.lock()[1..], ["7 bytes of output are lost"]);
    }

    #[test]
    fn a_vm_that_is_stopped_ends_its_console() {
        let vm = FakeVm::on("a");
        let joined = begun(&vm, false).unwrap();
        (vm.lock().is_closed, vm.lock().state) = (true, VmRunState::Stopped);
        let (ended, notes) = joined.end();
        ended.unwrap();
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn somebody_else_has_the_console_or_takes_it() {
        let vm = FakeVm::on("a");
        vm.lock().holder = Some("ann".into());
        let words = begun(&vm, false).err().unwrap().to_string();
        assert_eq!(words, "ann has the console, and one has it at a time: --take-over takes it");
        let joined = begun(&vm, true).unwrap();
        assert_eq!(vm.lock().steps, [ConsoleStep::Begin, ConsoleStep::TakeOver]);
        vm.lock().holder = Some("bob\u{1b}".into());
        let words = joined.end().0.unwrap_err().to_string();
        assert!(words.starts_with("bob") && words.ends_with("has taken it") && !words.contains('\u{1b}'), "{words}");
    }
}
