//! A round from its begin to its judgement.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::asks::Ask;
use super::faults::{Doing, Undo};
use super::judge::Health;
use super::outcome::{Done, Failure, Harm};
use super::state::{NICS, World};
use crate::plan::{Kind, Round};

/// The time until all is resolved. Without contact an agent waits a minute for a session before it calls a migration
/// off.
const RESOLVED: Duration = Duration::from_secs(100);
/// The time between two checks of what the agents say.
const RESOLVED_CHECK_PERIOD: Duration = Duration::from_millis(20);
/// The time between two checks of the logs for the moment of a fault.
const FAULT_CHECK_PERIOD: Duration = Duration::from_millis(1);

impl World {
    /// Runs a whole round. A panic of the cluster counts as a failure.
    pub fn round(&mut self, plan: &Round) -> Result<Done, Failure> {
        self.timeline.clear();
        self.round_began = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| self.try_round(plan)));
        done.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
            Err(said.unwrap_or_default().into())
        })
    }

    fn try_round(&mut self, plan: &Round) -> Result<Done, Failure> {
        for host in self.cluster.hosts() {
            (0..NICS).for_each(|nic| self.cluster.lab().rate(&host, nic, Some(plan.rate)).expect("a rate can be set"));
        }
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
        let mut asks = self.asks(plan);
        let done = self.migrate(&mut asks, plan)?;
        let ended = Instant::now();
        self.note("the last fault is over".into());
        let places = self.wait_resolved(ended)?;
        let resolved = ended.elapsed();
        self.note("resolved".into());
        let clean = self.wait_clean(ended)?;
        self.note("clean".into());
        if let Some(double) = self.cluster.witness().doubles().first() {
            return Err(Failure { harm: Harm::Doubled, why: format!("TWO GUESTS RAN: {double:#?}") });
        }
        self.cluster.check();

        let ends = self.judge(&asks, &places)?;
        let (mut ended, mut longest) = (0, Duration::ZERO);
        for at in 0..self.guests.len() {
            match self.look_after(at, &places, began)? {
                Health::Ended => ended += 1,
                Health::Whole { stopped } => longest = longest.max(stopped),
            }
        }
        let (outcomes, doubts) = (ends.outcomes, ends.doubts);
        Ok(Done { outcomes, done, resolved, clean, stopped: longest, ended, doubts })
    }

    /// Asks for the migrations, and injects the faults, until all are answered and over. Returns the faults that were
    /// injected.
    fn migrate(&mut self, asks: &mut [Ask], plan: &Round) -> Result<Vec<Kind>, Failure> {
        let mut faults: Vec<Doing> = plan.faults.iter().map(|fault| Doing::Waiting(*fault)).collect();
        let mut done = Vec::new();
        let begin = Instant::now();
        for ask in asks.iter_mut() {
            self.ask(ask);
        }
        loop {
            let busy = self.take_answers(asks, !done.is_empty(), begin)?;
            for doing in &mut faults {
                done.extend(self.step(doing, asks, begin));
            }
            for host in self.cluster.hosts() {
                let is_ours = |doing: &Doing| match doing {
                    Doing::Active(_, Undo::Start(hosts) | Undo::Replace(hosts)) => hosts.contains(&host),
                    _ => false,
                };
                if !faults.iter().any(is_ours) && !self.cluster.is_up(&host) {
                    return Err(format!("the agent of {host} ended by itself").into());
                }
            }
            if !busy && faults.iter().all(|doing| matches!(doing, Doing::Over)) {
                return Ok(done);
            }
            thread::sleep(FAULT_CHECK_PERIOD);
        }
    }

    /// Waits until all agents agree where each guest runs, and returns where. The last fault ended at `since`.
    fn wait_resolved(&self, since: Instant) -> Result<BTreeMap<String, Option<String>>, Failure> {
        loop {
            match self.places() {
                Ok(places) => return Ok(places),
                Err(state) if since.elapsed() > RESOLVED => {
                    let harm = if self.cluster.witness().doubles().is_empty() { Harm::Other } else { Harm::Doubled };
                    let why = format!("not resolved after {} s: {state}", RESOLVED.as_secs());
                    return Err(Failure { harm, why });
                }
                Err(_) => thread::sleep(RESOLVED_CHECK_PERIOD),
            }
        }
    }
}
