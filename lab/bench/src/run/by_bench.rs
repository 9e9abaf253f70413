//! Runs of movers for which the bench starts the targets and tells the QEMUs what to do.

use serde_json::json;
use skein_lab_guest::{Guest, Spec};

use crate::{
    carry::{self, CarryError, CarryRoute},
    chain,
    error::BenchError,
    migration::{self, MigrationError, ReachedState, Timing},
    page_sizes::GuestPages,
    residents::Resident,
    results::Run,
    rewriting::Count,
    run::{
        course::Journey,
        direction::{Direction, direction_of, leaving},
        fill_in::{memory_backend, names_of_those_on},
        observers::{Ready, SmallStream},
        setting::{Outcome, Setting},
    },
    site::HOSTS,
    tick::Tick,
    usage::{self, End, threads},
    watch::{Arriving, Party},
};

impl Setting<'_> {
    /// Moves all guests once, each to a QEMU that the bench starts.
    pub(super) fn run_by_bench(
        &self,
        residents: &mut [Resident],
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Result<Outcome, BenchError> {
        let blank = |(n, r): (usize, &Resident)| self.blank(n, r.host, command_line(&r.guest));
        let mut runs: Vec<Run> = residents.iter().enumerate().map(blank).collect();
        let directions = match self.set_up(residents)? {
            Ok(directions) => directions,
            Err(error) => {
                runs.iter_mut().for_each(|run| run.error = Some(chain(&error)));
                return Ok(Outcome { runs, lost: false });
            }
        };
        let mut targets = residents.iter().map(|r| r.start_incoming(self.site)).collect::<Result<Vec<_>, _>>()?;
        for (run, target) in runs.iter_mut().zip(&targets) {
            run.qemu_target_cmdline = command_line(target);
            run.memory_backend_target = memory_backend(&run.qemu_target_cmdline);
        }
        let pages_before: Vec<_> = residents.iter().map(|r| self.page_sizes(r.guest.qemu.pid())).collect();
        let prepared: Vec<_> = (0..residents.len())
            .map(|n| self.prepare((&mut residents[n], &mut targets[n]), &mut runs[n], direction_of(&directions, n)))
            .collect();
        let small_stream = SmallStream::start(&directions)?;
        let parties = self.parties(&directions, residents, &mut targets)?;
        let specs: Vec<Spec> = residents.iter().map(|resident| resident.spec.clone()).collect();
        let usual = self.usual(residents.len(), |n| Count::ask(residents[n].guest.agent()));
        let (deadline, interrupt) = (self.deadline(), self.interrupt);
        let journeys =
            residents.iter_mut().zip(targets.iter_mut()).zip(prepared).map(|((resident, target), connect)| {
                let source = &mut resident.guest;
                let journey = move |start, reached: &ReachedState| {
                    migration::migrate(source, target, connect?, Timing { start, deadline, interrupt }, reached)
                };
                Box::new(journey) as Journey<'_>
            });
        let journeys = journeys.collect();
        let ready = Ready { directions: &directions, parties, small_stream, specs: &specs, journeys };
        let seen = self.watch(ready, tick)?;
        self.fill_in_all(&mut runs, &directions, &usual, &seen);
        // What carried ends before the guests are looked at again, so that nothing of a run affects the next.
        drop(directions);
        self.heal()?;
        let mut lost = false;
        for (n, (resident, target)) in residents.iter_mut().zip(targets).enumerate() {
            if seen.course.results[n].is_ok() {
                resident.guest = target;
                resident.host = 1 - resident.host;
                let both = pages_before[n].zip(self.page_sizes(resident.guest.qemu.pid()));
                runs[n].guest_pages = both.map(|(source, target)| GuestPages { source, target });
            } else {
                lost |= !migration::back_at_source(&mut resident.guest, target);
            }
        }
        // Guests that are to move together have to start together.
        lost |= runs.len() > 1 && seen.course.results.iter().any(Result::is_err);
        Ok(Outcome { runs, lost })
    }

    /// Starts what carries, for each direction in which guests move.
    fn set_up(&self, residents: &[Resident]) -> Result<Result<Vec<Direction>, CarryError>, BenchError> {
        let mut directions: Vec<Direction> = Vec::new();
        for (source, guests) in leaving(residents.len(), |n| residents[n].host) {
            let directory = self.directory.join(HOSTS[source]);
            std::fs::create_dir_all(&directory).map_err(BenchError::Directory)?;
            let route = CarryRoute {
                site: self.site,
                source: HOSTS[source],
                target: HOSTS[1 - source],
                guests: guests.len() as u32,
                control: self.scene.control_stream && directions.is_empty(),
                directory: &directory,
            };
            match carry::start(self.mover, &route, self.kit) {
                Ok(carried) => directions.push(Direction { source, guests, carried }),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(directions))
    }

    /// Prepares both QEMUs of a guest, and records their settings. Returns what the source is to connect to.
    fn prepare<'d>(
        &self,
        (resident, target): (&mut Resident, &mut Guest),
        run: &mut Run,
        (direction, place): (&'d Direction, usize),
    ) -> Result<&'d str, MigrationError> {
        let tls = direction.carried.tls.as_deref();
        let (listen, connect) = &direction.carried.uris[place];
        let tuning = self.mover.tuning(self.downtime_limit_ms, self.scene.allow_throttle);
        let tuning = migration::prepare(&mut resident.guest, target, &tuning, tls, listen)?;
        for (name, value) in [
            ("capabilities", names_of_those_on(&tuning.capabilities())),
            ("parameters", tuning.parameters()),
            ("target listens on", json!(listen)),
            ("source connects to", json!(connect)),
        ] {
            run.parameters.insert(name.into(), value);
        }
        Ok(connect)
    }

    /// Returns the processes to watch.
    fn parties(
        &self,
        directions: &[Direction],
        residents: &[Resident],
        targets: &mut [Guest],
    ) -> Result<Vec<Party>, BenchError> {
        let mut parties = Vec::new();
        for (number, direction) in directions.iter().enumerate() {
            let Direction { source, guests, carried } = direction;
            let leaving = |n: usize| {
                let pid = residents[n].guest.qemu.pid();
                // All threads that exist before the migration starts threads of its own.
                (pid, threads(pid))
            };
            let sources = guests.iter().map(|&n| leaving(n)).collect();
            let arrivals = guests.iter().map(|&n| (targets[n].qemu.pid(), vcpu_threads(&mut targets[n]))).collect();
            let mut party = |host: usize, qemus, movers| {
                let (watched_host, end) = (self.watched_host(host)?, End { qemus, movers, ..End::default() });
                parties.push(Party { way: number, watched_host, end, arriving: Arriving::default() });
                Ok::<_, BenchError>(())
            };
            party(*source, sources, carried.source_pids())?;
            party(1 - source, arrivals, carried.target_pids())?;
        }
        Ok(parties)
    }
}

/// Returns the host's ids of the threads that run the guest.
fn vcpu_threads(guest: &mut Guest) -> Vec<u32> {
    usage::vcpu_threads(&guest.qemu.qmp.query("query-cpus-fast").unwrap_or_default())
}

fn command_line(guest: &Guest) -> Vec<String> {
    guest.qemu.command_line().iter().map(|word| word.to_string_lossy().into_owned()).collect()
}
