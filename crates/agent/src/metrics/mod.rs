//! Tells scrapers what the agent measures: from totals that are there, without a question to any QEMU or other host.
//!
//! | file | what |
//! |---|---|
//! | `migrations` | the migrations from and to this host |
//! | `network` | NICs, sessions and their paths |
//! | `session_totals` | what sessions have carried, with those that are over. Pure |
//! | `host` | the agent itself, its VMs, packers |

mod host;
mod migrations;
mod network;
mod session_totals;

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use skein_dataplane::source::PackerPool;
use skein_metrics::Samples;

use crate::peers::Peers;
use crate::server::RequestServer;

use self::session_totals::SessionTotals;

/// What is measured, as long as the agent has it: a scraper keeps nothing of an agent that ends.
pub(crate) struct AgentCollector {
    pub(crate) agent: Measured,
    /// The packers; empty: there are none.
    pub(crate) packers: Weak<PackerPool>,
    /// When the agent was started, in seconds since 1970.
    pub(crate) started_s: f64,
    sessions: Mutex<SessionTotals>,
}

/// Which parts an agent has.
pub(crate) enum Measured {
    /// Those of an agent that is the end of tunnels.
    Tunnels(Weak<Peers>),
    /// Those of an agent that has VMs and moves them.
    Vms(Weak<RequestServer>),
}

impl AgentCollector {
    /// Returns the collector of an agent that starts now.
    pub(crate) fn new(agent: Measured, packers: Option<&Arc<PackerPool>>) -> AgentCollector {
        let packers = packers.map(Arc::downgrade).unwrap_or_default();
        AgentCollector { agent, packers, started_s: host::now_s(), sessions: Mutex::default() }
    }

    /// Tells all values of this moment.
    pub(crate) fn collect(&self, samples: &mut Samples) {
        host::collect_agent(samples, self.started_s);
        network::collect_nics(samples);
        if let Some(packers) = self.packers.upgrade() {
            host::collect_packers(samples, &packers.figures());
        }
        match &self.agent {
            Measured::Tunnels(peers) => {
                if let Some(peers) = peers.upgrade() {
                    network::collect_sessions(samples, &mut self.sessions.lock(), &peers.snapshots());
                }
            }
            Measured::Vms(server) => {
                if let Some(server) = server.upgrade() {
                    let sessions = server.migrations.peers().snapshots();
                    network::collect_sessions(samples, &mut self.sessions.lock(), &sessions);
                    host::collect_vms(samples, &server);
                    migrations::collect(samples, &server.migrations, &server.samples);
                }
            }
        }
    }
}
