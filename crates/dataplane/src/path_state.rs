//! Is what a dialer keeps of a path.

use std::time::{Duration, Instant};

use skein_host::PathConnections;
use skein_session::PathId;
use skein_session::pairs::Pair;
use skein_session::path_use::PathUse;

use crate::host_nics::Carriers;
use crate::network_problem::NetworkProblem;
use crate::path_mtu::PathMtu;
use crate::rail_pause::RailPause;
use crate::running_session::RunningSession;

/// Says after how long a path that never worked is tried again; the time is doubled after each attempt.
pub(crate) const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Says how often a path that loses large packets is tried again with them.
const PACKETS_PERIOD: Duration = Duration::from_secs(60);
/// Bounds the words that say why a path has no RDMA: they may be another host's, or a library's.
const WHY_CHARS_MAX: usize = 240;
/// Says how many members of a bond get connections of their own.
const MEMBERS_MAX: u32 = 8;

/// A path, at the end that dials.
#[derive(Debug)]
pub(crate) struct PathState {
    /// The pair, as it was found last.
    pub(crate) pair: Pair,
    pub(crate) path: PathId,
    pub(crate) has_worked: bool,
    /// The attempts that failed, of a path that never worked.
    pub(crate) attempts: u32,
    pub(crate) retry_at: Instant,
    pub(crate) retry_after: Duration,
    pub(crate) dialling: bool,
    /// Whether a connection over RDMA is being opened, which may take long. The path's others are seen to meanwhile.
    pub(crate) is_opening_rail: bool,
    /// Which packets pass, the MTU of the pair's NICs at that time, and the time.
    pub(crate) packets: Option<(PathMtu, u32, Instant)>,
    /// For how long the path does without RDMA.
    pub(crate) rail_pause: RailPause,
    /// Why the path's data does not go over RDMA, as of the last attempt; `None`: it does, or was not to.
    pub(crate) no_rail: Option<String>,
    /// What the path carries.
    pub(crate) carries: PathUse,
    /// What carries this end's traffic, as of when the path was last dialled.
    pub(crate) carriers: Option<Carriers>,
    /// The data connections that the path is to have, if it carries data.
    pub(crate) connections: PathConnections,
}

impl PathState {
    pub(crate) fn new(pair: Pair, path: PathId) -> PathState {
        PathState {
            pair,
            path,
            has_worked: false,
            attempts: 0,
            retry_at: Instant::now(),
            retry_after: RETRY_FIRST,
            dialling: false,
            is_opening_rail: false,
            packets: None,
            rail_pause: RailPause::default(),
            no_rail: None,
            carries: PathUse::Data,
            carriers: None,
            connections: PathConnections::default(),
        }
    }

    /// Returns whether a thread opens connections of the path.
    pub(crate) fn is_worked_on(&self) -> bool {
        self.dialling || self.is_opening_rail
    }

    /// Returns the bond's members if the connections' ports choose among them.
    pub(crate) fn members(&self) -> u32 {
        let bond = self.carriers.as_ref().and_then(|carriers| carriers.bond.as_ref());
        bond.filter(|bond| bond.is_by_ports()).map_or(1, |bond| bond.members.clamp(1, MEMBERS_MAX))
    }

    /// Returns how many data connections the path is to have now.
    pub(crate) fn connections_now(&self) -> usize {
        if self.carries == PathUse::Data { self.connections.number as usize } else { 0 }
    }

    /// Notes why the path's data does not go over RDMA.
    pub(crate) fn note_no_rail(&mut self, why: &str) {
        let why = why.chars().map(|c| if c.is_control() { ' ' } else { c });
        self.no_rail = Some(why.take(WHY_CHARS_MAX).collect());
    }

    /// Says how many data connections the path is to have, and why, when so many of them go over RDMA.
    pub(crate) fn connection_words(&self, over_rdma: usize) -> String {
        match &self.no_rail {
            _ if over_rdma > 0 => "1: over RDMA one does what several do".into(),
            Some(why) => format!("{}; no RDMA: {why}", self.connections),
            None => self.connections.to_string(),
        }
    }

    /// Returns whether the path is up, or may come up soon for the first time.
    pub(crate) fn is_there(&self, live: &RunningSession) -> bool {
        if self.has_worked { live.path_connections(self.path).0 } else { self.attempts == 0 }
    }

    /// Returns whether large packets were lost, and may pass by now.
    pub(crate) fn is_doubtful(&self) -> bool {
        let Some((PathMtu::Small(_), then, at)) = self.packets else { return false };
        mtu(&self.pair) != then || at.elapsed() >= PACKETS_PERIOD
    }

    pub(crate) fn problem(&self) -> Option<NetworkProblem> {
        let Some((PathMtu::Small(passes), ..)) = self.packets else { return None };
        let Pair { local, remote } = &self.pair;
        Some(NetworkProblem::LargePacketsLost {
            nic: if local.nic.is_empty() { local.ip.to_string() } else { local.nic.clone() },
            mtu: local.mtu,
            remote_nic: if remote.nic.is_empty() { remote.ip.to_string() } else { remote.nic.clone() },
            remote_mtu: remote.mtu,
            passes,
        })
    }
}

/// Returns the smaller MTU of a pair's NICs, as far as it is known; 0: not known.
pub(crate) fn mtu(pair: &Pair) -> u32 {
    [pair.local.mtu, pair.remote.mtu].into_iter().filter(|mtu| *mtu > 0).min().unwrap_or(0)
}

/// The connections that a path lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingConnections {
    /// Whether the control connection is missing. Without it the path carries nothing.
    pub(crate) control: bool,
    /// The number of missing data connections.
    pub(crate) data: usize,
    /// The number of data connections that are there.
    pub(crate) there: usize,
}

impl MissingConnections {
    pub(crate) fn any(self) -> bool {
        self.control || self.data > 0
    }
}

#[cfg(test)]
mod tests {
    use skein_session::address::NicAddress;

    use super::*;

    #[test]
    fn connections_are_told_with_what_became_of_rdma() {
        let end = NicAddress {
            ip: [10, 0, 0, 1].into(),
            prefix: 24,
            nic: "eth0".into(),
            uplink: None,
            speed_mbit: None,
            mtu: 1500,
        };
        let mut state = PathState::new(Pair { local: end.clone(), remote: end }, PathId(0));
        let tcp = state.connection_words(0);
        state.note_no_rail("cannot send: \nno\x1b[31m");
        assert_eq!(state.connection_words(0), format!("{tcp}; no RDMA: cannot send:  no [31m"));
        assert_eq!(state.connection_words(1), "1: over RDMA one does what several do");
        state.note_no_rail(&"x".repeat(10_000));
        assert_eq!(state.no_rail.as_deref().map(str::len), Some(WHY_CHARS_MAX));
        state.no_rail = None;
        assert_eq!(state.connection_words(0), tcp);
    }
}
