//! What all sessions have carried since the agent was started, with those that are over. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use skein_dataplane::{PathSnapshot, SessionSnapshot};
use skein_metrics::{SERIES_MAX, Samples, agent};

/// Bounds the paths that are remembered: each has a series in each direction. Beyond that, those without a session go.
const PATHS_MAX: usize = SERIES_MAX / 2;
/// Bounds the hosts that are remembered, likewise.
const PEERS_MAX: usize = SERIES_MAX;

/// The totals. A session's own numbers begin at 0 and end with it, and two sessions may have the same labels.
#[derive(Default)]
pub(super) struct SessionTotals {
    /// What each open session told at the last look, by peer and number.
    seen: BTreeMap<(String, String), Seen>,
    resent: BTreeMap<String, u64>,
    /// What was sent and received.
    paths: BTreeMap<PathLabels, [u64; 2]>,
}

/// A path as labels have it: its peer, its NIC, the address of its other end.
pub(super) type PathLabels = [String; 3];

#[derive(Default)]
struct Seen {
    resent: u64,
    /// What was sent and received, by the path's number.
    paths: BTreeMap<u32, [u64; 2]>,
}

/// Returns a path's labels.
pub(super) fn path_labels(peer: &str, path: &PathSnapshot) -> PathLabels {
    // The far port is another one for each session of the end that dialled.
    [peer.to_owned(), path.info.nic.clone(), path.info.remote.ip().to_string()]
}

impl SessionTotals {
    /// Adds what sessions have carried since the last look.
    pub(super) fn look(&mut self, sessions: &[SessionSnapshot]) {
        let before = mem::take(&mut self.seen);
        let nothing = Seen::default();
        for session in sessions {
            let key = (session.peer.clone(), session.session.clone());
            let before = before.get(&key).unwrap_or(&nothing);
            add(self.resent.entry(session.peer.clone()).or_default(), before.resent, session.resent_bytes);
            let mut now = Seen { resent: session.resent_bytes, paths: BTreeMap::new() };
            for path in &session.paths {
                let id = path.status.path.0;
                let carried = [path.status.sent_bytes, path.status.received_bytes];
                let before = before.paths.get(&id).copied().unwrap_or_default();
                let totals = self.paths.entry(path_labels(&session.peer, path)).or_default();
                for ((total, before), now) in totals.iter_mut().zip(before).zip(carried) {
                    add(total, before, now);
                }
                now.paths.insert(id, carried);
            }
            self.seen.insert(key, now);
        }
        self.forget(sessions);
    }

    fn forget(&mut self, sessions: &[SessionSnapshot]) {
        if self.paths.len() > PATHS_MAX {
            let of = |session: &SessionSnapshot| -> Vec<PathLabels> {
                session.paths.iter().map(|path| path_labels(&session.peer, path)).collect()
            };
            let open: BTreeSet<PathLabels> = sessions.iter().flat_map(of).collect();
            self.paths.retain(|path, _| open.contains(path));
        }
        if self.resent.len() > PEERS_MAX {
            self.resent.retain(|peer, _| sessions.iter().any(|session| session.peer == *peer));
        }
    }

    /// Tells all totals.
    pub(super) fn collect(&self, samples: &mut Samples) {
        for (peer, bytes) in &self.resent {
            samples.set(&agent::RESENT, &[peer], *bytes);
        }
        for ([peer, nic, remote], [sent, received]) in &self.paths {
            samples.set(&agent::PATH_BYTES, &[peer, nic, remote, "sent"], *sent);
            samples.set(&agent::PATH_BYTES, &[peer, nic, remote, "received"], *received);
        }
    }
}

