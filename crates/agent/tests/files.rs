//! Tests an agent that lacks files for a QEMU's connections, on the loopback interface.

mod world;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use skein_agent::{OutgoingChannels, keep_channels};
use skein_dataplane::target::TargetPages;
use skein_handover::MigrationId;
use socket2::{Domain, SockAddr, Socket, Type};

use self::world::*;

/// Bounds the open files: more than what this program has open, and soon reached.
const FILES: u64 = 400;
/// Says how many channels the test opens: more than are closed meanwhile.
const CHANNELS: usize = 16;

/// Is the keeper of the test below, which starts it with the socket's path as one more name of a test.
#[test]
fn keeper_process() {
    if std::env::args().any(|word| word.ends_with("out.sock")) {
        keep_channels().unwrap();
    }
}

#[test]
fn a_channel_that_there_is_no_file_for_ends_the_migration_and_is_read() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let own = std::env::current_exe().unwrap().into_os_string();
    let keeper: Vec<OsString> = vec![own, "--exact".into(), "keeper_process".into()];
    for keeper in [&[][..], &keeper] {
        setrlimit(Resource::RLIMIT_NOFILE, FILES, hard).unwrap();
        let world = World::new();
        let (a, b) = world.pair();
        let id = MigrationId(7);
        let (landing, path) = (world.path("in.sock"), world.path("out.sock"));
        let target = UnixListener::bind(&landing).unwrap();
        b.peers.incoming_channels().open(id, "a", &landing, TargetPages::new(None, None));
        // The first connection waits 5 s for a session, which may not be enough on a busy machine.
        a.peers.reach("b");
        a.contact("b", true, PATIENCE);
        let tap = OutgoingChannels::start(&path, &a.peers, "b", id, pages(), keeper).unwrap();
        let mut main = UnixStream::connect(&path).unwrap();
        main.write_all(b"main").unwrap();
        let (mut arrived, _) = target.accept().unwrap();
        arrived.read_exact(&mut [0; 4]).unwrap();

        let mut channels: Vec<Socket> =
            (0..CHANNELS).map(|_| Socket::new(Domain::UNIX, Type::STREAM, None).unwrap()).collect();
        let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        main.set_read_timeout(Some(SECOND / 2)).unwrap();
        // Other threads may close a file or two yet: then there is one for the first of these.
        let refused = channels.iter().position(|channel| {
            channel.connect(&SockAddr::unix(&path).unwrap()).unwrap();
            matches!(main.read(&mut [0]), Ok(0))
        });
        channels.truncate(refused.expect("QEMU's migration is over") + 1);
        for channel in channels {
            let mut channel = UnixStream::from(OwnedFd::from(channel));
            channel.set_write_timeout(Some(PATIENCE)).unwrap();
            // This is more than a socket takes without a reader.
            channel.write_all(&vec![1; 4 << 20]).unwrap();
        }
        let why = tap.failed().unwrap();
        assert!(why.contains("Too many open files") && why.ends_with("(ulimit -n) of the agent"), "{why}");
        drop(files);
        let mut late = UnixStream::connect(&path).unwrap();
        late.set_write_timeout(Some(PATIENCE)).unwrap();
        late.write_all(&vec![1; 4 << 20]).unwrap();
    }
}
