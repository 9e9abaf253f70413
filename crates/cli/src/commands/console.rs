//! Joins a terminal, or a pipe, to a VM's serial console.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// The key that leaves the console: Ctrl-], as in virsh and telnet.
const ESCAPE: u8 = 0x1d;
/// How often it is checked whether a signal came.
const TICK_MS: u16 = 200;
/// The most input that is kept for a guest that has not read it yet. A serial port takes a few bytes at a time, and a
/// guest may take none for minutes.
const TYPED_BYTES_MAX: usize = 64 << 10;
const READ_BYTES: usize = 4096;

/// Puts a terminal into raw mode until this value is dropped.
struct Raw<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Raw<'a> {
    fn new(terminal: BorrowedFd<'a>) -> nix::Result<Raw<'a>> {
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(terminal, SetArg::TCSANOW, &raw)?;
        Ok(Raw { terminal, before })
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // This fails only if the terminal is gone.
        let _ = tcsetattr(self.terminal, SetArg::TCSADRAIN, &self.before);
    }
}

/// Joins standard input and output to the console at `socket`. Ends when Ctrl-] is typed, the console closes or a
/// signal comes, or when the guest was silent for `linger` after the end of a pipe.
pub fn run(name: &str, socket: &Path, linger: Duration) -> anyhow::Result<()> {
    let interrupt = skein_terminal::interrupt_flag()?;
    let hang_up = signal_hook::consts::SIGHUP;
    signal_hook::flag::register(hang_up, interrupt.clone()).context("cannot handle signals")?;
    let console =
        connect(socket).with_context(|| format!("cannot connect to {name}'s console {}", socket.display()))?;
    let stdin = io::stdin();
    let terminal = stdin.is_terminal();
    let raw = if terminal {
        eprintln!(
            "Console of {name}; Ctrl-] leaves it. One at a time: if nothing comes, press Enter, or close the other."
        );
        Some(Raw::new(stdin.as_fd()).context("cannot set this terminal to raw mode")?)
    } else {
        None
    };
    let end = join(console, stdin.as_fd(), terminal, linger, || interrupt.load(Ordering::Relaxed));
    drop(raw);
    let end = end.with_context(|| format!("the console of {name} broke"))?;
    if terminal {
        eprintln!("\n{end}");
    }
    Ok(())
}

/// Connects to a socket. Fails at once if the console's queue of waiting connections is full.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let console = skein_api::Client::new(path).connect().map_err(|error| match error {
        skein_api::CallError::NoAgent { source, .. } | skein_api::CallError::Forbidden { source, .. } => source,
        error => io::Error::other(error.to_string()),
    })?;
    console.set_nonblocking(true)?;
    Ok(console)
}

fn join(
    mut console: UnixStream,
    stdin: BorrowedFd,
    terminal: bool,
    linger: Duration,
    interrupted: impl Fn() -> bool,
) -> io::Result<&'static str> {
    let mut out = io::stdout().lock();
    let mut pending: Vec<u8> = Vec::new();
    let mut chunk = [0; READ_BYTES];
    let mut open = true;
    let mut heard = Instant::now();
    loop {
        // A pipe is read only after the guest has read; a terminal is always read, for Ctrl-].
        let listen = open && (terminal || pending.len() < TYPED_BYTES_MAX);
        let wanted = if pending.is_empty() { PollFlags::POLLIN } else { PollFlags::POLLIN | PollFlags::POLLOUT };
        let mut fds = [PollFd::new(console.as_fd(), wanted), PollFd::new(stdin, PollFlags::POLLIN)];
        match poll(&mut fds[..if listen { 2 } else { 1 }], PollTimeout::from(TICK_MS)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let some = |fd: &PollFd| fd.any().unwrap_or(false);
        let (from_console, from_stdin) = (some(&fds[0]), listen && some(&fds[1]));
        if interrupted() {
            return Ok("Interrupted.");
        }
        if from_console {
            match console.read(&mut chunk) {
                Ok(0) => return Ok("The console closed: the VM was stopped or moved."),
                Ok(length) => {
                    heard = Instant::now();
                    match out.write_all(&chunk[..length]).and_then(|()| out.flush()) {
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok("Nobody reads."),
                        done => done?,
                    }
                }
                Err(error) if is_later(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok("The console closed: the VM was stopped or moved.");
                }
                Err(error) => return Err(error),
            }
        }
        if from_stdin {
            // This bypasses the standard library's buffer, whose content poll(2) does not see.
            let length = match nix::unistd::read(stdin, &mut chunk) {
                // The terminal was hung up.
                Err(nix::errno::Errno::EIO) => 0,
                Err(nix::errno::Errno::EINTR | nix::errno::Errno::EAGAIN) => continue,
                done => done?,
            };
            let keys = &chunk[..length];
            let escape = keys.iter().position(|key| *key == ESCAPE).filter(|_| terminal);
            let keys = &keys[..escape.unwrap_or(length)];
            if pending.len() + keys.len() <= TYPED_BYTES_MAX + READ_BYTES {
                pending.extend_from_slice(keys);
            } else {
                // The guest does not read: what the person types from now on is lost. The bell says so.
                let _ = out.write_all(b"\x07").and_then(|()| out.flush());
            }
            if escape.is_some() {
                // Sends what was typed before it, as far as the guest takes it now.
                let _ = console.write(&pending);
                return Ok("Left.");
            }
            if length == 0 {
                open = false;
                heard = Instant::now();
            }
        }
        if !pending.is_empty() {
            match console.write(&pending) {
                Ok(length) => {
                    pending.drain(..length);
                    heard = Instant::now();
                }
                Err(error) if is_later(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Ok("The console closed: the VM was stopped or moved.");
                }
                Err(error) => return Err(error),
            }
        }
        if !open && heard.elapsed() >= linger {
            return Ok("Silent.");
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
