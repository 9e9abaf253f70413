//! Dials controllers.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use skein_inventory::HostAddress;
use socket2::{SockRef, TcpKeepalive};

use super::errors::LinkError;
use super::wire::Socket;

/// The port at which controllers listen unless their address says another.
pub const DEFAULT_CONTROLLER_PORT: u16 = 7443;

/// Says after how long without an acknowledgement a connection is over: a report goes out every second.
const UNACKNOWLEDGED_TIME: Duration = Duration::from_secs(15);

/// Connects to controllers.
pub(crate) trait Dial: Send + Sync {
    /// Connects to an address within `patience`. Only asking DNS may take longer.
    fn dial(&self, address: &HostAddress, patience: Duration) -> Result<Box<dyn Socket>, LinkError>;
}

/// Dials by TCP.
pub(crate) struct TcpDial;

impl Dial for TcpDial {
    fn dial(&self, address: &HostAddress, patience: Duration) -> Result<Box<dyn Socket>, LinkError> {
        let port = address.port.unwrap_or(DEFAULT_CONTROLLER_PORT);
        let found: Vec<_> = (address.host.as_str(), port).to_socket_addrs().map_err(LinkError::Unknown)?.collect();
        let (end, mut last) = (Instant::now() + patience, None);
        for (number, to) in found.iter().enumerate() {
            // Each address gets its share of the time.
            let left = end.saturating_duration_since(Instant::now()) / (found.len() - number) as u32;
            if left.is_zero() {
                break;
            }
            match TcpStream::connect_timeout(to, left).and_then(prepared) {
                Ok(socket) => return Ok(Box::new(socket)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or(LinkError::NoAddress, LinkError::Dial))
    }
}

/// Makes a dead controller known as such.
fn prepared(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    let options = SockRef::from(&socket);
    options.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIME))?;
    options
        .set_tcp_keepalive(&TcpKeepalive::new().with_time(UNACKNOWLEDGED_TIME).with_interval(UNACKNOWLEDGED_TIME))?;
    Ok(socket)
}
