//! The commands' end.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{LineError, Refusal, Reply, Request, read_line, write_line};

/// A call that came to nothing.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CallError {
    #[error("no agent listens on {}: start it (systemctl start skein-agent, or `skein agent`)", path.display())]
    NoAgent {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the agent does not answer")]
    Broken(#[source] LineError),
    #[error("{}{}{}", .0.message, if .0.cure.is_empty() { "" } else { ": " }, .0.cure)]
    Refused(Refusal),
    #[error("the agent answered something else than was asked: {0}; is it of another version?")]
    Unexpected(String),
}

/// Calls an agent.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Of the agent that listens on `socket`.
    pub fn new(socket: &Path) -> Client {
        Client { socket: socket.to_owned() }
    }

    /// Asks, tells `progress` what comes before the end, and returns that. [`Reply::Error`] becomes an error.
    ///
    /// `patience`: how long there may be no word from the agent.
    pub fn call(
        &self,
        request: &Request,
        patience: Duration,
        mut progress: impl FnMut(&crate::Migration),
    ) -> Result<Reply, CallError> {
        let connect = UnixStream::connect(&self.socket);
        let mut stream = connect.map_err(|source| CallError::NoAgent { path: self.socket.clone(), source })?;
        let broken = |source| CallError::Broken(LineError::Io(source));
        stream.set_read_timeout(Some(patience)).map_err(broken)?;
        stream.set_write_timeout(Some(patience)).map_err(broken)?;
        write_line(&mut stream, request).map_err(broken)?;
        let mut replies = BufReader::new(stream);
        loop {
            match read_line(&mut replies).map_err(CallError::Broken)? {
                Reply::Progress(migration) => progress(&migration),
                Reply::Error(refusal) => return Err(CallError::Refused(refusal)),
                reply => return Ok(reply),
            }
        }
    }
}
