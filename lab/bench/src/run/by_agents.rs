//! Runs of movers whose agents do everything.

use std::time::{Duration, Instant};

use serde_json::json;
use skein_api::Transport;
use skein_lab_guest::Spec;

use crate::{
    agents::{AgentCommand, Agents},
    carry::{self, Carried},
    case::Scene,
    error::BenchError,
    migration::ReachedState,
    page_sizes::GuestPages,
    results::Run,
    rewriting::Count,
    run::{
        course::Journey,
        direction::{Direction, leaving},
        fill_in::{memory_backend, names_of_those_on},
        observers::Ready,
        setting::{Outcome, Setting},
    },
    tick::Tick,
    usage::{self, End, threads},
    watch::{Arriving, Party},
};

/// How much longer a move by agents may take: they check, and start the target's QEMU.
const AGENTS_MORE: Duration = Duration::from_secs(60);

impl Setting<'_> {
    /// Moves all guests of the agents once.
    pub(super) fn run_by_agents(
        &self,
        agents: &mut Agents,
        transport: Transport,
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Result<Outcome, BenchError> {
        let count = agents.guests.len();
        let blank = |n: usize| {
            let guest = &agents.guests[n];
            self.blank(n, guest.host, usage::words(guest.seen.process().pid))
        };
        let mut runs: Vec<Run> = (0..count).map(blank).collect();
        let directions: Vec<Direction> = leaving(count, |n| agents.guests[n].host)
            .into_iter()
            .map(|(source, guests)| Direction { source, guests, carried: self.settings(agents, transport, source) })
            .collect();
        let pages = |agents: &Agents, n: usize| self.page_sizes(agents.guests[n].seen.process().pid);
        let pages_before: Vec<_> = (0..count).map(|n| pages(agents, n)).collect();
        // The QEMUs that arrive, by the host that they come to.
        let arriving: [Arriving; 2] = Default::default();
        let parties = self.parties_of(agents, &directions, &arriving)?;
        let specs: Vec<Spec> = agents.guests.iter().map(|guest| guest.spec.clone()).collect();
        let usual = self.usual(count, |n| agents.guests[n].seen.workload().lock().as_mut().and_then(Count::ask));
        let journeys = (0..count).map(|n| {
            let agents = &*agents;
            let arriving = arriving[1 - agents.guests[n].host].clone();
            let journey = move |start, reached: &ReachedState| {
                agents.migrate(n, self.command(transport, start), reached, &arriving)
            };
            Box::new(journey) as Journey<'_>
        });
        let journeys = journeys.collect();
        let ready = Ready { directions: &directions, parties, small_stream: None, specs: &specs, journeys };
        let seen = self.watch(ready, tick)?;
        self.fill_in_all(&mut runs, &directions, &usual, &seen);
        self.heal()?;
        let mut lost = false;
        for (n, run) in runs.iter_mut().enumerate() {
            lost |= !agents.settle(n);
            if run.error.is_none() {
                record_target(run, agents, n);
                let both = pages_before[n].zip(pages(agents, n));
                run.guest_pages = both.map(|(source, target)| GuestPages { source, target });
            }
        }
        // Guests that are to move together have to start together.
        lost |= runs.len() > 1 && seen.course.results.iter().any(Result::is_err);
        Ok(Outcome { runs, lost })
    }

    /// Returns the settings of a direction, for which agents have no process besides themselves.
    fn settings(&self, agents: &Agents, transport: Transport, source: usize) -> Carried {
        let line = |host| carry::command_lines([agents.process(host)]);
        let settings = [
            ("transport", json!(transport)),
            ("allow_throttle", json!(self.scene.allow_throttle)),
            ("delta_memory", json!(self.scene.delta_memory)),
            ("agent on the source", line(source)),
            ("agent on the target", line(1 - source)),
        ];
        let parameters = settings.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        Carried { parameters, ..Carried::default() }
    }

    /// Returns the processes to watch. The QEMUs at a target do not exist yet.
    fn parties_of(
        &self,
        agents: &Agents,
        directions: &[Direction],
        arriving: &[Arriving; 2],
    ) -> Result<Vec<Party>, BenchError> {
        let qemu = |n: &usize| {
            let pid = agents.guests[*n].seen.process().pid;
            (pid, threads(pid))
        };
        let mut parties = Vec::new();
        for (number, Direction { source, guests, .. }) in directions.iter().enumerate() {
            let target = 1 - source;
            let leaving = guests.iter().map(qemu).collect();
            for (host, qemus, arriving) in
                [(*source, leaving, Arriving::default()), (target, Vec::new(), arriving[target].clone())]
            {
                let end = End { qemus, agents: vec![agents.process(host).pid()], ..End::default() };
                parties.push(Party { way: number, watched_host: self.watched_host(host)?, end, arriving });
            }
        }
        Ok(parties)
    }

    /// Returns how a guest is to be moved. Times count from `start`.
    fn command(&self, transport: Transport, start: Instant) -> AgentCommand<'_> {
        let Scene { allow_throttle, delta_memory, .. } = *self.scene;
        AgentCommand {
            transport,
            downtime_limit_ms: self.downtime_limit_ms,
            allow_throttle,
            delta_memory,
            start,
            deadline: self.deadline() + AGENTS_MORE,
            interrupt: self.interrupt,
        }
    }
}

/// Records the QEMU that a guest has moved to. Its settings are a migration's until the next migration begins.
fn record_target(run: &mut Run, agents: &Agents, n: usize) {
    let guest = &agents.guests[n];
    run.qemu_target_cmdline = usage::words(guest.seen.process().pid);
    run.memory_backend_target = memory_backend(&run.qemu_target_cmdline);
    let query = |command| guest.seen.monitor().query(command).unwrap_or_default();
    let capabilities = json!({ "capabilities": query("query-migrate-capabilities") });
    run.parameters.insert("capabilities".into(), names_of_those_on(&capabilities));
    run.parameters.insert("parameters".into(), query("query-migrate-parameters"));
}
