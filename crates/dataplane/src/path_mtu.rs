//! How large the packets of a path may be: found out before data goes over it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use skein_link::{LinkError, LocalAddress, PACKET_BYTES_MIN, PacketProbe};
use skein_session::frame::{FrameKind, HEADER_BYTES, Header};
use skein_session::limits::PROBE_BYTES_MAX;

use crate::handshake::HandshakeFailed;

/// A probe that arrived comes back by then, from a program that other threads of a busy host keep waiting.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// What is tried where the largest packets are lost: Ethernet's, what most tunnels leave of those (VXLAN, WireGuard,
/// GRE over IPsec), and what every path carries.
const PACKET_BYTES_TRIED: [u32; 3] = [1500, 1400, PACKET_BYTES_MIN];

/// Which packets pass a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) enum PathMtu {
    /// All that the NICs at its ends send.
    Whole,
    /// None larger than this, or than the next larger size that was tried.
    Small(u32),
}

impl PathMtu {
    /// The largest packet that a connection may send; none: as the NICs have it.
    pub(crate) fn limit(self) -> Option<u32> {
        match self {
            PathMtu::Whole => None,
            PathMtu::Small(bytes) => Some(bytes),
        }
    }
}

/// Finds out which packets pass. `mtu`: that of the NICs, 0: not known.
///
/// # Errors
/// The path does not work at all, or is busy: nothing was found out.
pub(crate) fn discover_path_mtu(
    from: &LocalAddress,
    to: SocketAddr,
    mtu: u32,
    patience: Duration,
) -> Result<PathMtu, HandshakeFailed> {
    if to.ip().is_loopback() {
        return Ok(PathMtu::Whole);
    }
    let mut last = match pass(from, to, None, patience)? {
        PacketProbe::Whole => return Ok(PathMtu::Whole),
        other => other,
    };
    for bytes in PACKET_BYTES_TRIED.into_iter().filter(|bytes| mtu == 0 || *bytes < mtu) {
        match pass(from, to, Some(bytes), patience)? {
            // It may have been a cable that was out for a moment: what is lost for its size is lost again.
            PacketProbe::Whole => {
                let again = pass(from, to, None, patience)?;
                return Ok(if again == PacketProbe::Whole { PathMtu::Whole } else { PathMtu::Small(bytes) });
            }
            other => last = other,
        }
    }
    // Not for its size, then: a black hole, or a program that does not answer.
    let late = match last {
        PacketProbe::Lost => std::io::Error::from(std::io::ErrorKind::HostUnreachable).into(),
        PacketProbe::Whole | PacketProbe::Unanswered => LinkError::Late(ANSWER_TIME),
    };
    Err(late.into())
}

/// Whether the largest packets pass now.
pub(crate) fn passes_full_size(from: &LocalAddress, to: SocketAddr, patience: Duration) -> bool {
    matches!(pass(from, to, None, patience), Ok(PacketProbe::Whole))
}

fn pass(
    from: &LocalAddress,
    to: SocketAddr,
    limit: Option<u32>,
    patience: Duration,
) -> Result<PacketProbe, HandshakeFailed> {
    let socket = skein_link::dial(Some(from), to, limit, patience)?;
    let io = |error| HandshakeFailed::Link(LinkError::Io(error));
    // One full segment and no more: what follows it would arrive, and confuse the count of repetitions.
    let segment = skein_link::segment_bytes(&socket).map_err(io)?;
    let payload = segment.saturating_sub(HEADER_BYTES).min(PROBE_BYTES_MAX);
    let header = Header { kind: FrameKind::Probe, stream: 0, offset: 0, len: payload as u32 };
    let mut probe = vec![0; HEADER_BYTES + payload];
    probe[..HEADER_BYTES].copy_from_slice(&header.encode());
    skein_link::probe(&socket, &probe, ANSWER_TIME).map_err(io)
}
