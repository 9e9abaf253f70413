//! Reads how many segments TCP sent, and how many of them again: in the network namespace of the calling thread.

use crate::{ProcError, read_proc};

/// What TCP sent since the namespace began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSegments {
    /// All segments, but those that were sent again.
    pub sent: u64,
    /// The segments that were sent again.
    pub repeated: u64,
}

/// Returns the counters of all TCP connections together (RFC 4022, `tcpOutSegs` and `tcpRetransSegs`).
///
/// # Errors
/// The kernel's file cannot be read or understood.
pub fn tcp_segments() -> Result<TcpSegments, ProcError> {
    let path = "/proc/thread-self/net/snmp";
    parse(&read_proc(path)?).ok_or_else(|| ProcError::Field { path: path.to_owned(), field: "Tcp" })
}

/// Reads the file: for each protocol a line of names, and a line of their values.
fn parse(text: &str) -> Option<TcpSegments> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let of = |wanted: &str| {
        let place = names.split_ascii_whitespace().position(|name| name == wanted)?;
        values.split_ascii_whitespace().nth(place)?.parse().ok()
    };
    Some(TcpSegments { sent: of("OutSegs")?, repeated: of("RetransSegs")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoMin MaxConn OutSegs RetransSegs\nTcp: 200 -1 77 3\nUdp: X\nUdp: 1\n";
        assert_eq!(parse(text), Some(TcpSegments { sent: 77, repeated: 3 }));
        assert_eq!(parse("Tcp: OutSegs\nTcp: 1"), None);
        assert_eq!(parse(""), None);
        tcp_segments().unwrap();
    }
}
