//! Joins an input and an output to a console's socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The key that leaves the console: Ctrl-], as in virsh and telnet.
const ESCAPE: u8 = 0x1d;
/// How often [`Join::wait`] ends for a signal that came.
const TICK_MS: u16 = 200;
/// The most input that is kept for a guest that has not read it yet. A serial port takes a few bytes at a time, and a
/// guest may take none for minutes.
const TYPED_BYTES_MAX: usize = 64 << 10;
const READ_BYTES: usize = 4096;

/// Why a console was left. In words: `Silent.`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A signal came.
    Interrupted,
    /// The VM's end of the console closed.
    Closed,
    /// The reader of the standard output has gone.
    NobodyReads,
    /// Ctrl-] was typed.
    Left,
    /// The input ended, and then the guest was silent.
    Silent,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Interrupted => "Interrupted.",
            End::Closed => "The console closed: the VM was stopped or moved.",
            End::NobodyReads => "Nobody reads.",
            End::Left => "Left.",
            End::Silent => "Silent.",
        })
    }
}

/// What can be read now.
struct Readable {
    console: bool,
    input: bool,
}

/// A console that is joined to an input and an output, such as the standard ones. A step that returns an [`End`] is
/// the last one.
pub(super) struct Join<'a, W> {
    console: UnixStream,
    input: BorrowedFd<'a>,
    /// Whether the input is a terminal, which has keys for this program. All bytes of a pipe are for the guest.
    is_terminal: bool,
    /// Whether the input has not ended.
    is_open: bool,
    output: W,
    /// The input that the guest has not taken yet.
    typed: Vec<u8>,
    chunk: [u8; READ_BYTES],
    /// The last time that the guest took or gave bytes, or that the input ended.
    active: Instant,
}

impl<'a, W: Write> Join<'a, W> {
    pub(super) fn new(console: UnixStream, input: BorrowedFd<'a>, is_terminal: bool, output: W) -> Join<'a, W> {
        Join {
            console,
            input,
            is_terminal,
            is_open: true,
            output,
            typed: Vec::new(),
            chunk: [0; READ_BYTES],
            active: Instant::now(),
        }
    }

    /// Carries bytes both ways until there is a reason to end. While `is_typing` some of the input is on its way.
    ///
    /// # Errors
    /// The console, the input or the output fails.
    pub(super) fn run(
        mut self,
        linger: Duration,
        is_interrupted: impl Fn() -> bool,
        is_typing: impl Fn() -> bool,
    ) -> io::Result<End> {
        loop {
            let readable = self.wait()?;
            if is_interrupted() {
                return Ok(End::Interrupted);
            }
            if readable.console
                && let Some(end) = self.show_output()?
            {
                return Ok(end);
            }
            if readable.input
                && let Some(end) = self.take_input()?
            {
                return Ok(end);
            }
            if let Some(end) = self.send_typed()? {
                return Ok(end);
            }
            if is_typing() {
                self.active = Instant::now();
            }
            if !self.is_open && self.active.elapsed() >= linger {
                return Ok(End::Silent);
            }
        }
    }

    /// Waits until there is something to do, for at most [`TICK_MS`].
    fn wait(&self) -> io::Result<Readable> {
        // A pipe is read only after the guest has read; a terminal is always read, for Ctrl-].
        let listens = self.is_open && (self.is_terminal || self.typed.len() < TYPED_BYTES_MAX);
        let wanted = if self.typed.is_empty() { PollFlags::POLLIN } else { PollFlags::POLLIN | PollFlags::POLLOUT };
        let mut fds = [PollFd::new(self.console.as_fd(), wanted), PollFd::new(self.input, PollFlags::POLLIN)];
        match poll(&mut fds[..if listens { 2 } else { 1 }], PollTimeout::from(TICK_MS)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_event = |fd: &PollFd| fd.any().unwrap_or(false);
        Ok(Readable { console: has_event(&fds[0]), input: listens && has_event(&fds[1]) })
    }

    /// Prints what the guest wrote.
    fn show_output(&mut self) -> io::Result<Option<End>> {
        let length = match self.console.read(&mut self.chunk) {
            Ok(0) => return Ok(Some(End::Closed)),
            Ok(length) => length,
            Err(error) if is_later(&error) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Some(End::Closed)),
            Err(error) => return Err(error),
        };
        self.active = Instant::now();
        match self.output.write_all(&self.chunk[..length]).and_then(|()| self.output.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Some(End::NobodyReads)),
            done => done.map(|()| None),
        }
    }

