//! The threads that talk to fencing devices. A device may take long, and nobody waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_cluster::{Input, PowerAction, PowerResult};
use tracing::{error, info, warn};

use super::core::{PowerJob, Shared};
use crate::fencing::{FencingDevices, PowerCall};

/// How many devices are talked to at the same time.
pub(crate) const THREADS: usize = 4;
/// How many wait at most.
pub(crate) const JOBS_MAX: usize = 64;
/// How often a thread sees whether it is to end.
const LOOK: Duration = Duration::from_millis(200);

/// Talks to devices until the controller ends.
pub(crate) fn run(shared: &Arc<Shared>, devices: &dyn FencingDevices, jobs: &Mutex<Receiver<PowerJob>>) {
    loop {
        let job = jobs.lock().recv_timeout(LOOK);
        match job {
            Ok(job) => {
                let result = call(shared, devices, &job);
                match (job.action, &result) {
                    (
                        PowerAction::Read | PowerAction::Check { .. },
                        PowerResult::Refused(_) | PowerResult::Unknown(_),
                    ) => {
                        warn!("whether '{}' has power is not known: {result:?}", job.host);
                    }
                    (PowerAction::Read | PowerAction::Check { .. }, _) => {
                        info!("the power of '{}': {result:?}", job.host)
                    }
                    (PowerAction::Off, _) => warn!("'{}' is to be switched off: {result:?}", job.host),
                    (PowerAction::Shutdown, _) => info!("'{}' is to shut itself down: {result:?}", job.host),
                    (PowerAction::On, _) => info!("'{}' is to be switched on: {result:?}", job.host),
                }
                shared.input(Input::Power { job: job.job, result });
            }
            Err(RecvTimeoutError::Timeout) if !shared.is_stopping() => {}
            Err(_) => return,
        }
    }
}

fn call(shared: &Shared, devices: &dyn FencingDevices, job: &PowerJob) -> PowerResult {
    if Instant::now() >= job.until {
        return PowerResult::Refused("too many devices are asked at once".into());
    }
    let lease_left = || shared.lease_left(job.term).filter(|_| !shared.is_stopping());
    let call = PowerCall { device: &job.device, action: job.action, until: job.until, lease_left: &lease_left };
    let done = catch_unwind(AssertUnwindSafe(|| devices.call(&call)));
    done.unwrap_or_else(|_| {
        error!("talking to the fencing device of '{}' failed", job.host);
        PowerResult::Unknown("a mistake in Skein: see the log".into())
    })
}
