//! `skein vm console`: a VM's serial console, of this host or by way of a controller.

mod join;
mod relay;

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use skein_client::ControllerClient;

use self::join::{End, Join};
use self::relay::Relay;
use super::text::clean_line;

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
///
/// # Errors
/// The console cannot be reached, or breaks.
pub fn run(name: &str, socket: &Path, linger: Duration) -> anyhow::Result<()> {
    let stop = stop_flag()?;
    let console =
        connect(socket).with_context(|| format!("cannot connect to {name}'s console {}", socket.display()))?;
    let about = "One at a time: if nothing comes, press Enter, or close the other.";
    let end = join(name, about, console, linger, &stop, || false)?;
    say_end(&end);
    Ok(())
}

/// Joins standard input and output to a VM's console on whatever host the VM is, also when it moves. `takes_over`:
/// whoever else has the console loses it. Ends as [`run`] does.
///
/// # Errors
/// The console cannot be had, or does not come back.
pub fn run_by_controller(client: ControllerClient, vm: &str, takes_over: bool, linger: Duration) -> anyhow::Result<()> {
    let stop = stop_flag()?;
    let name = clean_line(vm);
    let is_terminal = io::stdin().is_terminal();
    let note = move |words: &str| {
        // The terminal is in raw mode.
        if is_terminal { eprint!("\r\n[{words}]\r\n") } else { eprintln!("skein: {words}") }
    };
    let (relay, console) = Relay::begin(Box::new((client, vm.to_owned())), takes_over, Box::new(note))?;
    let about = format!("On {}; goes on where the VM moves.", clean_line(&relay.host()));
    let end = join(&name, &about, console, linger, &stop, || relay.is_typing())?;
    relay.end().with_context(|| format!("the console of {name} is over"))?;
    say_end(&end);
    Ok(())
}

/// Returns the flag that a signal sets that is to end the command.
fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = skein_terminal::interrupt_flag()?;
    let hang_up = signal_hook::consts::SIGHUP;
    signal_hook::flag::register(hang_up, stop.clone()).context("cannot handle signals")?;
    Ok(stop)
}

/// Joins standard input and output to a console's socket. `about` is said to somebody at a terminal.
fn join(
    name: &str,
    about: &str,
    console: UnixStream,
    linger: Duration,
    stop: &AtomicBool,
    is_typing: impl Fn() -> bool,
) -> anyhow::Result<End> {
    let stdin = io::stdin();
    let is_terminal = stdin.is_terminal();
    let raw = if is_terminal {
        eprintln!("Console of {name}; Ctrl-] leaves it. {about}");
        Some(Raw::new(stdin.as_fd()).context("cannot set this terminal to raw mode")?)
    } else {
        None
    };
    let end = Join::new(console, stdin.as_fd(), is_terminal, io::stdout().lock()).run(
        linger,
        || stop.load(Ordering::Relaxed),
        is_typing,
    );
    drop(raw);
    end.with_context(|| format!("the console of {name} broke"))
}

fn say_end(end: &End) {
    if io::stdin().is_terminal() {
        eprintln!("\n{end}");
    }
}

/// Connects to a socket. Fails at once if the console's queue of waiting connections is full.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let console = skein_client::Client::new(path).connect().map_err(|error| match error {
        skein_client::CallError::NoAgent { source, .. } | skein_client::CallError::Forbidden { source, .. } => source,
        error => io::Error::other(error.to_string()),
    })?;
    console.set_nonblocking(true)?;
    Ok(console)
}
