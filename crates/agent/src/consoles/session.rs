//! Is a session that has a console: what was read and typed, and the thread that has the socket.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use skein_api::{ConsoleBytes, ConsoleRequest, ConsoleState, ConsoleView};

use super::output::Output;
use crate::waker::Waker;

/// Bounds the input that is kept for a guest that has not read it yet. A serial port takes a few bytes at a time, and a
/// guest may take none for minutes.
const TYPED_BYTES_MAX: usize = 64 << 10;
const READ_BYTES: usize = 4096;
/// Says how often the thread looks whether the session is over.
const TICK_MS: u16 = 500;

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// The VM's end closed.
    Closed,
    /// The session was ended, or nobody asked.
    LetGo,
    /// Somebody took the console over.
    TakenOver(String),
}

#[derive(Debug)]
struct State {
    output: Output,
    /// What the guest has not taken yet.
    waiting: VecDeque<u8>,
    /// The bytes that were ever taken of what was typed.
    typed: u64,
    end: Option<End>,
    asked: Instant,
}

/// A session that has a VM's console.
pub(super) struct Session {
    id: String,
    by: String,
    idle: Duration,
    state: Mutex<State>,
    /// Told when there is output, and at the end.
    changed: Condvar,
    /// Wakes the thread.
    waker: Waker,
}

impl Session {
    /// Begins a session, with a thread that has the console until the session is over.
    ///
    /// # Errors
    ///
    /// The process has too many files open, or too many threads.
    pub(super) fn begin(console: UnixStream, id: &str, by: &str, idle: Duration) -> io::Result<Arc<Session>> {
        console.set_nonblocking(true)?;
        let state =
            State { output: Output::default(), waiting: VecDeque::new(), typed: 0, end: None, asked: Instant::now() };
        let (state, changed, waker) = (Mutex::new(state), Condvar::new(), Waker::new()?);
        let session = Arc::new(Session { id: id.into(), by: by.into(), idle, state, changed, waker });
        let carried = session.clone();
        thread::Builder::new().name("console".into()).spawn(move || carried.carry(console))?;
        Ok(session)
    }

    /// Returns whether this is the session of a caller.
    pub(super) fn is_of(&self, asked: &ConsoleRequest) -> bool {
        self.id == asked.session && self.by == asked.by
    }

    /// Returns who has the console. `None`: nobody, as the session is over.
    pub(super) fn holder(&self) -> Option<&str> {
        self.state.lock().end.is_none().then_some(self.by.as_str())
    }

    /// Returns whether the session is over, and nobody has asked for what was left of it.
    pub(super) fn is_forgotten(&self) -> bool {
        let state = self.state.lock();
        state.end.is_some() && state.asked.elapsed() > self.idle
    }

    /// Ends the session, and lets the console go at once.
    pub(super) fn let_go(&self) {
        self.end(End::LetGo);
    }

    /// Ends the session, as somebody else wants the console.
    pub(super) fn take_over(&self, by: &str) {
        self.end(End::TakenOver(by.to_owned()));
    }

    fn end(&self, end: End) {
        self.state.lock().end.get_or_insert(end);
        self.changed.notify_all();
        self.waker.wake();
    }

    /// Takes what is typed, and waits for output as long as the request says.
    pub(super) fn ask(&self, asked: &ConsoleRequest) -> ConsoleView {
        let until = Instant::now() + Duration::from_millis(asked.wait_ms);
        let mut state = self.state.lock();
        state.asked = Instant::now();
        if state.take_typed(asked.input_at, &asked.input.0) {
            self.waker.wake();
        }
        while state.end.is_none() && state.output.written() <= asked.after {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.asked = Instant::now();
        state.view(asked.after)
    }

    /// Carries bytes both ways until the session is over.
    fn carry(&self, mut console: UnixStream) {
        while self.state.lock().is_on(self.idle) {
            match self.step(&mut console) {
                Ok(true) => {}
                Ok(false) | Err(_) => return self.end(End::Closed),
            }
        }
        self.let_go();
    }

    /// Waits until there is something to do, and does it. Returns whether the console is open still.
    fn step(&self, console: &mut UnixStream) -> io::Result<bool> {
        let mut wanted = PollFlags::POLLIN;
        wanted.set(PollFlags::POLLOUT, !self.state.lock().waiting.is_empty());
        let mut polled = [PollFd::new(console.as_fd(), wanted), PollFd::new(self.waker.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::from(TICK_MS)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.waker.clear();
        let mut chunk = [0; READ_BYTES];
        match console.read(&mut chunk) {
            Ok(0) => return Ok(false),
            Ok(length) => {
                self.state.lock().output.push(&chunk[..length]);
                self.changed.notify_all();
            }
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
        let mut state = self.state.lock();
        let (first, _) = state.waiting.as_slices();
        if !first.is_empty() {
            // The socket does not block, so the lock is held for a moment.
            match console.write(first) {
                Ok(length) => drop(state.waiting.drain(..length)),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl State {
    /// Returns whether the session goes on.
    fn is_on(&self, idle: Duration) -> bool {
        self.end.is_none() && self.asked.elapsed() <= idle
    }

    /// Takes input that begins at a position in all that is typed, as far as there is room. What was taken before is
    /// passed over, and what does not follow it is left: the caller learns what was taken. Returns whether any was.
    fn take_typed(&mut self, at: u64, input: &[u8]) -> bool {
        let Some(before) = self.typed.checked_sub(at) else { return false };
        let new = usize::try_from(before).ok().and_then(|before| input.get(before..)).unwrap_or_default();
        let room = TYPED_BYTES_MAX - self.waiting.len();
        let taken = &new[..new.len().min(room)];
        self.waiting.extend(taken);
        self.typed += taken.len() as u64;
        !taken.is_empty()
    }

    fn view(&self, after: u64) -> ConsoleView {
        let (state, holder) = match &self.end {
            None => (ConsoleState::Open, None),
            Some(End::Closed) => (ConsoleState::Closed, None),
            Some(End::LetGo) => (ConsoleState::Unknown, None),
            Some(End::TakenOver(by)) => (ConsoleState::Held, Some(by.clone())),
        };
        let (at, output) = self.output.since(after);
        ConsoleView { state, output: ConsoleBytes(output), at, typed: self.typed, holder }
    }
}

/// Returns whether the same call may succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
