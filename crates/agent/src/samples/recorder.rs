//! Looks at the migrations under way, and tells whoever watches.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use skein_api::{
    Convergence, CopyProgress, HostSample, Migration, MigrationId, MigrationSample, Role, SAMPLE_PERIOD_MS,
    SampledHost, TimeLeft,
};
use skein_forecast::{Convergence as CopyEnds, CopyRates, CopyStanding, TimeLeftWatch, WireStanding};
use tracing::warn;

use super::forecast_error::ForecastErrors;
use super::host_meter::HostMeter;
use super::kept;
use super::series::Series;
use crate::waker::Waker;

const PERIOD: Duration = Duration::from_millis(SAMPLE_PERIOD_MS);
/// How long the last sample of a migration stays at hand: whoever watches is told the end.
const END_TIME: Duration = Duration::from_secs(10);
/// How long looks go on after somebody asked how busy the host is.
const ASKED_TIME: Duration = Duration::from_secs(5);

/// The migrations of a host, as the recorder sees them.
pub(crate) trait Sampled: Send + Sync {
    /// Returns the migrations that are under way.
    fn under_way(&self) -> Vec<MigrationId>;

    /// Returns a migration as it is now, without its events. `None`: it is not known any more.
    fn migration(&self, id: MigrationId) -> Option<Migration>;
}

/// What was seen of the migrations under way.
pub(crate) struct Recorder {
    /// Where the samples of migrations are kept that are over.
    dir: PathBuf,
    state: Mutex<State>,
    forecast_errors: ForecastErrors,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    /// The host as it was at the last look.
    host: SampledHost,
    /// When somebody last wanted to know how busy the host is.
    asked: Option<Instant>,
    migrations: BTreeMap<MigrationId, Recorded>,
    watchers: Vec<Weak<Waker>>,
}

struct Recorded {
    latest: Arc<MigrationSample>,
    /// Counts the samples.
    number: u64,
    series: Series,
    /// Whether the series goes on from what was kept.
    is_resumed: bool,
    time_left: TimeLeftWatch,
    begun: Instant,
    /// Since when the migration is over.
    over: Option<Instant>,
}

impl Recorder {
    /// What is kept of migrations goes into `dir`.
    pub(crate) fn new(dir: PathBuf) -> Arc<Recorder> {
        let (state, thread, forecast_errors) = (Mutex::default(), Mutex::default(), ForecastErrors::new());
        Arc::new(Recorder { dir, state, forecast_errors, stopping: AtomicBool::new(false), thread })
    }

    /// Begins to look.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(self: &Arc<Self>, host: Arc<dyn Sampled>) -> io::Result<()> {
        let own = self.clone();
        let thread = thread::Builder::new().name("samples".into()).spawn(move || own.run(&*host))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    /// Has `waker` woken at each look, as long as it exists.
    pub(crate) fn subscribe(&self, waker: &Arc<Waker>) {
        self.state.lock().watchers.push(Arc::downgrade(waker));
    }

    /// Returns the latest sample of a migration and its number, if that is not `seen`.
    pub(crate) fn newer(&self, id: MigrationId, seen: u64) -> Option<(u64, Arc<MigrationSample>)> {
        let state = self.state.lock();
        let recorded = state.migrations.get(&id).filter(|recorded| recorded.number != seen)?;
        Some((recorded.number, recorded.latest.clone()))
    }

    /// Returns how busy the host is, and the latest samples of all migrations under way. Looks go on for a while.
    pub(crate) fn host(&self) -> SampledHost {
        let mut state = self.state.lock();
        state.asked = Some(Instant::now());
        let running = state.migrations.values().filter(|recorded| recorded.over.is_none());
        let migrations = running.map(|recorded| MigrationSample::clone(&recorded.latest)).collect();
        SampledHost { migrations, ..state.host.clone() }
    }

    /// Returns the VMs that leave this host, and how long the rest of that takes. No look is made for that.
    pub(crate) fn forecasts(&self) -> Vec<(String, TimeLeft)> {
        let state = self.state.lock();
        let running = state.migrations.values().filter(|recorded| recorded.over.is_none());
        running.filter_map(|of| Some((of.latest.migration.vm.clone(), of.latest.forecast?))).collect()
    }

    /// Returns how right forecasts were.
    pub(crate) fn forecast_errors(&self) -> &ForecastErrors {
        &self.forecast_errors
    }

    /// Returns what was seen of a migration, oldest first; nothing: it was not seen, or that is not kept any more.
    pub(crate) fn samples(&self, id: MigrationId) -> Vec<MigrationSample> {
        let state = self.state.lock();
        if let Some(recorded) = state.migrations.get(&id) {
            return recorded.series.samples().to_vec();
        }
        drop(state);
        kept::read(&self.dir, id)
    }

    fn run(&self, host: &dyn Sampled) {
        let mut meter = HostMeter::default();
        while !self.stopping.load(Ordering::SeqCst) {
            let begun = Instant::now();
            let under_way = host.under_way();
            if under_way.is_empty() && !self.is_wanted(begun) {
                meter.forget();
            } else {
                let busy = meter.read();
                self.look(host, &under_way, &busy, begun);
            }
            thread::park_timeout((begun + PERIOD).saturating_duration_since(Instant::now()));
        }
    }

