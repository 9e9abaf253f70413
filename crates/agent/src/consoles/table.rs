//! Says which session has which console.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skein_api::{ConsoleRequest, ConsoleState, ConsoleStep, ConsoleView};
use socket2::{Domain, SockAddr, Socket, Type};
use tracing::info;

use super::session::Session;

/// Bounds the consoles that are open at once: each has a thread, and 128 KiB at most of what was written and typed.
const CONSOLES_MAX: usize = 32;

/// The reason why a console cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsoleError {
    #[error("{CONSOLES_MAX} consoles of this host are open")]
    TooMany,
    #[error("others wait for this console already")]
    Busy,
    #[error("the console cannot be opened")]
    Io(#[source] io::Error),
}

impl ConsoleError {
    /// Returns what to do about it.
    pub(crate) fn cure(&self) -> &'static str {
        match self {
            ConsoleError::TooMany => "close some of them",
            ConsoleError::Busy => "end what has it open: one client at a time, such as `skein vm console`, is served",
            ConsoleError::Io(_) => "see that the VM runs: `skein vm show`",
        }
    }
}

/// The consoles that are open, by VM.
pub(crate) struct Consoles {
    open: Mutex<BTreeMap<String, Arc<Session>>>,
    idle: Duration,
}

impl Consoles {
    /// A console is let go that nobody asks about for `idle`.
    pub(crate) fn new(idle: Duration) -> Consoles {
        Consoles { open: Mutex::default(), idle }
    }

    /// Does what is asked of the console at `socket`. This takes as long as the request waits.
    ///
    /// # Errors
    ///
    /// The session is to begin, and the console cannot be opened.
    pub(crate) fn ask(&self, asked: &ConsoleRequest, socket: &Path) -> Result<ConsoleView, ConsoleError> {
        let found = self.open.lock().get(&asked.name).cloned();
        let own = found.as_ref().filter(|session| session.is_of(asked));
        let session = match (asked.step, own) {
            (ConsoleStep::End, Some(own)) => {
                own.let_go();
                own.clone()
            }
            // A beginning that is repeated, as its answer was lost.
            (_, Some(own)) if own.holder().is_some() || asked.step == ConsoleStep::GoOn => own.clone(),
            (ConsoleStep::GoOn | ConsoleStep::End, _) => return Ok(not_here(found.as_deref())),
            (ConsoleStep::Begin | ConsoleStep::TakeOver, _) => match self.begin(asked, socket)? {
                Ok(session) => session,
                Err(held) => return Ok(held),
            },
        };
        // The table is free while this waits.
        Ok(session.ask(asked))
    }

    /// Begins a session, or says who else has the console.
    fn begin(&self, asked: &ConsoleRequest, socket: &Path) -> Result<Result<Arc<Session>, ConsoleView>, ConsoleError> {
        let mut open = self.open.lock();
        open.retain(|_, session| !session.is_forgotten());
        if let Some(other) = open.get(&asked.name) {
            // Two that begin the same session at once are one.
            if other.is_of(asked) && other.holder().is_some() {
                return Ok(Ok(other.clone()));
            }
            if other.holder().is_some() && asked.step != ConsoleStep::TakeOver {
                return Ok(Err(not_here(Some(other))));
            }
            other.take_over(&asked.by);
        } else if open.len() >= CONSOLES_MAX {
            return Err(ConsoleError::TooMany);
        }
        let console = connect(socket)?;
        let session = Session::begin(console, &asked.session, &asked.by, self.idle).map_err(ConsoleError::Io)?;
        info!(vm = asked.name, "the console is opened by {}", asked.by);
        open.insert(asked.name.clone(), session.clone());
        Ok(Ok(session))
    }
}

/// Returns what is said to a session that has not the console.
fn not_here(other: Option<&Session>) -> ConsoleView {
    let holder = other.and_then(|other| other.holder()).map(str::to_owned);
    let state = if holder.is_some() { ConsoleState::Held } else { ConsoleState::Unknown };
    ConsoleView { state, holder, ..ConsoleView::default() }
}

