//! Kills an agent in the middle of a move, and checks what becomes of the guest. Only agents can show this.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use skein_api::{MigrateOptions, Migration, Outcome, Reply, Request, Transport};
use skein_lab_cluster::Seen;
use skein_lab_guest::Error;
use skein_units::measured;

use crate::{
    agents::{AGENT_SILENCE_MAX, AgentCommand, Agents},
    carry::Kit,
    error::{BenchError, KILLED_DEADLINE, KilledError},
    mover::MULTIFD_CHANNELS,
    site::{HOSTS, Site},
};

/// The agent is killed when QEMU has sent this much of what the guest filled, in per cent.
const MIDDLE_PERCENT: u64 = 40;

/// How long an agent is dead. Nothing of its guest may depend on it meanwhile.
const DEAD: Duration = Duration::from_secs(1);

impl Agents {
    /// Begins to move guest `n`, kills its host's agent in the middle, starts the agent again, and checks that the
    /// guest runs exactly once, and is intact. Then moves the guest, if it had not moved. `tell` gets a sentence for
    /// each step.
    ///
    /// # Errors
    ///
    /// [`BenchError::Killed`] with what went wrong.
    pub fn survive_kill(
        &mut self,
        n: usize,
        (site, kit): (&Site, &Kit),
        downtime_limit_ms: u64,
        interrupt: &AtomicBool,
        tell: &mut dyn FnMut(String),
    ) -> Result<(), BenchError> {
        let start = Instant::now();
        let mut tell = |what: String| tell(format!("{:6.1} s  {what}", start.elapsed().as_secs_f64()));
        let (vm, host) = (self.guests[n].spec.name.clone(), self.guests[n].host);
        let (here, there) = (HOSTS[host], HOSTS[1 - host]);

        tell(format!("skein migrate {vm} --to {there}"));
        let (id, percent) = self.middle(n, downtime_limit_ms, interrupt)?;
        let seen = self.guests[n].seen.clone();
        let killed = Instant::now();
        let pid = self.kill(host)?;
        tell(format!("{percent} % copied: kill -9 {pid}, the agent on {here}"));
        std::thread::sleep(DEAD);
        let qemu = seen.process().pid;
        self.once(&vm)?;
        tell(format!(
            "no agent on {here} for {}; QEMU {qemu} runs the guest on",
            measured::seconds(DEAD.as_secs_f64())
        ));
        let restart = Instant::now();
        self.restart(site, kit, host)?;
        tell(format!(
            "the agent is started again, and ready after {}",
            measured::seconds(restart.elapsed().as_secs_f64())
        ));

        let outcome = self.outcome(host, &id, interrupt)?;
        self.outcome(1 - host, &id, interrupt)?;
        self.once(&vm)?;
        if outcome == Outcome::CalledOff {
            let longest = longest_silence(&seen, killed);
            tell(format!("its journal has no grant: the move is called off, {here} goes on running the guest"));
            tell(format!("since the kill the guest was never silent for more than {longest}"));
            tell(format!("skein migrate {vm} --to {there}, once more"));
            let order = AgentCommand {
                transport: Transport::Auto,
                downtime_limit_ms,
                allow_throttle: None,
                delta_memory: None,
                start: Instant::now(),
                deadline: KILLED_DEADLINE,
                interrupt,
            };
            let migration = self.order(&vm, host, order).map_err(KilledError::from)?;
            if migration.outcome != Some(Outcome::Moved) {
                return Err(KilledError::Kept(migration.detail).into());
            }
            self.arrived(n, 1 - host).ok_or_else(|| KilledError::NotOnce(format!("not on {there}")))?;
            let stood_still = migration.downtime_ms.map_or(String::new(), |ms| format!(", stood still for {ms} ms"));
            tell(format!("moved in {}{stood_still}", measured::seconds(migration.elapsed_ms as f64 / 1e3)));
        } else {
            tell(format!("its journal has the grant: the guest runs on {there}"));
        }

        self.once(&vm)?;
        self.settle(n);
        let verdict = self.verify(n).map_err(KilledError::from)?;
        if !verdict.ok {
            let (pages, bad_pages, bad_blocks) = (verdict.pages, verdict.bad_pages, verdict.bad_blocks);
            return Err(KilledError::NotIntact { pages, bad_pages, bad_blocks }.into());
        }
        self.once(&vm)?;
        tell(format!("it runs on {there} and nowhere else, and finds all its {} pages intact", verdict.pages));
        let mut runs = self.witness.runs(&vm);
        runs.dedup_by_key(|run| run.pid);
        let qemus: Vec<String> = runs.iter().map(|run| format!("{} on {}", run.pid, run.host)).collect();
        tell(format!("QEMUs that ever ran it, never two at a time: {}", qemus.join(", then ")));
        Ok(())
    }