    /// Reads the input, for the guest and for Ctrl-].
    fn take_input(&mut self) -> io::Result<Option<End>> {
        // This bypasses the standard library's buffer, whose content poll(2) does not see.
        let length = match nix::unistd::read(self.input, &mut self.chunk) {
            // The terminal was hung up.
            Err(Errno::EIO) => 0,
            Err(Errno::EINTR | Errno::EAGAIN) => return Ok(None),
            done => done?,
        };
        let keys = &self.chunk[..length];
        let escape = keys.iter().position(|key| *key == ESCAPE).filter(|_| self.is_terminal);
        let keys = &keys[..escape.unwrap_or(length)];
        if self.typed.len() + keys.len() <= TYPED_BYTES_MAX + READ_BYTES {
            self.typed.extend_from_slice(keys);
        } else {
            // The guest does not read: what the person types from now on is lost. The bell says so.
            let _ = self.output.write_all(b"\x07").and_then(|()| self.output.flush());
        }
        if escape.is_some() {
            // Sends what was typed before the key, as far as the guest takes it now.
            let _ = self.console.write(&self.typed);
            return Ok(Some(End::Left));
        }
        if length == 0 {
            self.is_open = false;
            self.active = Instant::now();
        }
        Ok(None)
    }

    /// Sends what was typed, as far as the guest takes it now.
    fn send_typed(&mut self) -> io::Result<Option<End>> {
        if self.typed.is_empty() {
            return Ok(None);
        }
        match self.console.write(&self.typed) {
            Ok(length) => {
                self.typed.drain(..length);
                self.active = Instant::now();
                Ok(None)
            }
            Err(error) if is_later(&error) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Some(End::Closed)),
            Err(error) => Err(error),
        }
    }
}

/// Returns whether the same call may succeed later.
fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::io::PipeWriter;
    use std::thread;

    use super::*;

    const LINGER: Duration = Duration::from_millis(50);
    /// Longer than any test takes, also on a busy machine.
    const LONG: Duration = Duration::from_secs(600);

    /// Joins a guest's end of a console to an input with these bytes, which stays open as long as its writer. After
    /// its end the guest may be silent for `linger`. Returns the reason of the end, and what was printed.
    fn join(
        input: &[u8],
        is_terminal: bool,
        linger: Duration,
        guest: impl FnOnce(UnixStream, PipeWriter) + Send + 'static,
    ) -> (End, String) {
        let (console, guests_end) = UnixStream::pair().unwrap();
        console.set_nonblocking(true).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(input).unwrap();
        let guest = thread::spawn(move || guest(guests_end, writer));
        let mut printed = Vec::new();
        let end =
            Join::new(console, reader.as_fd(), is_terminal, &mut printed).run(linger, || false, || false).unwrap();
        guest.join().unwrap();
        (end, String::from_utf8(printed).unwrap())
    }

    fn read(guest: &mut UnixStream, length: usize) -> String {
        let mut bytes = vec![0; length];
        guest.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_pipe_is_sent_whole_and_its_answer_is_waited_for() {
        // The answer comes after the end of the input, however late.
        let (end, printed) = join(b"date\x1d\n", false, LONG, |mut guest, pipe| {
            drop(pipe);
            assert_eq!(read(&mut guest, 6), "date\x1d\n", "only a terminal has keys");
            guest.write_all(b"Thursday").unwrap();
        });
        assert_eq!((end, printed.as_str()), (End::Closed, "Thursday"));
        // The guest is silent after the end of the input, and its end stays open.
        let (end, printed) = join(b"date\n", false, LINGER, |mut guest, pipe| {
            assert_eq!(read(&mut guest, 5), "date\n");
            guest.write_all(b"Thursday").unwrap();
            drop(pipe);
            let _ = guest.read_to_end(&mut Vec::new());
        });
        assert_eq!((end, printed.as_str()), (End::Silent, "Thursday"));
    }

    #[test]
    fn the_escape_leaves_after_what_was_typed_before_it() {
        let (end, _) = join(b"ls\x1drm", true, LINGER, |mut guest, terminal| {
            let mut all = String::new();
            guest.read_to_string(&mut all).unwrap();
            assert_eq!(all, "ls", "what was typed after the key is not for the guest");
            drop(terminal);
        });
        assert_eq!(end, End::Left);
    }

    #[test]
    fn a_console_that_closes_ends_it() {
        let (end, printed) = join(b"", true, LONG, |mut guest, terminal| {
            guest.write_all(b"bye").unwrap();
            drop(guest);
            drop(terminal);
        });
        assert_eq!((end, printed.as_str()), (End::Closed, "bye"));
    }

    #[test]
    fn a_guest_that_reads_nothing_costs_a_bounded_buffer() {
        let typed = vec![b'x'; READ_BYTES];
        let (console, guest) = UnixStream::pair().unwrap();
        console.set_nonblocking(true).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let mut join = Join::new(console, reader.as_fd(), true, Vec::new());
        for _ in 0..1000 {
            writer.write_all(&typed).unwrap();
            assert_eq!(join.take_input().unwrap(), None);
            assert_eq!(join.send_typed().unwrap(), None);
        }
        assert!((TYPED_BYTES_MAX..=TYPED_BYTES_MAX + READ_BYTES).contains(&join.typed.len()), "{}", join.typed.len());
        assert!(join.output.contains(&7), "the bell says that what is typed is lost");
        drop(guest);
        assert_eq!(join.send_typed().unwrap(), Some(End::Closed));
    }
}
