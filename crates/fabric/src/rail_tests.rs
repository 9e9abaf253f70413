//! Tests rails over the providers that need no device: TCP, and memory that two processes share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{
    Access, Begun, Buffer, Completion, Endpoint, FabricError, Library, Memory, Rail, RailEndpoint, Region,
    RemoteMemory, Slice,
};

const PATIENCE: Duration = Duration::from_secs(60);
const SLOT: usize = 1 << 20;

fn providers() -> [(&'static str, Option<std::net::IpAddr>); 2] {
    [("tcp;ofi_rxm", Some([127, 0, 0, 1].into())), ("shm", None)]
}

struct End {
    endpoint: RailEndpoint,
    region: Arc<dyn Region>,
}

impl End {
    fn new(provider: &str, at: Option<std::net::IpAddr>, key: u64) -> End {
        let offer = Library::get().unwrap().offers(Some(provider), at).unwrap().remove(0);
        let endpoint = RailEndpoint::open(&Rail::open(offer).unwrap()).unwrap();
        let buffer = Arc::new(Buffer::new(2 * SLOT).unwrap());
        let region = endpoint.register(buffer, Access::Remote, key).unwrap();
        End { endpoint, region }
    }

    fn slice(&self, range: std::ops::Range<usize>) -> Slice {
        Slice::new(self.region.clone(), range).unwrap()
    }

    fn with<T>(&self, range: std::ops::Range<usize>, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
        let slice = self.slice(range);
        // SAFETY: mapped for as long as the region, and the test uses the memory only while no operation does.
        use_it(unsafe { std::slice::from_raw_parts_mut(slice.address(), slice.bytes()) })
    }

    fn taken(&self) -> Vec<Completion> {
        let mut taken = Vec::new();
        self.endpoint.poll(&mut taken).unwrap();
        taken
    }
}

fn ends(provider: &str, at: Option<std::net::IpAddr>) -> (End, End) {
    let (a, b) = (End::new(provider, at, 7), End::new(provider, at, 8));
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
    for (provider, at) in providers() {
        let (a, b) = ends(provider, at);
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
    let (provider, at) = providers()[0];
    for wrong in
        [RemoteMemory { key: 12345, ..remote(&End::new(provider, at, 9), 0) }, RemoteMemory { address: 1, key: 8 }]
    {
        let (a, b) = ends(provider, at);
        a.with(0..SLOT, |bytes| bytes.fill(0xa5));
        let wrong = match wrong.key {
            8 => remote(&b, (2 * SLOT - 100) as u64),
            _ => wrong,
        };
        let since = Instant::now();
        let mut begun = false;
        let failed = loop {
            // A provider may refuse at once.
            match a.endpoint.write(&a.slice(0..SLOT), wrong, None, 4) {
                _ if begun => {}
                Ok(now) => begun = now == Begun::Yes,
                Err(_) => break true,
            }
            let (at_a, _) = (a.taken(), b.taken());
            match at_a.first() {
                Some(Completion::Failed { .. }) => break true,
                Some(_) => break false,
                None => assert!(since.elapsed() < PATIENCE, "neither done nor failed"),
            }
        };
        assert!(failed, "{wrong:?}");
        b.with(0..2 * SLOT, |bytes| assert!(bytes.iter().all(|byte| *byte == 0)));
    }
}

#[test]
fn memory_is_kept_while_an_operation_uses_it() {
    struct Told(Buffer, #[expect(dead_code)] Arc<()>);
    // SAFETY: the buffer's own.
    unsafe impl Memory for Told {
        fn address(&self) -> std::ptr::NonNull<u8> {
            self.0.address()
        }
        fn bytes(&self) -> usize {
            self.0.bytes()
        }
    }
    let (provider, at) = providers()[0];
    let (a, b) = ends(provider, at);
    let alive = Arc::new(());
    let memory = Arc::new(Told(Buffer::new(SLOT).unwrap(), alive.clone()));
    drop(a.endpoint.register(memory.clone(), Access::Remote, 69).unwrap());
    assert_eq!(Arc::strong_count(&memory), 2, "what a peer may write is kept, too");
    let region = a.endpoint.register(memory, Access::Local, 70).unwrap();
    let slice = Slice::new(region, 0..64).unwrap();
    assert!(Slice::new(slice.region().clone(), 0..slice.region().memory().bytes() + 1).is_none());
    assert_eq!(a.endpoint.receive(&slice, 5).unwrap(), Begun::Yes);
    assert!(
        matches!(b.endpoint.receive(&slice, 5), Err(FabricError::Misbehaves(_))),
        "memory of another rail is refused"
    );
    drop(slice);
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(a.endpoint);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn waits_end_when_something_comes_and_when_woken() {
    let (provider, at) = providers()[0];
    let (a, b) = ends(provider, at);
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
