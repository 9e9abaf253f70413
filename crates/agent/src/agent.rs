//! The daemon.

use skein_identity::Identity;
use skein_link::ListenError;
use skein_transfer::{Acceptor, AcceptorSettings, Snapshot};
use tracing::info;

use crate::{Allow, target};

/// What may be set on an agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// How it takes connections.
    pub acceptor: AcceptorSettings,
    /// What peers may connect to.
    pub allow: Allow,
}

/// A running agent. Dropping it closes every session.
pub struct Agent {
    acceptor: Acceptor,
}

impl Agent {
    /// Listens and serves from then on.
    pub fn start(settings: AgentSettings, identity: &Identity) -> Result<Agent, ListenError> {
        let allow = settings.allow;
        let allowed = allow.to_string();
        let acceptor = Acceptor::start(
            settings.acceptor,
            identity,
            Box::new(move |live, streams| target::serve(&live, streams, &allow)),
        )?;
        info!("agent of {} listens on port {}; peers may connect to {allowed}", identity.host(), acceptor.port());
        Ok(Agent { acceptor })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.acceptor.port()
    }

    /// Each session at this moment.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.acceptor.sessions().iter().map(|live| live.snapshot()).collect()
    }

    /// Closes every session and stops listening.
    pub fn stop(&self) {
        self.acceptor.stop("the agent stops");
    }
}
