//! Is the sockets over which an agent may come.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connected socket.
pub trait Socket: Read + Write + Send {
    /// Bounds each read and write.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn set_patience(&self, time: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn set_patience(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Socket for UnixStream {
    fn set_patience(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}
