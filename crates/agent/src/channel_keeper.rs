//! Keeps the channels of a migration open when its agent dies, in a process of its own.
//!
//! A QEMU may wait for ever for a multifd channel that breaks before its main connection does
//! ([`skein_hypervisor::migration`]), and when an agent is killed, all of its sockets break at once. So another process
//! accepts QEMU's connections, passes them on to the agent, and keeps the channels open. When the agent is gone, or has
//! given the migration up, this process reads what QEMU still writes, and ends when QEMU has closed the channels.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::own_socket::ACCEPT_WAIT;
use crate::pass_descriptor::{receive, send};

/// Says after how long a QEMU that has no connection, and has made none, makes no more.
const LAST_CHANNEL_WAIT: Duration = Duration::from_millis(200);
const BUFFER_BYTES: usize = 256 << 10;

/// The keeper process, at its agent's end. The process goes on by itself when this is dropped.
pub(crate) struct ChannelKeeper {
    link: UnixStream,
}

impl ChannelKeeper {
    /// Starts the process. `words` are a program that calls [`keep_channels`], and its arguments; the last argument is
    /// `path`, for people who look at processes.
    pub(crate) fn start<W: AsRef<OsStr>>(
        words: &[W],
        path: &Path,
        listener: BorrowedFd<'_>,
    ) -> io::Result<ChannelKeeper> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let (link, other) = UnixStream::pair()?;
        link.set_read_timeout(Some(ACCEPT_WAIT))?;
        let mut command = Command::new(program);
        command.args(arguments).arg(path).stdin(OwnedFd::from(other)).stdout(Stdio::null()).stderr(Stdio::null());
        // A Ctrl-C in the agent's terminal is not meant for the process.
        let mut child = command.process_group(0).spawn()?;
        thread::Builder::new().name("keeper".into()).spawn(move || child.wait())?;
        send(&link, listener)?;
        Ok(ChannelKeeper { link })
    }

    /// Returns the next connection; `None` if none comes within [`ACCEPT_WAIT`].
    ///
    /// # Errors
    /// `UnexpectedEof` or `ConnectionReset` if the process has ended; otherwise a connection has come and is lost.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        Ok(receive(&self.link)?.map(UnixStream::from))
    }
}

/// Keeps channels until they end: all that the keeper process does. Its standard input is connected to the agent.
///
/// # Errors
/// The standard input is no such connection.
pub fn keep_channels() -> io::Result<()> {
    let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let listener = receive(&link)?.ok_or(io::ErrorKind::TimedOut)?;
    keep(link, UnixListener::from(listener))
}

fn keep(link: UnixStream, listener: UnixListener) -> io::Result<()> {
    let mut kept = Vec::new();
    let mut has_main = false;
    while !is_over(&link, &listener)? {
        let Some(connection) = accept(&listener)? else { continue };
        // The agent alone has the main connection, so that it breaks first.
        let is_main = !std::mem::replace(&mut has_main, true);
        // If nobody is there to take the connection, the next check says so.
        let _ = send(&link, connection.as_fd());
        kept.extend((!is_main).then(|| Arc::new(connection)));
    }
    drop(link);
    drain(listener.as_fd(), || accept(&listener), kept, has_main, |quiet| quiet >= LAST_CHANNEL_WAIT)
}

