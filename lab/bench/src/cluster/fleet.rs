//! A controller with a thousand simulated hosts: `skein_lab_fleet`, with this program as the agents' processes.

use std::sync::atomic::Ordering;

use skein_lab_fleet::{FleetError, FleetSeen, FleetSettings};

use super::options::ClusterOptions;
use crate::error::BenchError;

/// The command of `skein-lab` that is a process of agents.
const AGENTS_COMMAND: &str = "fleet-agents";

/// Returns the fleet of a case; a smaller one if that is asked for.
pub(super) fn settings(options: &ClusterOptions) -> Result<FleetSettings, BenchError> {
    let own =
        std::env::current_exe().map_err(|source| FleetError::Io { what: "cannot find this program".into(), source })?;
    let agents = vec![own.display().to_string(), AGENTS_COMMAND.to_owned()];
    let settings = FleetSettings::new(options.controller_program()?, agents);
    Ok(if options.quick { settings.quick() } else { settings })
}

/// Runs the fleet.
pub fn run(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<FleetSeen, BenchError> {
    let settings = FleetSettings { planetlab: options.planetlab.clone(), ..settings(options)? };
    let settings = FleetSettings { windows: options.runs.unwrap_or(settings.windows), ..settings };
    let tell = std::cell::RefCell::new(tell);
    let is_interrupted = || options.interrupt.load(Ordering::Relaxed);
    match skein_lab_fleet::run(&settings, &|note| tell.borrow_mut()(note), &is_interrupted) {
        Err(FleetError::Interrupted) => Err(BenchError::Interrupted),
        seen => Ok(seen?),
    }
}
