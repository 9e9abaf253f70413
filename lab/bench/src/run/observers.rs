//! Watches a run: NICs and processes, the guests from outside, and the small stream through the tunnel.

use std::time::{Duration, Instant};

use skein_lab_guest::Spec;

use crate::{
    busy::{AtWork, Busy},
    control_latency::{Asker, Echo},
    error::BenchError,
    free_memory, goodput,
    migration::{MigrationError, Moved, SETTLE},
    ping::{self, Pinger},
    results::ControlLatency,
    run::{
        course::{Course, Journey},
        direction::Direction,
        setting::Setting,
    },
    site::HOSTS,
    tick::Tick,
    watch::{Party, RunWatch, Scope, Watched, Work},
};

/// How long guests at work are watched before a migration, for what they get then.
const WORK_ALONE: Duration = Duration::from_secs(4);

/// How long the control stream's idle round trip is measured.
const IDLE: Duration = Duration::from_secs(3);

/// All that is ready when a run begins.
pub(super) struct Ready<'a> {
    /// The directions, of which the first one's source is shown while guests move.
    pub directions: &'a [Direction],
    /// The processes to watch.
    pub parties: Vec<Party>,
    /// The small stream, if there is one.
    pub small_stream: Option<SmallStream>,
    /// The specification of each guest.
    pub specs: &'a [Spec],
    /// The migration of each guest.
    pub journeys: Vec<Journey<'a>>,
}

/// What was seen in a run.
pub(super) struct Seen {
    /// What became of the migrations.
    pub course: Course,
    /// What NICs, cores and processes did.
    pub watched: Watched,
    /// The round trips of the small stream, if there was one.
    pub control: Option<ControlLatency>,
    /// How long each guest did not answer pings around its switchover, if it was pinged.
    pub ping_gaps_ms: Vec<Option<f64>>,
}

/// Both ends of a small stream through the tunnel.
pub(super) struct SmallStream {
    /// Answers until this is dropped.
    echo: Echo,
    /// `None` if the tunnel does not carry the stream.
    asker: Option<Asker>,
}

impl SmallStream {
    /// Starts the stream if there is a pipe for it, and lets it run idle for a while.
    pub(super) fn start(directions: &[Direction]) -> Result<Option<Self>, BenchError> {
        let pipe = directions.iter().find_map(|direction| direction.carried.control.as_ref());
        let Some(pipe) = pipe else { return Ok(None) };
        let echo = Echo::start(&pipe.connect).map_err(BenchError::Watch)?;
        // A tunnel that does not carry the stream shows as no measurement, as that is the mover's fault.
        let asker = Asker::start(&pipe.listen).ok();
        std::thread::sleep(IDLE);
        Ok(Some(Self { echo, asker }))
    }
}

impl Setting<'_> {
    /// Runs the migrations, and everything that watches or disturbs them.
    pub(super) fn watch(&self, ready: Ready<'_>, tick: &mut dyn FnMut(Tick<'_>)) -> Result<Seen, BenchError> {
        let Ready { directions, parties, small_stream, specs, journeys } = ready;
        let source = HOSTS[directions[0].source];
        let observers = Observers::start(self, specs, parties, small_stream)?;
        let fill_bytes = specs.iter().map(|spec| u64::from(spec.params.fill_mb) << 20).sum::<u64>();
        let mut course = self.migrate_all(journeys, fill_bytes, || observers.watch.sending(source), tick);
        course.count_from_migrate();
        Ok(observers.stop(course, source))
    }

    /// Starts to ping each guest that has an address.
    fn ping(&self, specs: &[Spec]) -> Result<Vec<Option<Pinger>>, BenchError> {
        let ping = |spec: &Spec| {
            let Some(address) = spec.params.ip else { return Ok(None) };
            let socket = self.site.outside(ping::socket)?.map_err(BenchError::Watch)?;
            Ok(Some(Pinger::start(socket, address.ip).map_err(BenchError::Watch)?))
        };
        specs.iter().map(ping).collect()
    }
}

/// Everything that watches a run.
struct Observers {
    pingers: Vec<Option<Pinger>>,
    watch: RunWatch,
    /// The guests at work on all cores, until this is dropped.
    at_work: Option<AtWork>,
    small_stream: Option<SmallStream>,
}

impl Observers {
    /// Starts to watch, and waits until there are values from before the migrations.
    fn start(
        setting: &Setting<'_>,
        specs: &[Spec],
        parties: Vec<Party>,
        small_stream: Option<SmallStream>,
    ) -> Result<Self, BenchError> {
        let pingers = setting.ping(specs)?;
        // The memory of the guests that arrive, and of what is in flight.
        free_memory::reclaim(specs.iter().map(|spec| u64::from(spec.memory_mb) << 20).sum::<u64>() * 2);
        let hosts = [setting.watched_host(0)?, setting.watched_host(1)?];
        let at_work = setting.busy.map(Busy::work).transpose()?;
        let work = setting.busy.map(|busy| Box::new(busy.account()) as Work);
        let scope = if setting.scene.watch_memory { Scope::WithMemory } else { Scope::WithoutMemory };
        let watch = RunWatch::start(&hosts, parties, setting.site.links(), scope, work).map_err(BenchError::Watch)?;
        std::thread::sleep(if at_work.is_some() { WORK_ALONE } else { SETTLE });
        Ok(Self { pingers, watch, at_work, small_stream })
    }

    /// Ends the watch of a course that is over. `source` is the host whose transfer the small stream was beside.
    fn stop(self, course: Course, source: &str) -> Seen {
        let Self { pingers, watch, at_work, small_stream } = self;
        let start = course.start;
        let at = |s: f64| start + Duration::from_secs_f64(s.max(0.0));
        let ping_gaps_ms =
            pingers.into_iter().zip(&course.results).map(|(pinger, result)| gap_ms(pinger?, result, at)).collect();
        let watched = watch.stop(start);
        drop(at_work);
        let control = small_stream.and_then(|SmallStream { echo: _echo, asker }| {
            let (first, last) = goodput::window(&watched.sent(source), 0.0, course.ended_s)?;
            Some(asker?.stop(start, (at(first), at(last))))
        });
        Seen { course, watched, control, ping_gaps_ms }
    }
}

/// Returns how long a guest did not answer pings from its stop on. A gap before the stop is no downtime.
fn gap_ms(pinger: Pinger, result: &Result<Moved, MigrationError>, at: impl Fn(f64) -> Instant) -> Option<f64> {
    let stop_s = result.as_ref().ok()?.phases.stop_s?;
    Some(pinger.longest_gap(at(stop_s))?.as_secs_f64() * 1e3)
}