/// Waits for a connection, or the agent's end.
fn is_over(link: &UnixStream, listener: &UnixListener) -> io::Result<bool> {
    let mut fds = [PollFd::new(link.as_fd(), PollFlags::POLLIN), PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::NONE) {
        // The agent says nothing: readable means its end.
        Ok(_) => Ok(fds[0].any().unwrap_or(true)),
        Err(nix::Error::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads all channels until their ends, also those that QEMU is about to connect. `is_over` is called again and again,
/// with the time for which there has been no channel. Other processes may read the channels, too.
pub(crate) fn drain(
    listener: BorrowedFd<'_>,
    accept: impl Fn() -> io::Result<Option<UnixStream>>,
    mut channels: Vec<Arc<UnixStream>>,
    mut has_main: bool,
    is_over: impl Fn(Duration) -> bool,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut quiet_since = Instant::now();
    // While there are channels, time for which this thread stands still is no time without a channel.
    while !is_over(if channels.is_empty() { quiet_since.elapsed() } else { Duration::ZERO }) {
        let mut fds = vec![PollFd::new(listener, PollFlags::POLLIN)];
        fds.extend(channels.iter().map(|channel| PollFd::new(channel.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::try_from(LAST_CHANNEL_WAIT).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let mut ready_channels = ready[1..].iter();
        channels.retain(|channel| {
            let is_ready = ready_channels.next().is_some_and(|ready| *ready);
            // Another process may have been quicker.
            !is_ready
                || match recv(&**channel, &mut buffer[..], RecvFlags::DONTWAIT) {
                    Ok((bytes, _)) => bytes > 0,
                    Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
                }
        });
        if ready[0]
            && let Some(connection) = accept()?
            // A main connection that comes now leads nowhere, and is closed.
            && std::mem::replace(&mut has_main, true)
        {
            channels.push(Arc::new(connection));
        }
        if !channels.is_empty() {
            quiet_since = Instant::now();
        }
    }
    Ok(())
}

fn accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    match listener.accept() {
        Ok((connection, _)) => {
            connection.set_read_timeout(None)?;
            Ok(Some(connection))
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn keeper() -> (tempfile::TempDir, std::path::PathBuf, UnixStream, thread::JoinHandle<io::Result<()>>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let listener = UnixListener::bind(&path).unwrap();
        let (link, other) = UnixStream::pair().unwrap();
        let keeper = thread::spawn(move || keep(other, listener));
        (dir, path, link, keeper)
    }

    /// Writes more than a socket takes without a reader.
    fn write_much(channel: &mut UnixStream) -> io::Result<()> {
        channel.write_all(&vec![1; 4 << 20])
    }

    #[test]
    fn channels_outlive_the_agent_and_the_main_connection_does_not() {
        let (_dir, path, link, keeper) = keeper();
        let mut main = UnixStream::connect(&path).unwrap();
        let passed = receive(&link).unwrap().unwrap();
        let mut first = UnixStream::connect(&path).unwrap();
        let mut agents = UnixStream::from(receive(&link).unwrap().unwrap());
        first.write_all(b"page").unwrap();
        let mut read = [0; 4];
        agents.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"page", "the agent has it");
        // The agent dies.
        drop((passed, agents, link));
        assert_eq!(main.read(&mut read).unwrap(), 0, "the main connection is over");
        write_much(&mut first).unwrap();
        let mut late = UnixStream::connect(&path).unwrap();
        write_much(&mut late).unwrap();
        assert!(!keeper.is_finished());
        let end = Instant::now();
        drop((first, late));
        keeper.join().unwrap().unwrap();
        assert!(end.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn an_agent_that_dies_at_once_leaves_no_main_connection_open() {
        let (_dir, path, link, keeper) = keeper();
        drop(link);
        // The keeper may have ended by now.
        if let Ok(mut main) = UnixStream::connect(&path) {
            assert_eq!(main.read(&mut [0]).unwrap_or(0), 0);
        }
        keeper.join().unwrap().unwrap();
    }

    #[test]
    fn an_agent_sees_that_its_keeper_ended() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("out")).unwrap();
        // The process takes the byte that it is given, and ends.
        let keeper = ChannelKeeper::start(&["head", "-c", "1"], Path::new("/dev/stdin"), listener.as_fd()).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let error = loop {
            match keeper.accept() {
                Ok(None) => assert!(Instant::now() < end, "it has ended"),
                Ok(Some(_)) => panic!("a connection"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset), "{error}");
    }
}
