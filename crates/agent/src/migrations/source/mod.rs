//! The source's end of one migration: obeys the owner's orders to the hypervisor, and tells how it is.
//!
//! | file | what |
//! |---|---|
//! | [`worker`] | obeys orders, heeds events, looks; says what it comes to |
//! | [`copy`] | carries out what is decided about a copy that is under way |
//! | [`hypervisor_watch`] | hears the hypervisor: events, what was missed, whether it lets go |
//! | [`guest_state`] | what its two states say together |
//! | [`standing`] | whether the migration stands, and that the first reason against it does |
//! | [`switchover`] | decides what may be left when the guest is stopped |
//! | [`convergence`], [`dirty_rate`], [`links`] | decide what is done for the copy to converge |
//! | [`outage`] | decides whether a throttled guest waits for the network |
//! | [`progress`] | how far the copy is |
//! | [`environment`], [`agent_environment`] | what all that needs of its agent and host |
//!
//! What decides is pure, and time is an argument; the worker has a clock, a guest and an environment, each of which is
//! a fake in its tests.

mod agent_environment;
mod convergence;
mod copy;
mod dirty_rate;
mod environment;
mod guest_state;
mod hypervisor_watch;
mod links;
mod outage;
mod progress;
mod standing;
mod switchover;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use skein_handover::MigrationSummary;

use self::agent_environment::AgentEnvironment;
pub(super) use self::worker::SourceWorker;
use super::context::Context;
use super::input::WorkerInput;
use super::offer::Offer;
use crate::clock::HostClock;

/// Returns a worker for this migration. It hears its hypervisor by `jobs`.
pub(super) fn new_worker(
    context: Arc<Context>,
    summary: MigrationSummary,
    offer: Option<Offer>,
    jobs: SyncSender<WorkerInput>,
) -> SourceWorker {
    let environment = Box::new(AgentEnvironment::new(context, &summary, offer.clone()));
    SourceWorker::new(summary, offer, environment, Arc::new(HostClock::new()), jobs)
}
