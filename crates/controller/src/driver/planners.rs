//! The threads that make plans. A plan takes a while in a large cluster, and nobody waits for the others' plans.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use skein_cluster::{Input, PlanError, PlanRequest, Planned, plan};
use tracing::error;

use super::core::Shared;

/// How many plans are made at the same time.
pub(crate) const THREADS: usize = 2;
/// How many plans wait at most.
pub(crate) const PLANS_MAX: usize = 64;
/// How often a thread sees whether it is to end.
const LOOK: Duration = Duration::from_millis(200);

/// How far plans stand behind what answers and hears agents, where cores are busy (sched(7)).
const NICENESS: i32 = 10;

/// Makes plans until the controller ends.
pub(crate) fn run(shared: &Arc<Shared>, jobs: &Mutex<Receiver<u64>>) {
    loop {
        let job = jobs.lock().recv_timeout(LOOK);
        match job {
            Ok(id) => {
                let Some(request) = shared.read(|controller| controller.plan_request(id)) else { continue };
                shared.input(Input::Planned { plan: id, result: plan_behind(&request) });
            }
            Err(RecvTimeoutError::Timeout) if !shared.is_stopping() => {}
            Err(_) => return,
        }
    }
}

/// Makes a plan behind all else: without that, reads wait for plans on a machine of few cores. Only the plan: a thread
/// that stands behind while it reads the controller's state holds up all that writes, and those who read after that.
fn plan_behind(request: &PlanRequest) -> Result<Planned, PlanError> {
    let planned = thread::scope(|scope| {
        let planner = thread::Builder::new().name("plan".into()).spawn_scoped(scope, || {
            let _ = setpriority_process(Some(gettid()), NICENESS);
            plan(request)
        });
        planner.map(thread::ScopedJoinHandle::join)
    });
    match planned {
        Ok(Ok(planned)) => planned,
        Ok(Err(_)) => {
            error!("the planner failed for {:?}", request.want);
            Err(PlanError::Failed)
        }
        Err(why) => {
            error!("a plan has no thread: {why}");
            Err(PlanError::Busy)
        }
    }
}