    /// Begins a move, and returns in its middle. Returns the migration's id, and how much is sent, in per cent.
    fn middle(&self, n: usize, downtime_limit_ms: u64, interrupt: &AtomicBool) -> Result<(String, u64), BenchError> {
        let guest = &self.guests[n];
        let fill_bytes = u64::from(guest.spec.params.fill_mb) << 20;
        let options = MigrateOptions {
            channels: Some(MULTIFD_CHANNELS),
            downtime_limit_ms: Some(downtime_limit_ms),
            ..MigrateOptions::default()
        };
        let (vm, to) = (guest.spec.name.clone(), HOSTS[1 - guest.host].into());
        let request = Request::Migrate { vm, to, options, detach: false };
        let mut conversation = self.client(guest.host).ask(&request).map_err(KilledError::from)?;
        let mut id = None;
        let end = Instant::now() + KILLED_DEADLINE;
        while Instant::now() < end {
            if interrupt.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            match conversation.next(Duration::from_millis(20)).map_err(KilledError::from)? {
                Some(Reply::Progress(migration)) => id = Some(migration.id.to_string()),
                Some(Reply::Check(check)) if check.blocks() => {
                    let words: Vec<String> = check.problems.iter().map(ToString::to_string).collect();
                    return Err(KilledError::Early(words.join("; ")).into());
                }
                Some(Reply::Migration(migration)) => return Err(KilledError::Early(migration.detail).into()),
                Some(_) | None => {}
            }
            let info = guest.seen.monitor().migration().map_err(Error::from)?;
            let sent = info.ram.filter(|_| !info.status.is_over()).map_or(0, |ram| ram.transferred);
            let percent = sent * 100 / fill_bytes.max(1);
            if let Some(id) = id.take_if(|_| percent >= MIDDLE_PERCENT) {
                return Ok((id, percent));
            }
        }
        Err(KilledError::Late { what: "the middle of a move" }.into())
    }

    /// Returns how a migration ended, once the agent of `host` knows it.
    fn outcome(&self, host: usize, id: &str, interrupt: &AtomicBool) -> Result<Outcome, BenchError> {
        let end = Instant::now() + KILLED_DEADLINE;
        while Instant::now() < end {
            if interrupt.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            let request = Request::MigrationShow { id: id.into() };
            if let Reply::Migration(migration) =
                self.client(host).call(&request, AGENT_SILENCE_MAX).map_err(KilledError::from)?
                && let Migration { outcome: Some(outcome), stage: None, .. } = *migration
            {
                return Ok(outcome);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(KilledError::Late { what: "word of how the move ended" }.into())
    }

    /// Checks that the guest runs in exactly one QEMU, and never ran in two at once.
    ///
    /// Only the QEMU that is to run it is asked: one whose migration was interrupted may not answer.
    fn once(&self, vm: &str) -> Result<(), KilledError> {
        let seen = self.witness.seen(vm);
        let told: Vec<_> = seen.iter().filter(|seen| seen.runs()).collect();
        let doubles = self.witness.doubles();
        if let [one] = told[..]
            && one.monitor().is_running().unwrap_or(false)
            && doubles.is_empty()
        {
            return Ok(());
        }
        Err(KilledError::NotOnce(format!("it runs in {told:?}; at once: {doubles:?}")))
    }
}

/// The longest time since then in which nothing was heard of a guest. The time is the observer's: an emulated guest's
/// clock stands still with the guest.
fn longest_silence(seen: &Seen, since: Instant) -> String {
    let beats = seen.beats().map(|beats| beats.since(since)).unwrap_or_default();
    let moments = [since].into_iter().chain(beats.iter().map(|beat| beat.seen)).chain([Instant::now()]);
    let moments: Vec<Instant> = moments.collect();
    let silences = moments.windows(2).map(|two| two[1].saturating_duration_since(two[0]));
    measured::millis(silences.max().unwrap_or_default().as_secs_f64() * 1e3)
}
