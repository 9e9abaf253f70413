//! Is a controller that does what a test says: takes an agent's connection, over any socket, and its reports, and
//! commands. It decides nothing.
//!
//! It is for tests: what an agent must not do panics, with what it did. A wait has the bound that the caller gives.

#![forbid(unsafe_code)]

mod agent_connection;
mod seen_host;
mod socket;

use std::io;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};
use skein_api::{ToAgent, Welcome};
use skein_identity::{ClusterPeer, ControllerIdentity, cluster_peer, controller_server_config};

pub use agent_connection::{AgentConnection, COMMAND_TIME};
pub use seen_host::SeenHost;
pub use socket::Socket;

/// A controller.
#[derive(Clone)]
pub struct FakeController {
    tls: Arc<ServerConfig>,
    name: String,
    /// What agents are told of the longest time from one report to the next, in milliseconds.
    pub report_period_ms: u64,
}

impl FakeController {
    /// Makes a controller with this identity, which wants a report every second.
    pub fn new(identity: &ControllerIdentity) -> FakeController {
        let (tls, name) = (controller_server_config(identity), identity.name().to_owned());
        FakeController { tls, name, report_period_ms: 1000 }
    }

    /// Returns the first line for an agent that is taken.
    pub fn welcome(&self) -> ToAgent {
        ToAgent::Welcome(Welcome {
            cluster: "lab".into(),
            controller: self.name.clone(),
            release: "0.0.0".into(),
            report_period_ms: self.report_period_ms,
        })
    }

    /// Shakes hands on a connection that was accepted.
    ///
    /// # Errors
    ///
    /// The other end hung up, or is no host of the cluster.
    pub fn accept<S: Socket>(&self, mut socket: S) -> io::Result<AgentConnection<S>> {
        let mut tls = ServerConnection::new(self.tls.clone()).map_err(io::Error::other)?;
        socket.set_patience(COMMAND_TIME)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        match cluster_peer(tls.peer_certificates().unwrap_or_default()) {
            ClusterPeer::Host(host) => AgentConnection::new(socket, tls, host),
            other => Err(io::Error::other(format!("{other:?} is no host"))),
        }
    }
}
