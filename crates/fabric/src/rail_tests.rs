//! Tests rails over the providers that need no device: TCP, and memory that two processes share. Each rail has its
//! process.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::ProcessEndpoint;
use crate::{
    Access, Begun, Buffer, Completion, FabricError, HostRails, RailProcess, Rails, Region, RemoteMemory,
    SharedEndpoint, Slice, test_process,
};

const PATIENCE: Duration = Duration::from_secs(60);
const SLOT: usize = 1 << 20;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "shm"];

/// Is no test, but what the processes of rails are.
#[test]
fn a_role() {
    test_process::serve_if_asked();
}

/// Returns the command of this very test program, as the process of a rail.
fn words() -> Vec<OsString> {
    test_process::words(module_path!(), "")
}

struct End {
    process: Arc<RailProcess>,
    endpoint: SharedEndpoint,
    buffer: Buffer,
    region: Arc<dyn Region>,
}

impl End {
    fn new(provider: &str, key: u64) -> End {
        End::of(RailProcess::start(&words()).unwrap(), provider, key)
    }

    fn of(process: Arc<RailProcess>, provider: &str, key: u64) -> End {
        let endpoint = ProcessEndpoint::open(&process, &[provider.to_owned()], HERE).unwrap().unwrap();
        let endpoint: SharedEndpoint = Arc::new(endpoint);
        let buffer = Buffer::new(2 * SLOT).unwrap();
        let region = endpoint.register(buffer.memory(), Access::RemoteReadWrite, key).unwrap();
        End { process, endpoint, buffer, region }
    }

    fn slice(&self, range: std::ops::Range<usize>) -> Slice {
        Slice::new(self.region.clone(), range).unwrap()
    }

    fn with<T>(&self, range: std::ops::Range<usize>, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
        let slice = self.slice(range);
        let at = self.buffer.address().wrapping_add(slice.range().start);
        // SAFETY: mapped for as long as the buffer, and the test uses the memory only while no operation does.
        use_it(unsafe { std::slice::from_raw_parts_mut(at, slice.bytes()) })
    }

    fn taken(&self) -> Vec<Completion> {
        let mut taken = Vec::new();
        self.endpoint.poll(&mut taken).unwrap();
        taken
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().try_into().unwrap())
    }
}

fn ends(provider: &str) -> (End, End) {
    let (a, b) = (End::new(provider, 7), End::new(provider, 8));
    a.endpoint.connect(b.endpoint.name()).unwrap();
    b.endpoint.connect(a.endpoint.name()).unwrap();
    (a, b)
}

/// Begins an operation, and takes what both ends report until each has as much as it is to have.
fn complete(
    a: &End,
    b: &End,
    expected: (usize, usize),
    begin: impl Fn() -> Begun,
) -> (Vec<Completion>, Vec<Completion>) {
    let (mut at_a, mut at_b, since) = (Vec::new(), Vec::new(), Instant::now());
    let mut begun = false;
    while !begun || at_a.len() < expected.0 || at_b.len() < expected.1 {
        begun = begun || begin() == Begun::Yes;
        at_a.extend(a.taken());
        at_b.extend(b.taken());
        assert!(since.elapsed() < PATIENCE, "{at_a:?} {at_b:?}");
    }
    (at_a, at_b)
}

fn remote(end: &End, offset: u64) -> RemoteMemory {
    let whole = end.region.remote();
    RemoteMemory { address: whole.address + offset, ..whole }
}

