//! Usual life: marks, faults, migrations, starts and stops, drawn from the seed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_api::VmState;
use skein_api::cluster::{FenceRequest, MigrateRequest, StartVmRequest, StopVmRequest};
use skein_client::{ControllerClient, ControllerError};
use skein_placement::dice::Dice;

use crate::controller::ControllerProcess;
use crate::error::FleetError;
use crate::processes::{Look, Processes};
use crate::words::{Fault, host_name};

/// How often a guest says something of itself, for the subscribers.
const MARK_PERIOD: Duration = Duration::from_millis(100);
/// How often a host has a fault.
const FAULT_PERIOD: Duration = Duration::from_secs(2);
/// How often somebody has a guest moved, by turns to a host and to wherever the controller picks.
const MIGRATE_PERIOD: Duration = Duration::from_secs(2);
/// How often somebody stops a guest, or starts one.
const POWER_PERIOD: Duration = Duration::from_secs(2);
/// How long a host is cut off: below the time after which it counts as lost, and above.
const CUTS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(14)];
const OFF: Duration = Duration::from_secs(20);
const RESTART: Duration = Duration::from_millis(500);
/// One fault of so many is a host that loses power.
const OFF_OF: usize = 10;
/// How soon somebody says that a host is off which is.
const SAID_OFF: Duration = Duration::from_secs(12);

/// What goes on while something is measured.
pub(crate) struct Activity<'a> {
    pub(crate) processes: &'a Processes,
    pub(crate) controller: &'a ControllerProcess,
    pub(crate) hosts: u32,
    pub(crate) dice: Mutex<Dice>,
    /// The number of the next mark.
    pub(crate) marks: AtomicU64,
    pub(crate) done: Done,
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) faults: AtomicU64,
    pub(crate) migrations: AtomicU64,
    pub(crate) starts_and_stops: AtomicU64,
    /// What the controller refused: a VM that moved meanwhile, mostly.
    pub(crate) refused: AtomicU64,
}

impl Activity<'_> {
    /// Goes on for a while.
    pub(crate) fn go_on(&self, lasts: Duration) -> Result<(), FleetError> {
        let is_over = AtomicBool::new(false);
        let end = Instant::now() + lasts;
        thread::scope(|scope| {
            let each = |period: Duration, act: fn(&Self, &ControllerClient, u64) -> Result<(), FleetError>| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let client = self.controller.client()?;
                    let (mut due, mut number) = (Instant::now() + period, 0);
                    while due < end && !is_over.load(Ordering::Relaxed) {
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        act(self, &client, number).inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
                        number += 1;
                        // What takes longer than its period is done less often.
                        due = (due + period).max(Instant::now());
                    }
                    Ok::<(), FleetError>(())
                })
            };
            let all = [
                each(MARK_PERIOD, Activity::mark),
                each(FAULT_PERIOD, Activity::fault),
                each(MIGRATE_PERIOD, Activity::migrate),
                each(POWER_PERIOD, Activity::start_or_stop),
            ];
            all.into_iter()
                .map(|one| one.join().unwrap_or_else(|_| Err(FleetError::Late("it panicked".into()))))
                .collect::<Result<Vec<()>, FleetError>>()
                .map(drop)
        })
    }

    fn mark(&self, _: &ControllerClient, _: u64) -> Result<(), FleetError> {
        self.processes.mark(self.marks.fetch_add(1, Ordering::Relaxed))
    }

    fn fault(&self, client: &ControllerClient, _: u64) -> Result<(), FleetError> {
        let (host, drawn, cut) = {
            let mut dice = self.dice.lock();
            (host_name(dice.below(self.hosts as usize) as u32 + 1), dice.below(OFF_OF), *dice.pick(&CUTS))
        };
        self.done.faults.fetch_add(1, Ordering::Relaxed);
        match drawn {
            0 => {
                self.processes.fault(&host, Fault::Off, OFF)?;
                thread::sleep(SAID_OFF);
                self.note(client.fence(&host, &FenceRequest { is_off: true }).map(drop))
            }
            drawn if drawn % 2 == 0 => self.processes.fault(&host, Fault::Cut, cut),
            _ => self.processes.fault(&host, Fault::Restart, RESTART),
        }
    }

    fn migrate(&self, client: &ControllerClient, number: u64) -> Result<(), FleetError> {
        let look = self.processes.look()?;
        let Some((vm, from)) = self.pick(&look, VmState::Running) else { return Ok(()) };
        let there = look.hosts.values().filter(|known| known.is_there && known.host != from);
        let there: Vec<&str> = there.map(|known| known.host.as_str()).collect();
        let to = (number.is_multiple_of(2)).then(|| (*self.dice.lock().pick(&there)).to_owned());
        self.done.migrations.fetch_add(1, Ordering::Relaxed);
        self.note(client.migrate(&vm, &MigrateRequest { to, ..MigrateRequest::default() }).map(drop))
    }

    fn start_or_stop(&self, client: &ControllerClient, number: u64) -> Result<(), FleetError> {
        let look = self.processes.look()?;
        let state = if number.is_multiple_of(2) { VmState::Running } else { VmState::Stopped };
        let Some((vm, _)) = self.pick(&look, state) else { return Ok(()) };
        self.done.starts_and_stops.fetch_add(1, Ordering::Relaxed);
        self.note(match state {
            VmState::Running => client.stop_vm(&vm, &StopVmRequest::default()).map(drop),
            _ => client.start_vm(&vm, &StartVmRequest::default()).map(drop),
        })
    }

    /// Picks a VM that is in no migration, of a host that reports; returns the host, too.
    fn pick(&self, look: &Look, state: VmState) -> Option<(String, String)> {
        let there = look.hosts.values().filter(|known| known.is_there);
        let of = there.flat_map(|known| known.vms.iter().map(move |(name, vm)| (name, vm, &known.host)));
        let calm = of.filter(|(_, vm, _)| vm.state == state && !vm.is_moving);
        let all: Vec<(&String, &String)> = calm.map(|(name, _, host)| (name, host)).collect();
        if all.is_empty() {
            return None;
        }
        let (vm, host) = *self.dice.lock().pick(&all);
        Some((vm.clone(), host.clone()))
    }

    /// Counts what the controller refuses. That it cannot be asked is an error.
    fn note(&self, asked: Result<(), ControllerError>) -> Result<(), FleetError> {
        match asked {
            Err(ControllerError::Refused(problem)) if (400..500).contains(&problem.status) => {
                self.done.refused.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            other => Ok(other?),
        }
    }
}
