//! Finds whether packets as large as a connection would send pass a path.
//!
//! A switch with a smaller MTU than the hosts beside it drops larger packets without a word. TCP repeats the same large
//! segment for a quarter of an hour (net.ipv4.tcp_mtu_probing, which would help, is off by default and not a socket's
//! to set), while small packets pass all the time. So a segment of the largest size is sent on a connection that is
//! made for nothing else, and a segment comes back. The kernel's counters tell loss from a program that takes its time:
//! a segment that arrived is acknowledged by the other kernel, whatever its programs do.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{GetSockOpt, sockopt};
use socket2::SockRef;

use super::dial::dial;
use crate::link::{Dial, LinkError, PacketProbe};

/// Says how often the kernel is asked. The first repetition comes after 200 ms at the earliest (TCP_RTO_MIN of
/// `net/tcp.h`).
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Says how often a segment is repeated without an acknowledgement until it counts as lost for its size, or the path as
/// dead. The first losses may be chance. The first repetition may be early (RFC 8985, 7), so this is some 600 ms after
/// the segment was sent.
const REPEATED_MAX: u32 = 3;
/// Says the same as a time, for where the kernel does not count what it repeats: if a virtual NIC whose other end has a
/// smaller MTU drops the segment before it leaves the host. Three attempts have passed by then, and four round trips
/// beside.
const REPEATED_TIME: Duration = Duration::from_millis(1200);

nix::getsockopt_impl!(GetInfo, libc::IPPROTO_TCP, libc::TCP_INFO, TcpInfo, sockopt::GetStruct<TcpInfo>);

/// The option that asks for a [`TcpInfo`].
#[derive(Clone, Copy)]
struct GetInfo;

/// The kernel's facts of a connection: the beginning of `struct tcp_info` of `linux/tcp.h`, as of Linux 4.6 and later.
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpInfo {
    _state_to_received_mss: [u32; 6],
    /// The segments on the way.
    unacked: u32,
    _sacked_to_receive_threshold: [u32; 10],
    /// The round trip time, in microseconds.
    rtt_us: u32,
    _deviation_to_receive_space: [u32; 7],
    total_retrans: u32,
    _pacing_to_segments: [u64; 4],
    _segments: [u32; 2],
    /// The bytes that never left. A NIC may drop what it is given, and say so.
    notsent_bytes: u32,
    /// The least round trip time, in microseconds.
    least_rtt_us: u32,
}

/// Dials, and finds whether one full segment comes back. What follows the segment would arrive, and confuse the count
/// of repetitions. `probe` makes the segment, of no more bytes than it is asked for.
///
/// # Errors
/// Nobody answers; those of [`send_probe`].
pub(super) fn try_segment(
    to: &Dial,
    probe: &dyn Fn(usize) -> Vec<u8>,
    answer_time: Duration,
) -> Result<PacketProbe, LinkError> {
    let socket = dial(to)?;
    // The size is what both ends' NICs allow.
    let segment = SockRef::from(&socket).tcp_mss()? as usize;
    Ok(send_probe(&socket, &probe(segment), answer_time)?)
}

/// Sends `probe`, and waits at most `patience` for an answer of the same length.
///
/// # Errors
/// The connection was refused or reset, or ended early. That says nothing of packets' sizes.
fn send_probe(socket: &TcpStream, probe: &[u8], patience: Duration) -> io::Result<PacketProbe> {
    let begun = Instant::now();
    socket.set_read_timeout(Some(LOOK_PERIOD))?;
    socket.set_write_timeout(Some(LOOK_PERIOD))?;
    let (mut sent, mut received, mut buffer) = (0, 0, [0; 4096]);
    loop {
        let moved = match sent < probe.len() {
            true => (&mut &*socket).write(&probe[sent..]).inspect(|bytes| sent += bytes),
            false => (&mut &*socket).read(&mut buffer).inspect(|bytes| received += bytes),
        };
        match moved {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if received >= probe.len() {
            let round_trip = Duration::from_micros(GetInfo.get(socket)?.least_rtt_us.into()).min(begun.elapsed());
            return Ok(PacketProbe::Whole { round_trip });
        }
        let info = GetInfo.get(socket)?;
        let given = REPEATED_TIME + 4 * Duration::from_micros(info.rtt_us.into());
        let is_repeated = info.total_retrans >= REPEATED_MAX || begun.elapsed() >= given.min(patience);
        if (info.unacked > 0 || info.notsent_bytes > 0) && is_repeated {
            return Ok(PacketProbe::Lost);
        }
        if begun.elapsed() >= patience {
            return Ok(PacketProbe::Unanswered);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Returns what becomes of a probe of 1000 bytes, of which `answered` come back at once.
    fn probed(answered: usize) -> io::Result<PacketProbe> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (to, time) = (listener.local_addr().unwrap(), Duration::from_secs(1));
        let to = Dial { from: None, to, packet_bytes: None, answer_time: time, handshake_time: time };
        let socket = dial(&to).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let answering = thread::spawn(move || {
            let mut probe = [0; 1000];
            accepted.read_exact(&mut probe).unwrap();
            accepted.write_all(&probe[..answered]).unwrap();
            (answered > 0).then_some(accepted)
        });
        // Only what never comes whole is waited for to the end. The thread may be late on a busy machine.
        let patience = if answered == 999 { Duration::from_millis(300) } else { Duration::from_secs(60) };
        let result = send_probe(&socket, &[0; 1000], patience);
        drop(answering.join().unwrap());
        result
    }

    #[test]
    fn the_structure_is_the_kernels() {
        let at = [
            std::mem::offset_of!(TcpInfo, unacked),
            std::mem::offset_of!(TcpInfo, rtt_us),
            std::mem::offset_of!(TcpInfo, total_retrans),
            std::mem::offset_of!(TcpInfo, notsent_bytes),
            std::mem::offset_of!(TcpInfo, least_rtt_us),
        ];
        assert_eq!((at, size_of::<TcpInfo>()), ([24, 68, 100, 144, 148], 152));
        assert_eq!(
            at[..3],
            [
                std::mem::offset_of!(libc::tcp_info, tcpi_unacked),
                std::mem::offset_of!(libc::tcp_info, tcpi_rtt),
                std::mem::offset_of!(libc::tcp_info, tcpi_total_retrans),
            ]
        );
    }

    #[test]
    fn what_arrived_is_not_lost_whatever_comes_back() {
        let whole = probed(1000).unwrap();
        assert!(matches!(whole, PacketProbe::Whole { round_trip } if round_trip > Duration::ZERO), "{whole:?}");
        assert_eq!(probed(999).unwrap(), PacketProbe::Unanswered);
        assert_eq!(probed(0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
