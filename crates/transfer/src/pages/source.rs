//! What all streams of a migration have in common at its source.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_core::{StreamId, Width};
use skein_pages::ledger::{Digest, Key, RegionId};
use skein_pages::pace::Pace;
use skein_pages::packing::Effort;
use skein_pages::record::{BlockInfo, Note};
use skein_pages::{Ledger, PAGE_BYTES};

use super::counts::{Counts, PageCounts, add};
use super::packers::Packers;
use super::target::{FindRam, Ram};

/// The other agent answers by then, or the migration is called off.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Who waits looks so often whether its stream was torn down.
const LOOK: Duration = Duration::from_millis(100);

/// How a migration's pages travel.
pub struct SourceSettings {
    /// Who packs; none: pages go as they are.
    pub packers: Option<Arc<Packers>>,
    /// What they may use of the session.
    pub width: Width,
    /// Pages may be written straight into the target guest's RAM, and both ends compare what they hold.
    pub direct: bool,
    /// Channels of multifd that the migration has; none: one stream.
    pub channels: u16,
    /// Drawn for this migration.
    pub key: Key,
    /// Where this guest's RAM is, to send again what differs; as of [`super::Target`].
    pub ram: Option<FindRam>,
}

/// All streams of a migration, at its source.
pub struct Source {
    settings: SourceSettings,
    state: Mutex<State>,
    changed: Condvar,
    effort: AtomicU8,
    pace: Mutex<Pace>,
    epoch: Instant,
    pub(super) counts: Counts,
}

#[derive(Default)]
struct State {
    mode: Option<Mode>,
    blocks: Vec<BlockInfo>,
    /// Barriers that each channel has passed.
    channels: BTreeMap<StreamId, u32>,
    answers: Vec<Note>,
    failed: Option<String>,
}

/// What becomes of pages.
#[derive(Clone)]
pub(super) enum Mode {
    /// QEMU gets them where they were.
    Rebuild,
    /// The target's agent writes those of some blocks itself.
    Direct(Arc<Direct>),
}

/// The blocks that the target's agent writes itself, and what is known of their pages.
pub(super) struct Direct {
    pub(super) ledger: Ledger,
    numbers: HashMap<String, u16>,
    ram: HashMap<u16, Box<dyn Ram>>,
}

impl Direct {
    /// The number of a block, if its pages are written directly.
    pub(super) fn number(&self, block: &str) -> Option<u16> {
        self.numbers.get(block).copied()
    }

    /// The RAM of a block, if it is at hand.
    pub(super) fn ram(&self, block: u16) -> Option<&dyn Ram> {
        self.ram.get(&block).map(|ram| &**ram)
    }
}

/// The migration cannot go on, in words.
pub(super) type Failed = String;

impl Source {
    /// Before its first stream.
    pub fn new(settings: SourceSettings) -> Arc<Source> {
        let mode = (!settings.direct).then_some(Mode::Rebuild);
        let epoch = Instant::now();
        let pace = Pace::new(Duration::ZERO);
        Arc::new(Source {
            settings,
            state: Mutex::new(State { mode, ..State::default() }),
            changed: Condvar::new(),
            effort: AtomicU8::new(pace.effort().step()),
            pace: Mutex::new(pace),
            epoch,
            counts: Counts::default(),
        })
    }

    /// Where the bytes went so far.
    pub fn counts(&self) -> PageCounts {
        self.counts.snapshot(self.effort())
    }

    /// Whether the target's agent writes pages itself; none: not decided yet.
    pub fn is_direct(&self) -> Option<bool> {
        self.state.lock().mode.as_ref().map(|mode| matches!(mode, Mode::Direct(_)))
    }

    /// Why the migration could not go on.
    pub fn failed(&self) -> Option<String> {
        self.state.lock().failed.clone()
    }

    pub(crate) fn width(&self) -> Width {
        self.settings.width
    }

    pub(super) fn packers(&self) -> Option<&Arc<Packers>> {
        self.settings.packers.as_ref()
    }

    pub(super) fn effort(&self) -> Effort {
        Effort::nth(self.effort.load(Relaxed))
    }

    pub(super) fn packed(&self, took: Duration) {
        add(&self.counts.packing_us, took.as_micros() as usize);
    }

    /// A batch's turn came.
    pub(super) fn taken(&self, late: bool) {
        let Some(packers) = self.packers() else { return };
        let mut pace = self.pace.lock();
        pace.taken(
            self.epoch.elapsed(),
            Duration::from_micros(self.counts.packing_us.load(Relaxed)),
            late,
            packers.count(),
        );
        self.effort.store(pace.effort().step(), Relaxed);
    }

