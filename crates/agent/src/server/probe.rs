//! Answers requests about what the paths to other hosts carry.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use skein_api::Reply;
use tracing::warn;

use super::refusal::{Answered, refusal, unreached};
use super::request_server::{RequestServer, Say};
use crate::error_chain;
use crate::probe::{Around, ProbeError, probe};

impl RequestServer {
    /// Measures the way to a host, and keeps what comes out.
    pub(super) fn net_probe(
        &self,
        to: &str,
        say: &mut Say<'_>,
        is_gone: &(dyn Fn() -> bool + Sync),
    ) -> Answered<Reply> {
        // An agent that stops is not held up.
        let is_gone = || self.stopping.load(Ordering::SeqCst) || is_gone();
        let mut tell = |words: String| match self.stopping.load(Ordering::SeqCst) {
            true => Err(ErrorKind::Interrupted.into()),
            false => say(&Reply::ProbeStep { words }),
        };
        let migrates = || self.migrations.view().any_under_way();
        let around = Around { is_gone: &is_gone, migrates: &migrates };
        let probed = probe(self.migrations.peers(), to, around, &mut tell).map_err(|error| {
            let cure = match &error {
                ProbeError::Ask(error) => unreached(to, error),
                ProbeError::Turn(_) => {
                    "one probe at a time is measured to or from a host: try again in some seconds".into()
                }
                ProbeError::Stopped(host) => {
                    format!("see on {host} whether the agent runs (systemctl status skein), and probe again")
                }
                ProbeError::Refused { .. } => {
                    format!("try again in some seconds; if skein on {to} is of an older release, upgrade it")
                }
                ProbeError::Gone(_) => String::new(),
            };
            Box::new(refusal(error_chain(&error), cure))
        })?;
        // A result without rates does not take the place of rates.
        if let Err(error) = self.starter.probes.keep(&probed) {
            warn!("what was measured to {to} is not kept: {error}");
        }
        Ok(Reply::Probe(Box::new(probed)))
    }

    /// Returns what was measured last of each host.
    pub(super) fn net_probes(&self) -> Reply {
        Reply::Probes { probes: self.starter.probes.all() }
    }
}