#[test]
fn writes_reads_and_messages_arrive_whole() {
    for provider in PROVIDERS {
        let (a, b) = ends(provider);
        let pattern = |i: usize| (i * 7 + i / 251) as u8;
        a.with(0..SLOT, |bytes| bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i)));
        assert_eq!(b.endpoint.receive(&b.slice(2 * SLOT - 64..2 * SLOT), 70).unwrap(), Begun::Yes);
        let write = || a.endpoint.write(&a.slice(0..SLOT), remote(&b, 64), Some(0xfeed_beef), 1).unwrap();
        let (at_a, at_b) = complete(&a, &b, (1, 1), write);
        assert_eq!(at_a, [Completion::Done { token: 1 }], "{provider}");
        let [Completion::Written { token, immediate: 0xfeed_beef }] = at_b[..] else { panic!("{provider}: {at_b:?}") };
        b.with(64..64 + SLOT, |bytes| assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == pattern(i))));

        let read = || a.endpoint.read(&a.slice(SLOT..SLOT + 5000), remote(&b, 64), 2).unwrap();
        assert_eq!(complete(&a, &b, (1, 0), read).0, [Completion::Done { token: 2 }], "{provider}");
        a.with(SLOT..SLOT + 5000, |bytes| assert!((0..5000).all(|i| bytes[i] == pattern(i))));

        // A provider that used the receive up for the write gets another.
        if token == Some(70) {
            assert_eq!(b.endpoint.receive(&b.slice(2 * SLOT - 64..2 * SLOT), 70).unwrap(), Begun::Yes);
        }
        let send = || a.endpoint.send(&a.slice(1..11), 3).unwrap();
        let (at_a, at_b) = complete(&a, &b, (1, 1), send);
        assert_eq!(at_a, [Completion::Done { token: 3 }], "{provider}");
        assert_eq!(at_b, [Completion::Received { token: 70, bytes: 10 }], "{provider}");
        b.with(2 * SLOT - 64..2 * SLOT - 54, |bytes| assert!((0..10).all(|i| bytes[i] == pattern(i + 1))));
    }
}

/// A peer that guesses a key, or asks for what lies outside a region, gets an error and nothing else.
#[test]
fn nothing_outside_a_region_is_written() {
    // Not `shm`: the end that is written to drops such a write (libfabric 1.17, 2.1), and the writer hears nothing.
    let provider = PROVIDERS[0];
    for wrong in [RemoteMemory { key: 12345, ..remote(&End::new(provider, 9), 0) }, RemoteMemory { address: 1, key: 8 }]
    {
        let (a, b) = ends(provider);
        a.with(0..SLOT, |bytes| bytes.fill(0xa5));
        let wrong = match wrong.key {
            8 => remote(&b, (2 * SLOT - 100) as u64),
            _ => wrong,
        };
        let (at_a, _) = complete(&a, &b, (1, 0), || a.endpoint.write(&a.slice(0..SLOT), wrong, None, 4).unwrap());
        assert!(matches!(at_a[..], [Completion::Failed { .. }]), "{wrong:?}: {at_a:?}");
        b.with(0..2 * SLOT, |bytes| assert!(bytes.iter().all(|byte| *byte == 0)));
    }
}

#[test]
fn memory_of_another_rail_is_refused() {
    let (a, b) = ends(PROVIDERS[0]);
    assert!(Slice::new(a.region.clone(), 0..a.region.bytes() + 1).is_none());
    assert!(matches!(b.endpoint.receive(&a.slice(0..64), 5), Err(FabricError::Misbehaves(_))));
}

/// A library that crashes or hangs costs its process.
#[test]
fn a_process_that_dies_or_hangs_is_an_error_and_leaves_nothing_behind() {
    let (a, b) = ends(PROVIDERS[0]);
    let [killed, hung] = [&a, &b].map(End::pid);
    kill(killed, Signal::SIGKILL).unwrap();
    let since = Instant::now();
    let why = loop {
        match a.endpoint.poll(&mut Vec::new()) {
            Err(why) => break why,
            Ok(()) => assert!(since.elapsed() < PATIENCE),
        }
        a.endpoint.wait(Duration::from_secs(1));
    };
    assert_eq!(why.to_string(), "the process of the rail has ended");
    assert!(a.endpoint.send(&a.slice(0..10), 1).is_err());
    assert!(a.endpoint.register(a.buffer.memory(), Access::Local, 1).is_err());
    // Nobody has to need the rail first.
    await_end(killed);
    kill(hung, Signal::SIGSTOP).unwrap();
    let mut begun = 0;
    while b.endpoint.send(&b.slice(0..10), 1).unwrap() == Begun::Yes {
        begun += 1;
        assert!(begun < 10_000, "a queue has an end");
    }
    drop((a, b));
    await_end(hung);
}