    /// Returns whether somebody wants to know how busy the host is, or a migration's end is not told yet.
    fn is_wanted(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_asked = state.asked.is_some_and(|asked| now.saturating_duration_since(asked) < ASKED_TIME);
        if !is_asked {
            state.host = SampledHost::default();
        }
        is_asked || !state.migrations.is_empty()
    }

    /// Looks at the migrations under way, and once more at those that have ended since the look before.
    fn look(&self, host: &dyn Sampled, under_way: &[MigrationId], busy: &HostSample, now: Instant) {
        let mut ids = under_way.to_vec();
        let known =
            self.state.lock().migrations.iter().filter(|(_, of)| of.over.is_none()).map(|(id, _)| *id).collect();
        ids.extend(Vec::into_iter(known).filter(|id| !under_way.contains(id)));
        for id in ids {
            let is_over = !under_way.contains(&id);
            // Not under the lock: paths are read meanwhile.
            match host.migration(id) {
                Some(migration) => self.add(id, migration, busy, now, is_over),
                None => drop(self.state.lock().migrations.remove(&id)),
            }
        }
        let mut state = self.state.lock();
        state.host = SampledHost { at: wall_ms(), host: busy.clone(), migrations: Vec::new() };
        state.migrations.retain(|_, of| of.over.is_none_or(|over| now.saturating_duration_since(over) < END_TIME));
        state.watchers.retain(|watcher| watcher.upgrade().inspect(|waker| waker.wake()).is_some());
    }

    fn add(&self, id: MigrationId, migration: Migration, busy: &HostSample, now: Instant, is_over: bool) {
        let sample = MigrationSample { at: wall_ms(), migration, host: busy.clone(), forecast: None };
        let mut state = self.state.lock();
        let recorded = state.migrations.entry(id).or_insert_with(|| {
            // One that was over goes on where a doubt is settled: what was seen before stays.
            let kept = kept::read(&self.dir, id);
            Recorded {
                latest: Arc::new(sample.clone()),
                number: 0,
                is_resumed: !kept.is_empty(),
                series: Series::from_kept(kept),
                time_left: TimeLeftWatch::default(),
                begun: now,
                over: None,
            }
        });
        if is_held(&sample.migration) {
            // What it takes after the hold has nothing to do with the time before.
            recorded.time_left = TimeLeftWatch::default();
        }
        let standing = standing(&sample.migration).filter(|_| !is_over);
        let forecast = standing
            .and_then(|standing| recorded.time_left.look(now.saturating_duration_since(recorded.begun), &standing));
        let sample = MigrationSample { forecast: forecast.map(shown), ..sample };
        recorded.number += 1;
        if is_over {
            recorded.series.end(&sample);
        } else {
            recorded.series.add(&sample);
        }
        recorded.is_resumed |= recorded.over.is_some();
        recorded.over = is_over.then_some(now);
        recorded.latest = Arc::new(sample);
        let samples = is_over.then(|| recorded.series.samples().to_vec());
        let is_resumed = recorded.is_resumed;
        drop(state);
        // A forecast from before a doubt says nothing of how long the doubt lasts.
        if let Some(samples) = samples.as_ref().filter(|_| !is_resumed) {
            self.forecast_errors.judge(samples);
        }
        if let Some(samples) = samples
            && let Err(error) = kept::write(&self.dir, id, &samples)
        {
            warn!("what was seen of migration {id} is not kept: {error}");
        }
    }
}

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn is_held(migration: &Migration) -> bool {
    migration.hold.as_ref().is_some_and(|hold| hold.since.is_some())
}

/// Returns how far the guest's copy is, if this is its source and it is copied.
fn standing(migration: &Migration) -> Option<CopyStanding> {
    if migration.role != Role::Source || is_held(migration) {
        return None;
    }
    let CopyProgress { total_bytes, remaining_bytes, remaining_wire_bytes, round, converges, .. } =
        migration.copy.as_ref()?;
    let counts = migration.copy.as_ref()?.pages.as_ref().map(|pages| &pages.counts);
    let converges = converges.map(|converges| match converges {
        Convergence::FirstRound { seconds } => CopyEnds::FirstRound { seconds },
        Convergence::In { seconds } => CopyEnds::In { seconds },
        Convergence::Never(rates) => CopyEnds::Never(CopyRates {
            dirties_bytes_per_s: rates.dirties_bytes_per_s,
            moves_bytes_per_s: rates.moves_bytes_per_s,
        }),
    });
    let is_known = *total_bytes > 0;
    is_known.then_some(CopyStanding {
        total_bytes: *total_bytes,
        remaining_bytes: *remaining_bytes,
        wire: remaining_wire_bytes
            .zip(counts)
            .map(|(remaining_bytes, counts)| WireStanding { remaining_bytes, sent_bytes: counts.wire_bytes() }),
        round: *round,
        converges,
    })
}

