//! Runs the source's end of one migration: obeys the owner's orders to the hypervisor, and reports the guest's state.
//!
//! | file | what |
//! |---|---|
//! | [`worker`] | obeys orders, takes events, asks the hypervisor; reports the guest's state |
//! | [`copy`] | carries out what is decided about a copy that is under way |
//! | [`hypervisor_watch`] | hears the hypervisor: its events, whether events were missed, whether it lets go |
//! | [`guest_state`] | says what a hypervisor's two states mean together |
//! | [`standing`] | keeps whether the migration stands, and lets only the first reason against it count |
//! | [`switchover`] | decides what may be left when the guest is stopped |
//! | [`convergence`], [`dirty_rate`], [`links`] | decide what is done for the copy to converge |
//! | [`hold`] | decides about a copy that is held: how fast it goes, how fresh the target is |
//! | [`outage`] | decides whether a throttled guest waits for the network |
//! | [`progress`] | says how far the copy is |
//! | [`environment`], [`agent_environment`] | what the worker and the copy need of their agent and host |
//!
//! Files that decide are pure: time is an argument. The worker has a clock, a guest and an environment, and its tests
//! have a fake of each.

mod agent_environment;
mod convergence;
mod copy;
mod dirty_rate;
mod environment;
mod guest_state;
mod hold;
mod hypervisor_watch;
mod links;
mod outage;
mod path_notes;
mod path_totals;
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
pub(super) use self::hold::Freshness;
pub(super) use self::worker::SourceWorker;
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
) -> SourceWorker {
    let environment = Box::new(AgentEnvironment::new(context, &summary, offer.clone()));
    SourceWorker::new(summary, offer, environment, Arc::new(HostClock::new()), jobs)
}
