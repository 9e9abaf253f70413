//! Runs the target's end of one migration: obeys the owner's orders to the hypervisor, and reports the guest's state.
//!
//! | file | what |
//! |---|---|
//! | [`worker`] | obeys orders, takes events, asks the hypervisor; reports the guest's state |
//! | [`environment`], [`agent_environment`] | what the worker needs of its agent and host |

mod agent_environment;
mod environment;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use skein_handover::MigrationSummary;

use self::agent_environment::AgentEnvironment;
pub(super) use self::worker::TargetWorker;
use super::context::Context;
use super::input::WorkerInput;
use super::offer::Offer;
use crate::clock::HostClock;

/// Returns a worker for this migration. The events of the hypervisor come by `jobs`.
pub(super) fn new_worker(
    context: Arc<Context>,
    summary: MigrationSummary,
    offer: Option<Offer>,
    jobs: SyncSender<WorkerInput>,
) -> TargetWorker {
    let id = summary.id;
    let environment = Box::new(AgentEnvironment::new(context, summary, offer.clone()));
    TargetWorker::new(id, offer, environment, Arc::new(HostClock::new()), jobs)
}