fn shown(left: skein_forecast::TimeLeft) -> TimeLeft {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    TimeLeft {
        done_permille: left.done_permille,
        left_ms: ms(left.left),
        left_low_ms: ms(left.range.0),
        left_high_ms: ms(left.range.1),
    }
}

#[cfg(test)]
mod tests {
    use skein_api::{HoldView, Outcome};

    use super::*;

    const ID: MigrationId = MigrationId(7);

    #[derive(Default)]
    struct Fake {
        under_way: Mutex<Vec<MigrationId>>,
        copied: Mutex<u64>,
        hold: Mutex<Option<HoldView>>,
    }

    impl Sampled for Fake {
        fn under_way(&self) -> Vec<MigrationId> {
            self.under_way.lock().clone()
        }

        fn migration(&self, id: MigrationId) -> Option<Migration> {
            let is_over = !self.under_way.lock().contains(&id);
            let copy = CopyProgress {
                total_bytes: 1000,
                remaining_bytes: 1000 - *self.copied.lock(),
                remaining_wire_bytes: None,
                transferred_bytes: 0,
                round: 1,
                dirty_bytes_per_s: 0,
                bits_per_s: 0,
                converges: None,
                throttle_percent: 0,
                pages: None,
            };
            let migration = Migration::new(id, "web1", Role::Source, "a", "b");
            let (hold, outcome) = (self.hold.lock().clone(), is_over.then_some(Outcome::Moved));
            Some(Migration { copy: Some(copy), hold, outcome, ..migration })
        }
    }

    #[test]
    fn the_time_for_which_a_guest_was_held_is_no_time_of_its_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (recorder, fake) = (Recorder::new(dir.path().to_owned()), Fake::default());
        *fake.under_way.lock() = vec![ID];
        let begin = Instant::now();
        let look = |nth: u32, copied: u64| {
            *fake.copied.lock() = copied;
            recorder.look(&fake, &fake.under_way(), &HostSample::default(), begin + nth * PERIOD);
            recorder.newer(ID, 0).unwrap().1.forecast
        };
        for nth in 0..20 {
            look(nth, u64::from(nth) * 10);
        }
        *fake.hold.lock() = Some(HoldView { since: Some("2026-01-01T00:00:00Z".into()), ..HoldView::default() });
        assert_eq!((20..1000).find_map(|nth| look(nth, 200)), None);
        *fake.hold.lock() = Some(HoldView::default());
        assert_eq!(look(1000, 200), None, "nothing is known yet");
        let told: Vec<TimeLeft> = (1..10).filter_map(|nth| look(1000 + nth, 200 + u64::from(nth) * 10)).collect();
        // 290 of 1000 are copied at 50 a second.
        let left = told.last().unwrap();
        assert!((14_000..16_500).contains(&left.left_ms) && left.left_high_ms < 25_000, "{told:?}");
        assert!(left.done_permille < 200, "{left:?}");
    }

    #[test]
    fn a_migration_is_seen_as_it_goes_on_and_is_kept_when_it_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let (recorder, fake) = (Recorder::new(dir.path().to_owned()), Fake::default());
        *fake.under_way.lock() = vec![ID];
        let begin = Instant::now();
        let look = |nth: u32| {
            *fake.copied.lock() = u64::from(nth) * 10;
            recorder.look(&fake, &fake.under_way(), &HostSample::default(), begin + nth * PERIOD);
        };
        assert_eq!(recorder.newer(ID, 0), None);
        (0..20).for_each(look);
        let (number, sample) = recorder.newer(ID, 0).unwrap();
        assert_eq!((number, sample.migration.outcome, recorder.newer(ID, number)), (20, None, None));
        let left = sample.forecast.unwrap();
        // 190 of 1000 are copied at 50 a second.
        assert!((15_000..18_500).contains(&left.left_ms) && left.left_low_ms <= 16_200, "{left:?}");
        assert!(left.left_high_ms >= 16_200 && (170..210).contains(&left.done_permille), "{left:?}");
        assert_eq!(recorder.host().migrations.len(), 1);

        fake.under_way.lock().clear();
        look(21);
        let (number, end) = recorder.newer(ID, number).unwrap();
        assert_eq!((number, end.migration.outcome, end.forecast), (21, Some(Outcome::Moved), None));
        assert_eq!((recorder.samples(ID).len(), recorder.host().migrations), (21, vec![]));
        // Nobody watches any more, and the file has it.
        look(22 + (END_TIME.as_millis() / PERIOD.as_millis()) as u32);
        assert_eq!(recorder.newer(ID, 0), None);
        let kept = recorder.samples(ID);
        assert_eq!((kept.len(), kept[20].migration.outcome), (21, Some(Outcome::Moved)));
        assert_eq!(recorder.samples(MigrationId(8)), []);
        // A doubt about it is settled much later.
        *fake.under_way.lock() = vec![ID];
        look(80);
        fake.under_way.lock().clear();
        look(81);
        assert_eq!((recorder.samples(ID).len(), kept::read(dir.path(), ID).len()), (23, 23));
    }
}
