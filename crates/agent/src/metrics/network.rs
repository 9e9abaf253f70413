//! NICs, sessions and their paths.

use skein_dataplane::{PathSnapshot, SessionSnapshot};
use skein_host::nics;
use skein_metrics::{Samples, agent};
use tracing::debug;

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
pub(super) fn collect_sessions(samples: &mut Samples, sessions: &[SessionSnapshot]) {
    for session in sessions {
        let peer = &*session.peer;
        samples.add(&agent::SESSIONS, &[peer], 1_u64);
        samples.add(&agent::STREAMS, &[peer], session.streams);
        samples.add(&agent::RESENT, &[peer], session.resent_bytes);
        samples.add(&agent::NETWORK_PROBLEMS, &[peer], session.problems.len());
        session.paths.iter().for_each(|path| collect_path(samples, peer, path));
    }
}

fn collect_path(samples: &mut Samples, peer: &str, path: &PathSnapshot) {
    let (nic, status) = (&*path.info.nic, &path.status);
    // The far port is another one for each session of the end that dialled.
    let remote = path.info.remote.ip().to_string();
    let labels = [peer, nic, &remote];
    samples.set(&agent::PATH_USABLE, &labels, path.carries_data());
    samples.add(&agent::PATH_BYTES, &[peer, nic, &remote, "sent"], status.sent_bytes);
    samples.add(&agent::PATH_BYTES, &[peer, nic, &remote, "received"], status.received_bytes);
    samples.add(&agent::PATH_IN_FLIGHT, &labels, status.inflight_bytes);
    let over_tcp = status.data_connections.saturating_sub(path.rdma_connections);
    for (transport, count) in [("tcp", over_tcp), ("rdma", path.rdma_connections)] {
        samples.add(&agent::PATH_CONNECTIONS, &[peer, nic, &remote, transport], count);
    }
    if let Some(rate) = status.rate {
        samples.set(&agent::PATH_RATE, &labels, rate);
    }
    if let Some(round_trip_s) = status.rtt_s {
        samples.set(&agent::PATH_ROUND_TRIP, &labels, round_trip_s);
    }
}
