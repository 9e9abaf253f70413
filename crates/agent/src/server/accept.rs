//! Takes commands' connections, reads the request on each, and answers it.

use std::io::{self, BufReader, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Deserialize;
use skein_api::{
    LineError, Refusal, Reply, Request, RequestLine, check_version, parse_line, read_bytes_within, write_line,
};
use skein_inventory::printable;
use tracing::{info, warn};

use super::refusal::{WORDS_BYTES_MAX, refusal};
use super::request_server::{AskedBy, RequestServer};
use crate::error_chain;
use crate::own_socket::OwnSocket;
use crate::permit::Permit;

/// Bounds the commands at once.
const CLIENTS_MAX: usize = 128;
/// Bounds the commands at once that follow a migration to its end. The other places are for what is over soon: a person
/// who moves all guests of a host away has to be able to list and to cancel.
const FOLLOWERS_MAX: usize = 96;
/// Bounds the time in which a client says all that it wants.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Bounds a request, in bytes: a VM's definition with long lists is a hundredth of this.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Says after how long a client that does not read its replies is left.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// Takes commands until the agent stops.
pub(crate) fn serve(server: &Arc<RequestServer>, socket: &OwnSocket) {
    while !server.stopping.load(Ordering::SeqCst) {
        match socket.accept() {
            Ok(Some(stream)) => accept(server, stream),
            Ok(None) => {}
            Err(error) => {
                warn!("cannot accept commands: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn accept(server: &Arc<RequestServer>, stream: UnixStream) {
    let stream = Arc::new(stream);
    let refuse = |message: &str, cure: &str| {
        let _ = stream.set_write_timeout(Some(REQUEST_TIME));
        let _ = write_line(&mut &*stream, &Reply::Error(refusal(message, cure)));
    };
    let Some(place) = Permit::take(&server.clients, CLIENTS_MAX) else {
        return refuse("too many commands at once", "wait until some of them are over");
    };
    let (server, own) = (server.clone(), stream.clone());
    let work = move || {
        let _place = place;
        if let Err(error) = server.read_requests(&own) {
            info!("a command hung up: {error}");
        }
    };
    if let Err(error) = thread::Builder::new().name("command".into()).spawn(work) {
        warn!("a command is refused: {error}");
        refuse("the agent cannot start a thread", "this host has no room for more: see its limits and its memory");
    }
}

impl RequestServer {
    fn read_requests(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(WRITE_TIME))?;
        let mut say = |reply: &Reply| write_line(&mut &*stream, reply);
        let read = ReadUntil { stream, end: Instant::now() + REQUEST_TIME };
        let line = read_bytes_within(&mut BufReader::new(read), REQUEST_BYTES_MAX).map_err(|error| unread(&error));
        let line = match line.and_then(|line| parse(&line)) {
            Ok(line) => line,
            Err(refusal) => return say(&Reply::Error(refusal)),
        };
        let follows = follows(&line.request);
        let place = follows.then(|| Permit::take(&self.followers, FOLLOWERS_MAX)).flatten();
        if follows && place.is_none() {
            let cure = "wait until some of them are over, or migrate with --detach";
            return say(&Reply::Error(refusal("too many commands follow migrations at once", cure)));
        }
        let is_gone = || has_hung_up(stream);
        let reply = self.answer(line, AskedBy::Person, &mut say, &is_gone);
        let reply = reply.unwrap_or_else(|refusal| Reply::Error(*refusal));
        say(&reply)
    }
}

/// Returns whether the other end of a socket is closed.
fn has_hung_up(stream: &UnixStream) -> bool {
    // What is looked for is told without being asked for.
    let mut of = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    poll(&mut of, PollTimeout::ZERO).is_ok_and(|found| found > 0)
}

/// Returns whether a request is answered only when a migration is over.
fn follows(request: &Request) -> bool {
    matches!(
        request,
        Request::Migrate { detach: false, .. }
            | Request::MigrateHeld { detach: false, .. }
            | Request::MigrationWatch { .. }
    )
}

/// Reads a request. The version comes first: a command of a newer version is told so, whatever it asks.
fn parse(line: &[u8]) -> Result<RequestLine, Refusal> {
    if let Ok(Versioned { api }) = parse_line(line) {
        check_version(api)?;
    }
    let line: RequestLine = parse_line(line).map_err(|error| unread(&error))?;
    line.check()?;
    Ok(line)
}

/// The part of a request that each version has.
#[derive(Deserialize)]
struct Versioned {
    api: Option<u32>,
}

fn unread(error: &LineError) -> Refusal {
    refusal(printable(error_chain(error), WORDS_BYTES_MAX), "is the command of the agent's version?")
}

/// Reads from a socket until a point in time, however little comes at once.
struct ReadUntil<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Read for ReadUntil<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(into)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use skein_api::{API_VERSION, MigrateOptions};

    use super::*;

    #[test]
    fn a_newer_version_is_told_so_whatever_it_asks() {
        let newer = format!(r#"{{"api":{},"request":"frobnicate"}}"#, API_VERSION + 1);
        let refusal = parse(newer.as_bytes()).unwrap_err();
        assert!(refusal.message.contains("of the API is not known here"), "{}", refusal.message);
        let unknown = format!(r#"{{"api":{API_VERSION},"request":"frobnicate"}}"#);
        assert!(parse(unknown.as_bytes()).unwrap_err().message.contains("frobnicate"));
        assert_eq!(parse(br#"{"request":"vm-list"}"#).unwrap().request, Request::VmList);
    }

    #[test]
    fn only_what_follows_a_migration_takes_a_place_of_those() {
        const { assert!(FOLLOWERS_MAX < CLIENTS_MAX, "there is room to cancel") };
        let migrate = |detach| {
            let options = MigrateOptions::default();
            Request::Migrate { vm: "web1".into(), to: "hostb".into(), options, detach }
        };
        let id = "web1".to_owned();
        assert!(follows(&migrate(false)) && follows(&Request::MigrationWatch { id: id.clone() }));
        assert!(!follows(&migrate(true)) && !follows(&Request::MigrationCancel { id }));
    }

    #[test]
    fn a_client_that_hangs_up_is_seen() {
        let (mut client, stream) = UnixStream::pair().unwrap();
        assert!(!has_hung_up(&stream));
        client.write_all(b" ").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!has_hung_up(&stream), "the client still reads");
        drop(client);
        assert!(has_hung_up(&stream));
    }

    #[test]
    fn what_trickles_has_an_end() {
        let (mut client, stream) = UnixStream::pair().unwrap();
        let end = Instant::now() + Duration::from_millis(60);
        let trickle = thread::spawn(move || {
            while client.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let read = ReadUntil { stream: &stream, end };
        let error = read_bytes_within(&mut BufReader::new(read), REQUEST_BYTES_MAX).unwrap_err();
        assert!(matches!(error, LineError::Io(_)) && Instant::now() >= end, "{error}");
        drop(stream);
        trickle.join().unwrap();
    }
}