    /// The main channel tells of the guest's RAM: what is to be said to the target, and waited for.
    pub(super) fn blocks(&self, blocks: Vec<BlockInfo>) -> Note {
        self.state.lock().blocks.clone_from(&blocks);
        Note::Blocks { key: self.settings.key, blocks }
    }

    /// Nothing more is understood of the main channel.
    ///
    /// # Errors
    /// The target's agent has begun to write pages itself, and only what the main channel says can end that.
    pub(super) fn not_understood(&self, why: &str) -> Result<(), Failed> {
        let mut state = self.state.lock();
        if let Some(Mode::Direct(_)) = state.mode {
            return Err(format!(
                "QEMU's stream has something that this version does not know, after pages were placed: {why}; \
                 migrate without direct placement"
            ));
        }
        state.mode = Some(Mode::Rebuild);
        self.changed.notify_all();
        Ok(())
    }

    /// What becomes of pages; waits until that is decided.
    pub(super) fn mode(&self, is_over: &dyn Fn() -> bool) -> Result<Mode, Failed> {
        self.wait("whether it writes pages itself", is_over, |state| state.mode.clone())
    }

    /// The target has answered.
    pub(super) fn heard(&self, note: Note) -> Result<(), Failed> {
        let mut state = self.state.lock();
        match note {
            Note::Mode { direct, .. } if direct.is_empty() && !self.settings.direct => {}
            Note::Mode { direct, .. } if state.mode.is_none() && !state.blocks.is_empty() => {
                state.mode = Some(if direct.is_empty() {
                    Mode::Rebuild
                } else {
                    Mode::Direct(Arc::new(self.direct(&state.blocks, &direct)?))
                });
            }
            Note::Verdict { .. } | Note::Differ { .. } if state.answers.is_empty() => state.answers.push(note),
            note => return Err(format!("the target's agent said something out of place: {note:?}")),
        }
        self.changed.notify_all();
        Ok(())
    }

    fn direct(&self, blocks: &[BlockInfo], direct: &[u16]) -> Result<Direct, Failed> {
        let mut numbers = HashMap::new();
        let mut ram = HashMap::new();
        for &number in direct {
            let block = blocks.get(usize::from(number)).ok_or("the target's agent speaks of RAM that there is not")?;
            numbers.insert(block.name.clone(), number);
            if let Some(Ok(found)) = self.settings.ram.as_ref().map(|find| find(block)) {
                ram.insert(number, found);
            }
        }
        let pages = blocks.iter().map(|block| block.bytes.div_ceil(PAGE_BYTES as u64) as u32);
        Ok(Direct { ledger: Ledger::new(&self.settings.key, pages), numbers, ram })
    }

    /// The target's next answer.
    pub(super) fn answer(&self, is_over: &dyn Fn() -> bool) -> Result<Note, Failed> {
        self.wait("whether its copy is the same", is_over, |state| state.answers.pop())
    }

    /// A multifd channel has passed so many barriers.
    pub(super) fn passed(&self, channel: StreamId, barriers: u32) {
        self.state.lock().channels.insert(channel, barriers);
        self.changed.notify_all();
    }

    /// Waits until all multifd channels have passed so many barriers. Returns how many they are.
    pub(super) fn all_passed(&self, barriers: u32, is_over: &dyn Fn() -> bool) -> Result<u16, Failed> {
        let channels = self.settings.channels;
        self.wait("QEMU's channels", is_over, |state| {
            let passed = state.channels.values().filter(|passed| **passed >= barriers).count();
            (passed >= usize::from(channels)).then_some(channels)
        })
    }

    /// It cannot go on.
    pub(super) fn fail(&self, why: &str) {
        self.state.lock().failed.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }

    fn wait<T>(
        &self,
        what: &str,
        is_over: &dyn Fn() -> bool,
        mut find: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Failed> {
        let deadline = Instant::now() + ANSWER_TIME;
        let mut state = self.state.lock();
        loop {
            if let Some(why) = &state.failed {
                return Err(why.clone());
            }
            if let Some(found) = find(&mut state) {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                return Err(format!("not known within {} s: {what}", ANSWER_TIME.as_secs()));
            }
            self.changed.wait_for(&mut state, LOOK);
            if is_over() {
                return Err("the connection is over".into());
            }
        }
    }
}

/// The regions of a ledger, in as many notes as it takes.
pub(super) fn regions(ledger: &Ledger) -> Vec<Note> {
    let regions: Vec<(RegionId, Digest)> = ledger.digests().into_iter().collect();
    let mut notes: Vec<Note> = regions
        .chunks(skein_pages::record::NOTE_REGIONS_MAX)
        .map(|regions| Note::Regions { regions: regions.to_vec(), last: false })
        .collect();
    match notes.last_mut() {
        Some(Note::Regions { last, .. }) => *last = true,
        _ => notes.push(Note::Regions { regions: Vec::new(), last: true }),
    }
    notes
}
