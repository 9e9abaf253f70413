//! NICs, sessions and their paths.

use std::collections::BTreeMap;

use skein_dataplane::{PathSnapshot, SessionSnapshot};
use skein_host::nics;
use skein_metrics::{Samples, agent};
use tracing::debug;

use super::session_totals::{PathLabels, SessionTotals, path_labels};
use crate::samples::carries_the_hosts;

/// Tells what the host's own NICs carried, each once: those that samples of migrations have, too.
pub(super) fn collect_nics(samples: &mut Samples) {
    let nics = nics().inspect_err(|error| debug!("NICs cannot be read: {error}")).unwrap_or_default();
    for nic in nics.iter().filter(|nic| carries_the_hosts(nic)) {
        let (name, of) = (&*nic.name, &nic.counters);
        samples.set(&agent::NIC_BYTES, &[name, "sent"], of.tx_bytes);
        samples.set(&agent::NIC_BYTES, &[name, "received"], of.rx_bytes);
        samples.set(&agent::NIC_DROPS, &[name, "sent"], of.tx_dropped);
        samples.set(&agent::NIC_DROPS, &[name, "received"], of.rx_dropped.saturating_add(of.rx_errors));
        if let Some(mbit) = nic.speed_mbit {
            samples.set(&agent::NIC_SPEED, &[name], u64::from(mbit) * 125_000);
        }
    }
}

/// Tells of the sessions with other hosts. Two hosts may have several: each end dials one when it has something to say.
pub(super) fn collect_sessions(samples: &mut Samples, totals: &mut SessionTotals, sessions: &[SessionSnapshot]) {
    totals.look(sessions);
    totals.collect(samples);
    let mut paths: BTreeMap<PathLabels, PathGauges> = BTreeMap::new();
    for session in sessions {
        let peer = &*session.peer;
        samples.add(&agent::SESSIONS, &[peer], 1_u64);
        samples.add(&agent::STREAMS, &[peer], session.streams);
        samples.add(&agent::NETWORK_PROBLEMS, &[peer], session.problems.len());
        for path in &session.paths {
            paths.entry(path_labels(peer, path)).or_default().add(path);
        }
    }
    paths.iter().for_each(|(labels, path)| path.collect(samples, labels));
}

/// A path at this moment, in all sessions that have it.
#[derive(Default)]
struct PathGauges {
    /// Whether it may carry data in one of them; `None`: it is down.
    may_carry_data: Option<bool>,
    over_tcp: usize,
    over_rdma: usize,
    in_flight_bytes: u64,
    rate: Option<f64>,
    round_trip_s: Option<f64>,
}

impl PathGauges {
    fn add(&mut self, path: &PathSnapshot) {
        let status = &path.status;
        self.may_carry_data = self.may_carry_data.max(status.usable.then(|| path.carries_data()));
        self.over_tcp += status.data_connections.saturating_sub(path.rdma_connections);
        self.over_rdma += path.rdma_connections;
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(status.inflight_bytes);
        // Each session measures all of the path, so these do not add up.
        self.rate = self.rate.into_iter().chain(status.rate).reduce(f64::max);
        self.round_trip_s = self.round_trip_s.into_iter().chain(status.rtt_s).reduce(f64::min);
    }

    fn collect(&self, samples: &mut Samples, [peer, nic, remote]: &PathLabels) {
        let labels = [&**peer, nic, remote];
        if let Some(may_carry_data) = self.may_carry_data {
            samples.set(&agent::PATH_USABLE, &labels, may_carry_data);
        }
        samples.set(&agent::PATH_IN_FLIGHT, &labels, self.in_flight_bytes);
        for (transport, count) in [("tcp", self.over_tcp), ("rdma", self.over_rdma)] {
            samples.set(&agent::PATH_CONNECTIONS, &[peer, nic, remote, transport], count);
        }
        if let Some(rate) = self.rate {
            samples.set(&agent::PATH_RATE, &labels, rate);
        }
        if let Some(round_trip_s) = self.round_trip_s {
            samples.set(&agent::PATH_ROUND_TRIP, &labels, round_trip_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use skein_dataplane::PathStatus;

    use super::super::session_totals::tests::{path, session};
    use super::*;

    fn text(sessions: &[SessionSnapshot]) -> String {
        let mut samples = Samples::default();
        collect_sessions(&mut samples, &mut SessionTotals::default(), sessions);
        samples.into_text()
    }

    #[test]
    fn a_path_of_two_sessions_is_told_once() {
        let measured = |id, data_connections, rate, rtt_s| {
            let path = path(id, 1, [0, 0]);
            let status = PathStatus { data_connections, rate: Some(rate), rtt_s: Some(rtt_s), ..path.status };
            PathSnapshot { status, ..path }
        };
        let dialled = session("hostb", "aa", 0, vec![measured(0, 2, 7e8, 0.25)]);
        let accepted = session("hostb", "bb", 0, vec![measured(3, 0, 5e8, 0.125)]);
        let of = "{peer=\"hostb\",nic=\"eth1\",remote=\"10.0.1.2\"";
        for sessions in [[dialled.clone(), accepted.clone()], [accepted, dialled]] {
            let text = text(&sessions);
            for line in [
                format!("skein_path_usable{of}}} 1"),
                format!("skein_path_rate_bytes_per_second{of}}} 700000000.0"),
                format!("skein_path_round_trip_seconds{of}}} 0.125"),
                format!("skein_path_in_flight_bytes{of}}} 10"),
                format!("skein_path_connections{of},transport=\"tcp\"}} 2"),
                "skein_sessions{peer=\"hostb\"} 2".into(),
            ] {
                assert!(text.contains(&format!("\n{line}\n")), "{line} is not in {text}");
            }
        }
    }

    #[test]
    fn a_path_that_is_down_has_no_value_and_one_that_is_kept_from_data_has() {
        let up = |nic: u8| path(nic.into(), nic, [0, 0]);
        let spare = PathSnapshot { carries: "a spare".into(), ..up(2) };
        let mut silent = up(3);
        silent.status.usable = false;
        let text = text(&[session("hostb", "aa", 0, vec![up(1), spare, silent])]);
        let told: Vec<&str> = text.lines().filter(|line| line.starts_with("skein_path_usable{")).collect();
        assert_eq!(told.len(), 2, "{text}");
        assert!(told[0].contains("eth1") && told[0].ends_with(" 1"), "{told:?}");
        assert!(told[1].contains("eth2") && told[1].ends_with(" 0"), "{told:?}");
    }
}
