//! The threads that make plans. A plan takes a while in a large cluster, and nobody waits for the others' plans.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use skein_cluster::{Input, PlanError, plan};
use tracing::error;

use super::core::Shared;

/// How many plans are made at the same time.
pub(crate) const THREADS: usize = 2;
/// How many plans wait at most.
pub(crate) const PLANS_MAX: usize = 64;
/// How often a thread sees whether it is to end.
const LOOK: Duration = Duration::from_millis(200);

/// How far planners stand behind what answers and hears agents, where cores are busy (sched(7)).
const NICENESS: i32 = 10;

/// Makes plans until the controller ends.
pub(crate) fn run(shared: &Arc<Shared>, jobs: &Mutex<Receiver<u64>>) {
    // Without that, reads wait for plans on a machine of few cores.
    let _ = setpriority_process(Some(gettid()), NICENESS);
    loop {
        let job = jobs.lock().recv_timeout(LOOK);
        match job {
            Ok(id) => {
                let Some(request) = shared.read(|controller| controller.plan_request(id)) else { continue };
                let planned = catch_unwind(AssertUnwindSafe(|| plan(&request)));
                let result = planned.unwrap_or_else(|_| {
                    error!("the planner failed for {:?}", request.want);
                    Err(PlanError::Failed)
                });
                shared.input(Input::Planned { plan: id, result });
            }
            Err(RecvTimeoutError::Timeout) if !shared.is_stopping() => {}
            Err(_) => return,
        }
    }
}
