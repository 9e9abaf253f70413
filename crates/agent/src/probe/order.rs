//! Says what a probe asks of the other end, by the names of its streams, and what the other end answers.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bounds how long the other end sends, in milliseconds.
pub(super) const SOURCE_RANGE_MS: RangeInclusive<u64> = 1..=3000;
/// Bounds the bytes of a transfer: 3 s of 20 Gb/s.
pub(super) const TRANSFER_BYTES_MAX: u64 = 8 << 30;
/// Says how often the end that counts says how much came.
pub(super) const REPORT_PERIOD: Duration = Duration::from_millis(10);
/// Holds the bytes of such a report.
pub(super) const REPORT_BYTES: usize = 16;
/// Bounds the answer to [`ProbeOrder::Load`].
pub(super) const LOAD_BYTES_MAX: usize = 4096;
/// Says how much is sent at once.
pub(super) const PIECE_BYTES: usize = 128 << 10;

/// What a stream of a probe is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOrder {
    /// The other end says how busy its host is, as [`AgentLoad`], and is done.
    Load,
    /// The other end drops what comes, and says every [`REPORT_PERIOD`] how much that was.
    Sink,
    /// The measuring end is done: it is another host's turn.
    Done,
    /// The other end sends.
    Source {
        /// The number of the path to send on; `None`: all paths.
        path: Option<u32>,
        /// For how long.
        time: Duration,
    },
}

impl fmt::Display for ProbeOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeOrder::Load => f.write_str("load"),
            ProbeOrder::Sink => f.write_str("sink"),
            ProbeOrder::Done => f.write_str("done"),
            ProbeOrder::Source { path: None, time } => write!(f, "source/all/{}", time.as_millis()),
            ProbeOrder::Source { path: Some(path), time } => write!(f, "source/{path}/{}", time.as_millis()),
        }
    }
}

impl FromStr for ProbeOrder {
    type Err = ();

    fn from_str(text: &str) -> Result<ProbeOrder, ()> {
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u64>().map_err(|_| ()),
            false => Err(()),
        };
        match (text, text.strip_prefix("source/").and_then(|rest| rest.split_once('/'))) {
            ("load", _) => Ok(ProbeOrder::Load),
            ("sink", _) => Ok(ProbeOrder::Sink),
            ("done", _) => Ok(ProbeOrder::Done),
            (_, Some((path, ms))) => {
                let path = match path {
                    "all" => None,
                    path => Some(u32::try_from(number(path)?).map_err(|_| ())?),
                };
                let ms = Some(number(ms)?).filter(|ms| SOURCE_RANGE_MS.contains(ms)).ok_or(())?;
                Ok(ProbeOrder::Source { path, time: Duration::from_millis(ms) })
            }
            _ => Err(()),
        }
    }
}

/// How busy a host and its agent were so far. Only differences say something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AgentLoad {
    /// The agent's CPU time, in microseconds.
    pub(super) agent_us: u64,
    /// How long all cores together were busy, in milliseconds.
    pub(super) busy_ms: u64,
    /// How long all cores together were there, in milliseconds.
    pub(super) cores_ms: u64,
    /// The TCP segments that were sent, and how many of them again.
    pub(super) segments: u64,
    pub(super) repeated: u64,
    /// Whether something else than a probe is carried to or from the host.
    pub(super) carries_else: bool,
}

impl AgentLoad {
    /// Returns what came about since another moment. A peer's numbers may be anything.
    pub(super) fn since(self, before: AgentLoad) -> AgentLoad {
        AgentLoad {
            agent_us: self.agent_us.saturating_sub(before.agent_us),
            busy_ms: self.busy_ms.saturating_sub(before.busy_ms),
            cores_ms: self.cores_ms.saturating_sub(before.cores_ms),
            segments: self.segments.saturating_sub(before.segments),
            repeated: self.repeated.saturating_sub(before.repeated),
            carries_else: self.carries_else,
        }
    }
}

/// What a sink has counted at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// The time since the first byte, in microseconds.
    pub(super) us: u64,
    /// The bytes so far.
    pub(super) bytes: u64,
}

impl Count {
    pub(super) fn encode(self) -> [u8; REPORT_BYTES] {
        let mut report = [0; REPORT_BYTES];
        report[..8].copy_from_slice(&self.us.to_be_bytes());
        report[8..].copy_from_slice(&self.bytes.to_be_bytes());
        report
    }

    pub(super) fn decode(report: &[u8; REPORT_BYTES]) -> Count {
        let number = |at: usize| report[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Count { us: number(0), bytes: number(8) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn orders_are_bounded() {
        let source = |text: &str| text.parse::<ProbeOrder>();
        assert_eq!(source("source/all/250"), Ok(ProbeOrder::Source { path: None, time: Duration::from_millis(250) }));
        for bad in ["", "loads", "sink/", "source", "source/1", "source/1/0", "source/1/3001", "source/-1/5"] {
            assert_eq!(source(bad), Err(()), "{bad}");
        }
        for bad in ["source/4294967296/5", "source/1/5/5", "source/+1/5", "source//5", "source/ALL/5"] {
            assert_eq!(source(bad), Err(()), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn orders_are_read_as_they_are_written(path: Option<u32>, ms in SOURCE_RANGE_MS) {
            let time = Duration::from_millis(ms);
            for order in [ProbeOrder::Load, ProbeOrder::Sink, ProbeOrder::Done, ProbeOrder::Source { path, time }] {
                prop_assert_eq!(order.to_string().parse(), Ok(order));
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}", more in "source/[a-z0-9+-]{0,12}/.{0,25}") {
            for text in [text, more] {
                if let Ok(order) = text.parse::<ProbeOrder>() {
                    prop_assert_eq!(order.to_string().parse(), Ok(order));
                }
            }
        }

        #[test]
        fn counts_survive_the_wire(us: u64, bytes: u64) {
            prop_assert_eq!(Count::decode(&Count { us, bytes }.encode()), Count { us, bytes });
        }

        #[test]
        fn what_a_peer_says_of_its_load_is_read_or_refused(a: u64, b: u64, text in ".{0,60}") {
            let _ = serde_json::from_str::<AgentLoad>(&text);
            let load = AgentLoad { agent_us: a, repeated: b, ..AgentLoad::default() };
            let read: AgentLoad = serde_json::from_slice(&serde_json::to_vec(&load).unwrap()).unwrap();
            prop_assert_eq!(read, load);
            let _ = read.since(AgentLoad { agent_us: b, repeated: a, ..load });
        }
    }
}
