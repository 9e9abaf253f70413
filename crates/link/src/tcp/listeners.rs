//! Listens on NICs, and takes what arrives there.
//!
//! Listeners are bound to devices. An accepted socket inherits the device, so answers leave by the NIC that the
//! question came in on.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};

use super::halves::{SharedSocket, SocketShutdown};
use super::pending_connection::PendingConnection;
use crate::link::{LinkError, Pending, Shutdown};
use crate::listen::{Incoming, ListenError, Listeners, ListeningNic, Security};

/// Bounds how many connections wait at a listener before the kernel refuses more.
const BACKLOG: i32 = 128;

/// A listener, and the NIC that the listener is bound to, if any.
#[derive(Clone)]
struct Listening {
    nic: Option<ListeningNic>,
    listener: Arc<Listener>,
}

/// Takes connections over TCP, under TLS and without.
pub struct TcpListeners {
    tls: Arc<ServerConfig>,
    listening: Mutex<Vec<Listening>>,
}

impl TcpListeners {
    /// Makes listeners that listen nowhere yet. `tls` is shown to peers that dial under TLS.
    pub fn new(tls: Arc<ServerConfig>) -> TcpListeners {
        TcpListeners { tls, listening: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Listening>> {
        // Nothing panics under this lock.
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listeners for TcpListeners {
    fn listen(&self, address: SocketAddr, nic: Option<ListeningNic>) -> Result<u16, ListenError> {
        let listener = Listener::bind(address, nic.as_ref().map(|nic| &nic.name[..]))?;
        let port = listener.port().unwrap_or(address.port());
        self.lock().push(Listening { nic, listener: Arc::new(listener) });
        Ok(port)
    }

    fn retain(&self, keep: &dyn Fn(&ListeningNic) -> bool) {
        self.lock().retain(|listening| listening.nic.as_ref().is_none_or(keep));
    }

    fn nics(&self) -> BTreeSet<u32> {
        self.lock().iter().filter_map(|listening| Some(listening.nic.as_ref()?.index)).collect()
    }

    fn accept(&self, patience: Duration) -> io::Result<Vec<io::Result<Box<dyn Incoming>>>> {
        let all = self.lock().clone();
        let listeners: Vec<&Listener> = all.iter().map(|listening| &*listening.listener).collect();
        let ready = Listener::wait(&listeners, patience)?;
        let taken = ready.into_iter().filter_map(|at| {
            let Listening { nic, listener } = &all[at];
            let (socket, remote) = match listener.accept() {
                Ok(taken) => taken?,
                Err(error) => return Some(Err(error)),
            };
            let nic = nic.as_ref().map(|nic| nic.name.clone());
            let incoming = TcpIncoming { shared: Arc::new(socket.into()), nic, remote, tls: self.tls.clone() };
            Some(Ok(Box::new(incoming) as Box<dyn Incoming>))
        });
        Ok(taken.collect())
    }

    fn close(&self) {
        self.lock().clear();
    }
}

/// An accepted socket.
struct TcpIncoming {
    shared: Arc<SharedSocket>,
    nic: Option<String>,
    remote: SocketAddr,
    tls: Arc<ServerConfig>,
}

impl Incoming for TcpIncoming {
    fn nic(&self) -> Option<&str> {
        self.nic.as_deref()
    }

    fn local(&self) -> io::Result<SocketAddr> {
        Ok(canonical(self.shared.socket.local_addr()?))
    }

    fn remote(&self) -> SocketAddr {
        self.remote
    }

    fn first_byte(&self, patience: Duration) -> Option<u8> {
        let (socket, mut first) = (&self.shared.socket, [0]);
        let peeked = socket.set_read_timeout(Some(patience)).and_then(|()| socket.peek(&mut first));
        peeked.is_ok_and(|n| n == 1).then_some(first[0])
    }

    fn shutdown(&self) -> Box<dyn Shutdown> {
        Box::new(SocketShutdown(self.shared.clone()))
    }

    fn open(self: Box<Self>, security: Security, patience: Duration) -> Result<Box<dyn Pending>, LinkError> {
        Ok(Box::new(match security {
            Security::Plain => PendingConnection::plain(self.shared, patience),
            Security::Encrypted => PendingConnection::server(self.shared, &self.tls, patience)?,
        }))
    }
}

/// A listening socket. Its accepts do not block; [`Listener::wait`] does.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Socket,
}

impl Listener {
    /// Waits until any of the listeners has a connection, for at most `patience`. Returns which listeners have.
    pub(super) fn wait(listeners: &[&Listener], patience: Duration) -> io::Result<Vec<usize>> {
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
    pub(super) fn bind(address: SocketAddr, nic: Option<&str>) -> Result<Listener, ListenError> {
        let both = address.ip().is_unspecified();
        let address = if both { SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()) } else { address };
        let open = || -> io::Result<Socket> {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            if both {
                socket.set_only_v6(false)?;
            }
            // The option matters only for ports in TIME_WAIT: two listeners still exclude each other.
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

    /// Returns the port that is listened on.
    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
    }

    /// Returns the next connection, or `None` if none waits.
    pub(super) fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        match self.socket.accept() {
            Ok((socket, peer)) => {
                socket.set_tcp_nodelay(true)?;
                // Linux does not inherit the setting (accept(2)), other systems do.
                socket.set_nonblocking(false)?;
                let peer = peer.as_socket().ok_or_else(|| io::Error::other("a peer without an address"))?;
                Ok(Some((socket.into(), canonical(peer))))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(None),
                // The peer gave up while its connection waited here.
                io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

/// Returns IPv4 addresses as IPv4, also if a socket for both families shows them as IPv6.
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
}