/// Waits until a process is no zombie, either.
fn await_end(pid: Pid) {
    let since = Instant::now();
    while kill(pid, None).is_ok() {
        assert!(since.elapsed() < PATIENCE, "{pid} is there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A peer whose write comes late, or that keeps on writing, changes nothing once the endpoint is closed, however the
/// process is.
#[test]
fn nothing_is_written_once_an_endpoint_is_closed() {
    // No end of `shm` that hangs: it may have been stopped with a lock that lies in the memory which both ends use.
    for (provider, is_hung) in [(PROVIDERS[0], false), (PROVIDERS[0], true), (PROVIDERS[1], false)] {
        let (a, b) = ends(provider);
        let write = || a.endpoint.write(&a.slice(0..SLOT), remote(&b, 0), None, 1).unwrap();
        a.with(0..SLOT, |bytes| bytes.fill(1));
        complete(&a, &b, (1, 0), write);
        if is_hung {
            kill(b.pid(), Signal::SIGSTOP).unwrap();
        }
        a.with(0..SLOT, |bytes| bytes.fill(2));
        for _ in 0..8 {
            let _ = write();
        }
        b.endpoint.close().unwrap();
        let then = b.with(0..SLOT, |bytes| bytes.to_vec());
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(300) {
            let _ = a.endpoint.write(&a.slice(0..SLOT), remote(&b, 0), None, 1);
            let _ = a.endpoint.poll(&mut Vec::new());
        }
        b.with(0..SLOT, |bytes| assert!(*bytes == then[..], "{provider}, hung: {is_hung}"));
        assert!(b.endpoint.register(b.buffer.memory(), Access::Local, 9).is_err());
    }
}

/// Migrations have endpoints of their own in the process of a rail: one that is closed or dropped leaves the others be.
#[test]
fn endpoints_of_one_process_do_not_depend_on_each_other() {
    let provider = PROVIDERS[0];
    let process = RailProcess::start(&words()).unwrap();
    let ends: Vec<End> = (0..3).map(|nth| End::of(process.clone(), provider, 20 + nth)).collect();
    let peer = End::new(provider, 30);
    ends.iter().for_each(|end| end.endpoint.connect(peer.endpoint.name()).unwrap());
    peer.with(0..SLOT, |bytes| bytes.fill(7));
    let mut ends = ends.into_iter();
    ends.next().unwrap().endpoint.close().unwrap();
    drop(ends.next());
    let left = ends.next().unwrap();
    let read = || left.endpoint.read(&left.slice(0..SLOT), remote(&peer, 0), 1).unwrap();
    assert_eq!(complete(&left, &peer, (1, 0), read).0, [Completion::Done { token: 1 }]);
    left.with(0..SLOT, |bytes| assert!(bytes.iter().all(|byte| *byte == 7)));
}

#[test]
fn the_process_of_a_rail_is_kept_and_another_takes_its_place_when_it_dies() {
    let mark = "kept";
    let words = test_process::words(module_path!(), mark);
    let rails = HostRails::of_providers(words, vec![PROVIDERS[0].to_owned()]);
    let open = || rails.endpoint(HERE).unwrap().unwrap();
    let first = open();
    let [process] = test_process::rails(mark)[..] else { panic!("a rail has a process") };
    let second = open();
    drop(first);
    drop(second);
    let third = open();
    assert_eq!(test_process::rails(mark), [process]);
    kill(Pid::from_raw(process), Signal::SIGKILL).unwrap();
    let since = Instant::now();
    while third.poll(&mut Vec::new()).is_ok() {
        assert!(since.elapsed() < PATIENCE);
        third.wait(Duration::from_millis(10));
    }
    let _fourth = open();
    let others: Vec<i32> = test_process::rails(mark).into_iter().filter(|other| *other != process).collect();
    assert_eq!(others.len(), 1);
}

#[test]
fn an_address_without_a_rail_and_a_program_that_is_none_are_told() {
    let rails = |words, providers: &[&str]| {
        let providers = providers.iter().map(|provider| (*provider).to_owned()).collect();
        HostRails::of_providers(words, providers).endpoint(HERE).map(|endpoint| endpoint.is_some())
    };
    assert_eq!(rails(words(), &["no such provider"]), Ok(false));
    assert_eq!(rails(words(), &["no such provider", "tcp;ofi_rxm"]), Ok(true));
    assert_eq!(
        rails(vec!["/bin/false".into()], &PROVIDERS).unwrap_err().to_string(),
        "the process of the rail has ended"
    );
    let missing = rails(vec!["/no/such/program".into()], &PROVIDERS).unwrap_err().to_string();
    assert!(missing.starts_with("the process of the rail cannot be started: "), "{missing}");
    let foreign = HostRails::of_providers(words(), vec!["tcp;ofi_rxm".into()]).endpoint([192, 0, 2, 1].into());
    assert!(foreign.is_err(), "not this host's address");
}

/// A folder for a test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("skein-fabric-{}-{nth}", std::process::id()));
        // A process that was killed may have had the same number.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes a file of what can be loaded and has nothing of libfabric: the library that every program has.
fn link_another_library(at: &Path) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.contains("/libc.so")).unwrap();
    symlink(libc, at).unwrap();
}

/// That the library cannot be loaded is told as that and nothing else, so that an agent goes on over TCP. There is a
/// rail as soon as there is the library.
#[test]
fn what_is_no_libfabric_is_told_as_a_library_that_cannot_be_loaded() {
    let (folder, mark) = (Folder::new(), "no-library");
    let library = folder.0.join("libfabric.so.1");
    // The dynamic linker looks there first, and elsewhere only if there is no such file.
    let there = format!("LD_LIBRARY_PATH={}", folder.0.display());
    let mut words: Vec<OsString> = vec!["env".into(), there.into()];
    words.extend(test_process::words(module_path!(), mark));
    let providers = [PROVIDERS[0].to_owned()];
    let rails = HostRails::of_providers(words.clone(), providers.to_vec());
    let opened = || {
        let process = RailProcess::start(&words).unwrap();
        let opened = ProcessEndpoint::open(&process, &providers, HERE).map(|endpoint| endpoint.is_some());
        assert_eq!(rails.endpoint(HERE).map(|endpoint| endpoint.is_some()), opened);
        opened
    };
    let why_not = || match opened() {
        Err(FabricError::NoLibrary(why)) => why,
        other => panic!("{other:?}"),
    };

    fs::write(&library, "This is no library.\n").unwrap();
    let why = why_not();
    assert!(why.starts_with("libfabric.so.1 cannot be loaded (Debian: apt install libfabric1): "), "{why}");
    assert!(why.contains(&library.display().to_string()), "{why}");
    fs::remove_file(&library).unwrap();
    link_another_library(&library);
    let why = why_not();
    assert!(why.starts_with("libfabric.so.1 cannot be loaded ") && why.contains("fi_getinfo"), "{why}");

    // No process is kept for nothing.
    let since = Instant::now();
    while !test_process::rails(mark).is_empty() {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::remove_file(&library).unwrap();
    assert_eq!(opened(), Ok(true));
}

#[test]
fn waits_end_when_something_comes_and_when_woken() {
    let provider = PROVIDERS[0];
    let (a, b) = ends(provider);
    assert_eq!(b.endpoint.receive(&b.slice(0..64), 6).unwrap(), Begun::Yes);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut taken = Vec::new();
            while taken.is_empty() && begun.elapsed() < PATIENCE {
                b.endpoint.wait(PATIENCE);
                b.endpoint.poll(&mut taken).unwrap();
            }
            taken
        });
        let since = Instant::now();
        let mut begun = false;
        while !waiting.is_finished() {
            begun = begun || a.endpoint.send(&a.slice(0..10), 1).unwrap() == Begun::Yes;
            a.endpoint.wait(Duration::from_millis(1));
            let _ = a.taken();
            assert!(since.elapsed() < PATIENCE);
        }
        assert_eq!(waiting.join().unwrap(), [Completion::Received { token: 6, bytes: 10 }]);
        let waiting = scope.spawn(|| a.endpoint.wait(PATIENCE));
        a.endpoint.wake();
        waiting.join().unwrap();
    });
    assert!(begun.elapsed() < PATIENCE);
}
