//! Takes commands' connections, reads what is asked on each, and answers it.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use skein_api::{Reply, RequestLine, read_line, write_line};
use skein_inventory::printable;
use tracing::{info, warn};

use super::refusal::{WORDS_BYTES_MAX, refusal};
use super::request_server::RequestServer;
use crate::error_chain;
use crate::own_socket::OwnSocket;
use crate::permit::Permit;

/// Commands at once.
const CLIENTS_MAX: usize = 128;
/// A client says what it wants at once.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// A client that does not read what it is told is left.
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
        stream.set_read_timeout(Some(REQUEST_TIME))?;
        stream.set_write_timeout(Some(WRITE_TIME))?;
        let mut say = |reply: &Reply| write_line(&mut &*stream, reply);
        let line: RequestLine = match read_line(&mut BufReader::new(stream)) {
            Ok(line) => line,
            Err(error) => {
                let what = printable(error_chain(&error), WORDS_BYTES_MAX);
                return say(&Reply::Error(refusal(what, "is the command of the agent's version?")));
            }
        };
        let reply = match line.check() {
            Ok(()) => self.answer(line, &mut say).unwrap_or_else(|refusal| Reply::Error(*refusal)),
            Err(refusal) => Reply::Error(refusal),
        };
        say(&reply)
    }
}