/// Connects to a socket without waiting for it: a queue that is full is that of others who wait.
fn connect(path: &Path) -> Result<UnixStream, ConsoleError> {
    let connected = || -> io::Result<UnixStream> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(socket.into())
    };
    connected().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => ConsoleError::Busy,
        _ => ConsoleError::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;
    use std::time::Instant;

    use skein_api::ConsoleBytes;

    use super::*;

    /// A VM's end of a console.
    struct Guest {
        dir: tempfile::TempDir,
        listener: UnixListener,
    }

    impl Guest {
        fn new() -> Guest {
            let dir = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(dir.path().join("console")).unwrap();
            Guest { dir, listener }
        }

        fn socket(&self) -> PathBuf {
            self.dir.path().join("console")
        }

        fn accept(&self) -> UnixStream {
            let (stream, _) = self.listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream
        }
    }

    fn asked(session: &str, step: ConsoleStep) -> ConsoleRequest {
        let (name, by) = ("web1".into(), format!("by-{session}"));
        ConsoleRequest { name, session: session.into(), by, step, ..ConsoleRequest::default() }
    }

    fn typed(at: u64, input: &str) -> ConsoleRequest {
        let input = ConsoleBytes(input.as_bytes().to_vec());
        ConsoleRequest { input, input_at: at, ..asked("a", ConsoleStep::GoOn) }
    }

    fn after(position: u64) -> ConsoleRequest {
        ConsoleRequest { after: position, wait_ms: 10_000, ..asked("a", ConsoleStep::GoOn) }
    }

    fn read(guest: &mut UnixStream, length: usize) -> String {
        let mut bytes = vec![0; length];
        guest.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn is_at_its_end(guest: &mut UnixStream) -> bool {
        matches!(guest.read(&mut [0; 16]), Ok(0))
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn what_is_typed_comes_once_and_in_order_and_output_is_waited_for() {
        let (consoles, guest) = (Consoles::new(LONG), Guest::new());
        let ask = |of: &ConsoleRequest| consoles.ask(of, &guest.socket()).unwrap();
        assert_eq!(ask(&after(0)).state, ConsoleState::Unknown, "it has not begun");
        assert_eq!(ask(&asked("a", ConsoleStep::Begin)).state, ConsoleState::Open);
        let mut at = guest.accept();
        assert_eq!(ask(&asked("a", ConsoleStep::Begin)).state, ConsoleState::Open, "an answer was lost");
        assert_eq!(ask(&typed(0, "ls")).typed, 2);
        assert_eq!(ask(&typed(0, "ls -")).typed, 4, "the answer was lost, and more was typed since");
        assert_eq!(ask(&typed(0, "ls")).typed, 4);
        assert_eq!(ask(&typed(9, "too early")).typed, 4, "what is between was lost on the way");
        assert_eq!(ask(&typed(4, "l\r")).typed, 6);
        assert_eq!(read(&mut at, 6), "ls -l\r");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| ask(&after(0)));
            at.write_all(b"total").unwrap();
            let view = waiting.join().unwrap();
            assert_eq!((view.at, view.output.0), (0, b"total".to_vec()));
        });
        at.write_all(b" 0").unwrap();
        let view = ask(&after(5));
        assert_eq!((view.at, view.output.0, view.typed), (5, b" 0".to_vec(), 6));
        assert_eq!(ask(&ConsoleRequest { wait_ms: 0, ..after(3) }).output.0, b"al 0");
        drop(at);
        let view = ask(&after(7));
        assert_eq!((view.state, view.at), (ConsoleState::Closed, 7));
    }

    #[test]
    fn another_is_told_who_has_it_and_may_take_it_over() {
        let (consoles, guest) = (Consoles::new(LONG), Guest::new());
        let ask = |of: &ConsoleRequest| consoles.ask(of, &guest.socket()).unwrap();
        ask(&asked("a", ConsoleStep::Begin));
        let mut first = guest.accept();
        let held = ask(&asked("b", ConsoleStep::Begin));
        assert_eq!((held.state, held.holder.as_deref()), (ConsoleState::Held, Some("by-a")));
        let mut stolen = asked("a", ConsoleStep::GoOn);
        stolen.by = "by-b".into();
        assert_eq!(ask(&stolen).state, ConsoleState::Held, "a session is its caller's");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| ask(&after(0)));
            assert_eq!(ask(&asked("b", ConsoleStep::TakeOver)).state, ConsoleState::Open);
            let told = waiting.join().unwrap();
            assert_eq!((told.state, told.holder.as_deref()), (ConsoleState::Held, Some("by-b")));
        });
        assert!(is_at_its_end(&mut first));
        let mut second = guest.accept();
        assert_eq!(ask(&after(0)).holder.as_deref(), Some("by-b"));
        // The end lets it go at once, and the next one begins.
        assert_eq!(ask(&asked("b", ConsoleStep::End)).state, ConsoleState::Unknown);
        assert!(is_at_its_end(&mut second));
        assert_eq!(ask(&asked("a", ConsoleStep::Begin)).state, ConsoleState::Open);
    }

    #[test]
    fn a_console_that_nobody_asks_about_is_let_go() {
        let (consoles, guest) = (Consoles::new(Duration::from_millis(300)), Guest::new());
        let ask = |of: &ConsoleRequest| consoles.ask(of, &guest.socket()).unwrap();
        ask(&asked("a", ConsoleStep::Begin));
        assert!(is_at_its_end(&mut guest.accept()));
        let end = Instant::now() + Duration::from_secs(60);
        while ask(&asked("a", ConsoleStep::GoOn)).state != ConsoleState::Unknown {
            assert!(Instant::now() < end);
        }
        // A machine that stands still for that long lets the console go again.
        while ask(&asked("b", ConsoleStep::Begin)).state != ConsoleState::Open {
            assert!(Instant::now() < end);
        }
    }

    #[test]
    fn consoles_and_what_waits_for_a_guest_are_bounded() {
        let (consoles, guest) = (Consoles::new(LONG), Guest::new());
        let begin = |number: usize| {
            let of = ConsoleRequest { name: format!("v{number}"), ..asked("a", ConsoleStep::Begin) };
            consoles.ask(&of, &guest.socket())
        };
        let mut kept = Vec::new();
        for number in 0..CONSOLES_MAX {
            assert_eq!(begin(number).unwrap().state, ConsoleState::Open);
            kept.push(guest.accept());
        }
        assert!(matches!(begin(CONSOLES_MAX), Err(ConsoleError::TooMany)));
        // A guest that reads nothing: what is typed is taken until there is no more room.
        let type_at = |at| {
            let input = ConsoleBytes(vec![b'x'; 8 << 10]);
            let of = ConsoleRequest { name: "v0".into(), input, input_at: at, ..asked("a", ConsoleStep::GoOn) };
            consoles.ask(&of, &guest.socket()).unwrap().typed
        };
        let mut at = 0;
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let taken = type_at(at);
            if taken == at {
                break;
            }
            at = taken;
            assert!(at < 4 << 20 && Instant::now() < end, "{at} bytes wait");
        }
        drop(guest);
        let gone = consoles.ask(&asked("a", ConsoleStep::Begin), Path::new("/nowhere/console"));
        assert!(matches!(gone, Err(ConsoleError::TooMany)));
    }

    #[test]
    fn a_console_that_is_not_there_or_whose_queue_is_full_is_refused() {
        let (consoles, guest) = (Consoles::new(LONG), Guest::new());
        let gone = consoles.ask(&asked("a", ConsoleStep::Begin), &guest.dir.path().join("none"));
        assert!(matches!(gone, Err(ConsoleError::Io(_))));
        let queue = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        let path = guest.dir.path().join("full");
        queue.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        queue.listen(0).unwrap();
        let mut connected = Vec::new();
        while let Ok(stream) = connect(&path) {
            connected.push(stream);
            assert!(connected.len() < 10);
        }
        let full = consoles.ask(&asked("a", ConsoleStep::Begin), &path);
        assert!(matches!(full, Err(ConsoleError::Busy)), "{full:?}");
    }
}
