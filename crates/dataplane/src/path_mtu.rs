//! Finds how large the packets of a path may be, before data goes over the path.

use std::time::Duration;

use serde::Serialize;
use skein_link::{Dial, Link, LinkError, PACKET_BYTES_MIN, PacketProbe};
use skein_session::frame::{FrameKind, HEADER_BYTES, Header};
use skein_session::limits::PROBE_BYTES_MAX;

use crate::handshake::HandshakeFailed;

/// Bounds the wait for a probe that arrived. Other threads of a busy host may keep the program waiting that sends it
/// back, and those of a busy test even longer.
const ANSWER_TIME: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 3 });
/// Holds the sizes that are tried if the largest packets are lost: Ethernet's, what most tunnels leave of those (VXLAN,
/// WireGuard, GRE over IPsec), and what every path carries.
const PACKET_BYTES_TRIED: [u32; 3] = [1500, 1400, PACKET_BYTES_MIN];

/// Which packets pass a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) enum PathMtu {
    /// All packets pass that the NICs at the path's ends send.
    Whole,
    /// No packet passes that is larger than this, or than the next larger size that was tried.
    Small(u32),
}

impl PathMtu {
    /// Returns the largest packet that a connection may send; `None`: as large as the NICs take.
    pub(crate) fn limit(self) -> Option<u32> {
        match self {
            PathMtu::Whole => None,
            PathMtu::Small(bytes) => Some(bytes),
        }
    }
}

/// Finds which packets pass between the ends of `dial`. `mtu` is that of the NICs; 0: not known.
///
/// # Errors
/// The path does not work at all, or is busy: nothing was found.
pub(crate) fn discover_path_mtu(link: &dyn Link, dial: &Dial, mtu: u32) -> Result<PathMtu, HandshakeFailed> {
    if dial.to.ip().is_loopback() {
        return Ok(PathMtu::Whole);
    }
    let mut last = match pass(link, dial, None)? {
        PacketProbe::Whole { .. } => return Ok(PathMtu::Whole),
        other => other,
    };
    for bytes in PACKET_BYTES_TRIED.into_iter().filter(|bytes| mtu == 0 || *bytes < mtu) {
        match pass(link, dial, Some(bytes))? {
            // A cable may have been out for a moment. A packet that is lost for its size is lost again.
            PacketProbe::Whole { .. } => {
                let is_whole = matches!(pass(link, dial, None)?, PacketProbe::Whole { .. });
                return Ok(if is_whole { PathMtu::Whole } else { PathMtu::Small(bytes) });
            }
            other => last = other,
        }
    }
    // The packet is not lost for its size, then: there is a black hole, or a program that does not answer.
    let late = match last {
        PacketProbe::Lost => LinkError::Io(std::io::ErrorKind::HostUnreachable.into()),
        PacketProbe::Whole { .. } | PacketProbe::Unanswered => LinkError::Late(ANSWER_TIME),
    };
    Err(late.into())
}

/// Returns whether the largest packets pass now.
pub(crate) fn passes_full_size(link: &dyn Link, dial: &Dial) -> bool {
    matches!(pass(link, dial, None), Ok(PacketProbe::Whole { .. }))
}

/// Tries whether packets up to a limit pass, by a frame that fills one packet and comes back.
pub(crate) fn pass(link: &dyn Link, dial: &Dial, limit: Option<u32>) -> Result<PacketProbe, HandshakeFailed> {
    let probe = |bytes: usize| {
        let payload = bytes.saturating_sub(HEADER_BYTES).min(PROBE_BYTES_MAX);
        let header = Header { kind: FrameKind::Probe, stream: 0, offset: 0, len: payload as u32 };
        [&header.encode()[..], &vec![0; payload]].concat()
    };
    let dial = Dial { packet_bytes: limit, ..dial.clone() };
    Ok(link.probe(&dial, &probe, ANSWER_TIME)?)
}
