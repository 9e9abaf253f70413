//! TCP sockets that stay on their NIC.
//!
//! A socket bound to an address only may still leave by another NIC of the same subnet; so sockets are
//! bound to the address *and* the device. Listeners are bound to devices too: what they accept inherits
//! it, and answers leave by the NIC that the question came in on.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

/// Waiting connections of a listener before the kernel refuses more.
const BACKLOG: i32 = 128;

/// Where a connection is to leave from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
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
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The other end does not answer, or refuses.
    #[error("cannot connect to {to}")]
    Remote {
        /// The address that was dialled.
        to: SocketAddr,
        /// What the system said.
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

/// Smallest packet that every path carries whole (RFC 8200, 5), in bytes.
pub const PACKET_BYTES_MIN: u32 = 1280;

/// Bytes of a packet that are not TCP's payload or options: IPv4's or IPv6's header without options, and TCP's.
fn header_bytes(to: SocketAddr) -> u32 {
    if to.is_ipv4() { 20 + 20 } else { 40 + 20 }
}

/// Connects to `to`, from a certain address and NIC or from wherever the routes say.
///
/// `packet_bytes`: neither end sends larger packets (TCP_MAXSEG of tcp(7); the other end hears of it as it connects).
/// None: as large as the NICs take.
pub fn dial(
    from: Option<&LocalAddress>,
    to: SocketAddr,
    packet_bytes: Option<u32>,
    timeout: Duration,
) -> Result<TcpStream, DialError> {
    let remote = |source| DialError::Remote { to, source };
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).map_err(remote)?;
    if let Some(LocalAddress { ip, nic }) = from {
        let local = |source| DialError::Local { ip: *ip, nic: nic.clone(), source };
        // Loopback needs no device and may lack the right to one.
        if !ip.is_loopback() {
            socket.bind_device(Some(nic.as_bytes())).map_err(local)?;
        }
        socket.bind(&SocketAddr::new(*ip, 0).into()).map_err(local)?;
    }
    if let Some(bytes) = packet_bytes {
        socket.set_tcp_mss(bytes - header_bytes(to)).map_err(remote)?;
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
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl ListenError {
    /// Whether another program has the port.
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// A listening socket. Its accepts do not block; [`Listener::wait`] does.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

impl Listener {
    /// Waits until any of the listeners has a connection, or for so long. Returns which have.
    pub fn wait(listeners: &[&Listener], patience: Duration) -> io::Result<Vec<usize>> {
        let mut polled: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener.socket.as_fd(), PollFlags::POLLIN)).collect();
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, patience) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = polled.iter().enumerate().filter(|(_, polled)| polled.any() == Some(true));
        Ok(ready.map(|(at, _)| at).collect())
    }

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
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| ListenError { address, nic: nic.map(str::to_owned), source })?;
        Ok(Listener { socket })
    }

    /// The port that is listened on.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
    }

    /// The next connection, or `None` if none waits.
    pub fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        match self.socket.accept() {
            Ok((socket, peer)) => {
                socket.set_tcp_nodelay(true)?;
                // Linux does not inherit it (accept(2)), others do.
                socket.set_nonblocking(false)?;
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
        let from = LocalAddress { ip: to.ip(), nic: "lo".into() };
        let dialled = dial(Some(&from), to, None, Duration::from_secs(1)).unwrap();
        assert_eq!(Listener::wait(&[&listener], Duration::from_secs(1)).unwrap(), [0]);
        let (_, peer) = listener.accept().unwrap().unwrap();
        assert_eq!(peer, dialled.local_addr().unwrap());
        assert!(listener.accept().unwrap().is_none());
    }

    #[test]
    fn packets_stay_as_small_as_wanted_at_both_ends() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = Listener::bind(address.parse().unwrap(), None).unwrap();
            let to = SocketAddr::new(address.parse::<SocketAddr>().unwrap().ip(), listener.port().unwrap());
            let dialled = dial(None, to, Some(PACKET_BYTES_MIN), Duration::from_secs(1)).unwrap();
            Listener::wait(&[&listener], Duration::from_secs(1)).unwrap();
            let (accepted, _) = listener.accept().unwrap().unwrap();
            for socket in [&dialled, &accepted] {
                let mss = socket2::SockRef::from(socket).tcp_mss().unwrap();
                assert!((1100..=PACKET_BYTES_MIN - header_bytes(to)).contains(&mss), "{mss}");
            }
        }
    }

    #[test]
    fn a_refusal_names_whom() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap()));
        drop(listener);
        let error = dial(None, to, None, Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot connect to {to}"));
        assert!(error.is_refused());
    }
}
