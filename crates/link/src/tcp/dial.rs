//! Makes TCP sockets that leave by their NIC.
//!
//! A socket that is bound to an address only may still leave by another NIC of the same subnet. So sockets are bound to
//! the address *and* the device.

use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Protocol, Socket, Type};

use crate::link::{Dial, DialError, LocalAddress};

/// Holds the largest packet that every path carries whole (RFC 8200, 5), in bytes.
pub const PACKET_BYTES_MIN: u32 = 1280;

/// Returns how many bytes of a packet are not TCP's payload or options: the headers of IPv4 or IPv6 without options,
/// and TCP's.
fn header_bytes(to: SocketAddr) -> u32 {
    if to.is_ipv4() { 20 + 20 } else { 40 + 20 }
}

/// Connects to the other end. The size of packets is TCP_MAXSEG of tcp(7); the other end learns the size as the socket
/// connects.
pub(super) fn dial(dial: &Dial) -> Result<TcpStream, DialError> {
    let to = dial.to;
    let remote = |source| DialError::Remote { to, source };
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).map_err(remote)?;
    if let Some(LocalAddress { ip, nic, ports }) = &dial.from {
        let local = |source| DialError::Local { ip: *ip, nic: nic.clone(), source };
        // Loopback needs no device, and the process may lack the right to bind to a device.
        if !ip.is_loopback() {
            socket.bind_device(Some(nic.as_bytes())).map_err(local)?;
        }
        let bind = |port: u16| socket.bind(&SocketAddr::new(*ip, port).into());
        if !ports.iter().any(|port| bind(*port).is_ok()) {
            bind(0).map_err(local)?;
        }
    }
    if let Some(bytes) = dial.packet_bytes {
        socket.set_tcp_mss(bytes - header_bytes(to)).map_err(remote)?;
    }
    socket.connect_timeout(&to.into(), dial.answer_time).map_err(remote)?;
    socket.set_tcp_nodelay(true).map_err(remote)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tcp::listeners::Listener;

    fn to(to: SocketAddr) -> Dial {
        let time = Duration::from_secs(1);
        Dial { from: None, to, packet_bytes: None, answer_time: time, handshake_time: time }
    }

    #[test]
    fn connects_from_the_loopback_address() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let to = to(SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap())));
        let from = Some(LocalAddress { ip: to.to.ip(), nic: "lo".into(), ports: Vec::new() });
        let dialled = dial(&Dial { from, ..to }).unwrap();
        assert_eq!(Listener::wait(&[&listener], Duration::from_secs(1)).unwrap(), [0]);
        let (_, peer) = listener.accept().unwrap().unwrap();
        assert_eq!(peer, dialled.local_addr().unwrap());
        assert!(listener.accept().unwrap().is_none());
    }

    #[test]
    fn the_first_free_port_is_taken() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let to = to(SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap())));
        let taken = listener.port().unwrap();
        let port_of = |ports: Vec<u16>| {
            let from = Some(LocalAddress { ip: to.to.ip(), nic: "lo".into(), ports });
            let port = dial(&Dial { from, ..to.clone() }).unwrap().local_addr().unwrap().port();
            assert_ne!(port, taken);
            port
        };
        let takes_free = || {
            // Nobody has this port any more, but others may take the port meanwhile.
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            port_of(vec![taken, free]) == free
        };
        assert!((0..10).any(|_| takes_free()));
        port_of(vec![taken]);
    }

    #[test]
    fn packets_stay_as_small_as_wanted_at_both_ends() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = Listener::bind(address.parse().unwrap(), None).unwrap();
            let at = SocketAddr::new(address.parse::<SocketAddr>().unwrap().ip(), listener.port().unwrap());
            let dialled = dial(&Dial { packet_bytes: Some(PACKET_BYTES_MIN), ..to(at) }).unwrap();
            Listener::wait(&[&listener], Duration::from_secs(1)).unwrap();
            let (accepted, _) = listener.accept().unwrap().unwrap();
            for socket in [&dialled, &accepted] {
                let mss = socket2::SockRef::from(socket).tcp_mss().unwrap();
                assert!((1100..=PACKET_BYTES_MIN - header_bytes(at)).contains(&mss), "{mss}");
            }
        }
    }

    #[test]
    fn a_refusal_names_whom() {
        // The port is held, so that no other program listens there.
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let at = held.local_addr().unwrap().as_socket().unwrap();
        let error = dial(&to(at)).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot connect to {at}"));
        assert!(error.is_refused());
    }
}