/// Adds what has come to a number since `before`. One that fell has begun anew.
fn add(total: &mut u64, before: u64, now: u64) {
    *total = total.saturating_add(now.checked_sub(before).unwrap_or(now));
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;

    use skein_dataplane::{ExcludedBy, PathId, PathInfo, PathStatus};

    use super::*;

    /// Returns a path over the NIC of this number to hostb, which may carry data, as the end sees it that accepted.
    pub(in crate::metrics) fn path(id: u32, nic: u8, [sent_bytes, received_bytes]: [u64; 2]) -> PathSnapshot {
        let address = |host| SocketAddr::new([10, 0, nic, host].into(), 0);
        PathSnapshot {
            info: PathInfo { nic: format!("eth{nic}"), local: address(1), remote: address(2) },
            status: PathStatus {
                path: PathId(id),
                has_control_connection: true,
                data_connections: 2,
                usable: true,
                sent_bytes,
                received_bytes,
                rate: None,
                rtt_s: None,
                inflight_bytes: 5,
            },
            carries: String::new(),
            connections: String::new(),
            rdma_connections: 0,
            excluded: ExcludedBy { here: false, there: false },
        }
    }

    pub(in crate::metrics) fn session(
        peer: &str,
        number: &str,
        resent_bytes: u64,
        paths: Vec<PathSnapshot>,
    ) -> SessionSnapshot {
        SessionSnapshot {
            peer: peer.into(),
            session: number.into(),
            streams: 1,
            resent_bytes,
            paths,
            problems: vec![],
            mtu_probes_under_way: 0,
        }
    }

    fn total(totals: &SessionTotals, name: &str) -> Option<u64> {
        let mut samples = Samples::default();
        totals.collect(&mut samples);
        samples.into_text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    const SENT: &str = "skein_path_bytes_total{peer=\"hostb\",nic=\"eth1\",remote=\"10.0.1.2\",direction=\"sent\"}";
    const RECEIVED: &str =
        "skein_path_bytes_total{peer=\"hostb\",nic=\"eth1\",remote=\"10.0.1.2\",direction=\"received\"}";
    const RESENT: &str = "skein_session_resent_bytes_total{peer=\"hostb\"}";

    #[test]
    fn what_one_of_two_sessions_carried_stays_counted_when_it_ends() {
        let mut totals = SessionTotals::default();
        let dialled = |sent| session("hostb", "aa", 7, vec![path(1, 1, [sent, 10])]);
        let accepted = |sent| session("hostb", "bb", 3, vec![path(0, 1, [sent, 20])]);
        totals.look(&[dialled(100), accepted(1000)]);
        totals.look(&[dialled(150), accepted(1000)]);
        assert_eq!((total(&totals, SENT), total(&totals, RECEIVED)), (Some(1150), Some(30)));
        assert_eq!(total(&totals, RESENT), Some(10));
        totals.look(&[dialled(170)]);
        assert_eq!((total(&totals, SENT), total(&totals, RESENT)), (Some(1170), Some(10)));
        // The next one begins at 0.
        totals.look(&[dialled(170), session("hostb", "cc", 0, vec![path(0, 1, [5, 0])])]);
        assert_eq!(total(&totals, SENT), Some(1175));
        totals.look(&[]);
        assert_eq!((total(&totals, SENT), total(&totals, RESENT)), (Some(1175), Some(10)));
    }

    #[test]
    fn a_path_that_comes_back_goes_on_from_what_was_counted() {
        let mut totals = SessionTotals::default();
        for (id, sent) in [(1, 100), (2, 40), (2, 60), (3, 5)] {
            totals.look(&[session("hostb", "aa", 0, vec![path(id, 1, [sent, 0])])]);
        }
        assert_eq!(total(&totals, SENT), Some(165));
        totals.look(&[session("hostb", "aa", 0, vec![path(3, 1, [2, 0])])]);
        assert_eq!(total(&totals, SENT), Some(167), "a number that fell has begun anew");
    }

    #[test]
    fn no_more_is_remembered_than_there_are_series() {
        let mut totals = SessionTotals::default();
        for number in 0..2 * PEERS_MAX {
            totals.look(&[session(&format!("host{number}"), "aa", 1, vec![path(0, 1, [1, 1])])]);
        }
        assert!(totals.paths.len() <= PATHS_MAX && totals.resent.len() <= PEERS_MAX && totals.seen.len() == 1);
    }
}
