//! Asks the kernel about a TCP connection.

use std::io;
use std::net::TcpStream;

use nix::libc;
use nix::sys::socket::{GetSockOpt, sockopt};

nix::getsockopt_impl!(GetInfo, libc::IPPROTO_TCP, libc::TCP_INFO, TcpInfo, sockopt::GetStruct<TcpInfo>);

/// The option that asks for a [`TcpInfo`].
#[derive(Clone, Copy)]
struct GetInfo;

/// The kernel's facts of a connection: the beginning of `struct tcp_info` of `linux/tcp.h`, as of Linux 4.6 and later.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct TcpInfo {
    _state_to_received_mss: [u32; 6],
    /// The segments on the way.
    pub(super) unacked: u32,
    _sacked_to_receive_threshold: [u32; 10],
    /// The round trip time, in microseconds.
    pub(super) rtt_us: u32,
    _deviation_to_receive_space: [u32; 7],
    pub(super) total_retrans: u32,
    _pacing_to_segments: [u64; 4],
    _segments: [u32; 2],
    /// The bytes that never left. A NIC may drop what it is given, and say so.
    pub(super) notsent_bytes: u32,
    /// The least round trip time, in microseconds.
    pub(super) least_rtt_us: u32,
}

/// Returns the kernel's facts of a connection.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn of(socket: &TcpStream) -> io::Result<TcpInfo> {
    Ok(GetInfo.get(socket)?)
}

/// Returns whether the peer's kernel has acknowledged all that was sent.
pub(super) fn has_arrived(socket: &TcpStream) -> bool {
    of(socket).is_ok_and(|info| info.unacked == 0 && info.notsent_bytes == 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use super::*;

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
    fn what_nobody_takes_has_not_arrived() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        socket.write_all(&[0; 1000]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !has_arrived(&socket) {
            assert!(Instant::now() < deadline, "nobody has read, but the kernel has");
        }
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        assert!(!has_arrived(&socket));
        drop(accepted);
    }
}
