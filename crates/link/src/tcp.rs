//! TCP sockets that stay on their NIC.
//!
//! A socket bound to an address only may still leave by another NIC of the same subnet; so sockets are
//! bound to the address *and* the device. Listeners are bound to devices too: what they accept inherits
//! it, and answers leave by the NIC that the question came in on.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

/// Waiting connections of a listener before the kernel refuses more.
const BACKLOG: i32 = 128;

/// Where a connection is to leave from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct From {
    /// The local address.
    pub ip: IpAddr,
    /// The NIC that has it.
    pub nic: String,
}

/// A connection that could not be made.
#[derive(Debug, Error)]
pub enum DialError {
    /// The local end cannot be had: the address or NIC is gone.
    #[error("cannot use {ip} on {nic}")]
    Local {
        /// The address.
        ip: IpAddr,
        /// The NIC.
        nic: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The other end does not answer, or refuses.
    #[error("cannot connect to {to}")]
    Remote {
        /// Whom.
        to: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl DialError {
    /// Whether the other host answered that nobody listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self, DialError::Remote { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// Connects to `to`, from a certain address and NIC or from wherever the routes say.
pub fn dial(from: Option<&From>, to: SocketAddr, timeout: Duration) -> Result<TcpStream, DialError> {
    let remote = |source| DialError::Remote { to, source };
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).map_err(remote)?;
    if let Some(From { ip, nic }) = from {
        let local = |source| DialError::Local { ip: *ip, nic: nic.clone(), source };
        // Loopback needs no device and may lack the right to one.
        if !ip.is_loopback() {
            socket.bind_device(Some(nic.as_bytes())).map_err(local)?;
        }
        socket.bind(&SocketAddr::new(*ip, 0).into()).map_err(local)?;
    }
    socket.connect_timeout(&to.into(), timeout).map_err(remote)?;
    socket.set_tcp_nodelay(true).map_err(remote)?;
    Ok(socket.into())
}

/// An address that cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}{}", .nic.as_ref().map(|nic| format!(" of {nic}")).unwrap_or_default())]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The NIC, if only one.
    pub nic: Option<String>,
    /// Why.
    #[source]
    pub source: io::Error,
}

impl ListenError {
    /// Whether another program has the port.
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// A listening socket. Its accepts do not block longer than [`Listener::ACCEPT_WAIT`].
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

impl Listener {
    /// How long [`Self::accept`] waits.
    pub const ACCEPT_WAIT: Duration = Duration::from_millis(250);

    /// Listens on an address, on one NIC or on all. An unspecified address means both families.
    pub fn bind(address: SocketAddr, nic: Option<&str>) -> Result<Listener, ListenError> {
        let both = address.ip().is_unspecified();
        let address = if both { SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()) } else { address };
        let open = || -> io::Result<Socket> {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            if both {
                socket.set_only_v6(false)?;
            }
            // Only for ports in TIME_WAIT: two listeners still exclude each other.
            socket.set_reuse_address(true)?;
            if let Some(nic) = nic {
                socket.bind_device(Some(nic.as_bytes()))?;
            }
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            socket.set_read_timeout(Some(Self::ACCEPT_WAIT))?;
            Ok(socket)
        };
        let socket = open().map_err(|source| ListenError { address, nic: nic.map(str::to_owned), source })?;
        Ok(Listener { socket })
    }

    /// The port that is listened on.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
    }

    /// The next connection, or `None` after a while without one.
    pub fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        match self.socket.accept() {
            Ok((socket, peer)) => {
                socket.set_tcp_nodelay(true)?;
                // Inherited from the listener.
                socket.set_read_timeout(None)?;
                let peer = peer.as_socket().ok_or_else(|| io::Error::other("a peer without an address"))?;
                Ok(Some((socket.into(), canonical(peer))))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(None),
                // The peer gave up while it waited here.
                io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

/// IPv4 addresses as such, also where a socket for both families shows them as IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_said_so() {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let first = Listener::bind(any, None).unwrap();
        let taken = SocketAddr::new(any.ip(), first.port().unwrap());
        assert!(Listener::bind(taken, None).unwrap_err().is_in_use());
    }

    #[test]
    fn connects_from_the_loopback_address() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap()));
        let from = From { ip: to.ip(), nic: "lo".into() };
        let dialled = dial(Some(&from), to, Duration::from_secs(1)).unwrap();
        let (_, peer) = listener.accept().unwrap().unwrap();
        assert_eq!(peer, dialled.local_addr().unwrap());
    }

    #[test]
    fn a_refusal_names_whom() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap()));
        drop(listener);
        let error = dial(None, to, Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot connect to {to}"));
        assert!(error.is_refused());
    }
}
