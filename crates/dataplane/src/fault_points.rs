//! Plants errors for tests, and has a point where a test halts a migration. Compiled only with the feature
//! `fault-points`.
//!
//! `SKEIN_PLANT=NAME` makes a target's agent err until it is first asked whether its copy is the same, so that what is
//! sent again then stays; `SKEIN_PLANT=NAME:always` makes it err for ever. The names are those of `Plant`. Only pages
//! of every other region are spoilt: the others show what an error does to its neighbours. For a source's agent there
//! is `unplaceable` alone. `unreachable` is there for good.
//!
//! With `SKEIN_FAULT_POINT=ram-complete` and `SKEIN_FAULT_FILE=PATH` a source's agent halts once the target's copy is
//! known to be the same, and before anything that follows the pages is read, in every migration; see [`halt`].

use std::env;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use skein_pages::REGION_PAGES;

/// Says after how long a halted thread goes on, whatever happens.
const HALT_MAX: Duration = Duration::from_secs(60);

/// An error at the target; `unplaceable` is at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// `stale-zero`: a page has content and is to be zero, and is not written.
    StaleZero,
    /// `stale-version`: a newer version of a page is taken for an older one.
    StaleVersion,
    /// `lost-batch`: a batch is dropped.
    LostBatch,
    /// `wrong-page`: a page is written where another belongs.
    WrongPage,
    /// `wrong-block`: a page is written where a page of another block belongs, if there is another.
    WrongBlock,
    /// `wrong-base`: a delta is applied to something else than its base.
    WrongBase,
    /// `short-mark`: the same, and 1 bit of the result's mark is compared instead of 128: half of the wrong results
    /// stay.
    ShortMark,
    /// `unplaceable`: once all pages were written, the source finds that they cannot be.
    Unplaceable,
    /// `unreachable`: the guest's RAM cannot be reached.
    Unreachable,
}

const NAMES: [(&str, Plant); 9] = [
    ("stale-zero", Plant::StaleZero),
    ("stale-version", Plant::StaleVersion),
    ("lost-batch", Plant::LostBatch),
    ("wrong-page", Plant::WrongPage),
    ("wrong-block", Plant::WrongBlock),
    ("wrong-base", Plant::WrongBase),
    ("short-mark", Plant::ShortMark),
    ("unplaceable", Plant::Unplaceable),
    ("unreachable", Plant::Unreachable),
];

/// Holds the planted error, and whether it is planted for ever.
static PLANTED: LazyLock<Option<(Plant, bool)>> = LazyLock::new(|| {
    let text = env::var("SKEIN_PLANT").ok()?;
    let (name, always) = text.strip_suffix(":always").map_or((&text[..], false), |name| (name, true));
    let (_, plant) = NAMES.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("SKEIN_PLANT={text}"));
    Some((*plant, always))
});
static COMPARED: AtomicBool = AtomicBool::new(false);

/// Returns whether the error is to be made with this page; for a batch, with its first page.
pub(crate) fn is_planted(plant: Plant, page: u32) -> bool {
    let wanted = PLANTED.is_some_and(|(planted, always)| planted == plant && (always || !COMPARED.load(SeqCst)));
    let one_in = match plant {
        Plant::LostBatch => 1,
        // A copy that is short of CPU has few rounds, and few deltas.
        Plant::ShortMark => 2,
        _ => 16,
    };
    wanted && page as usize / REGION_PAGES % 2 == 1 && page % one_in == 5 % one_in
}

/// Returns whether an error that concerns no page of its own is planted: [`Plant::Unplaceable`],
/// [`Plant::Unreachable`].
pub(crate) fn is_planted_at_all(plant: Plant) -> bool {
    PLANTED.is_some_and(|(planted, _)| planted == plant)
}

/// Notes that both copies are about to be compared.
pub(crate) fn compared() {
    COMPARED.store(true, SeqCst);
}

/// Notes that the point `label` was reached, and halts there if a test asked for that.
pub(crate) fn point(label: &str) {
    if let (Ok(wanted), Ok(file)) = (env::var("SKEIN_FAULT_POINT"), env::var("SKEIN_FAULT_FILE"))
        && wanted == label
    {
        halt(Path::new(&file), label);
    }
}

/// Makes the file, and halts the thread until the file is gone, or a minute is over.
///
/// # Panics
/// The file cannot be made.
pub fn halt(file: &Path, label: &str) {
    fs::write(file, label).expect("a fault point's file can be made");
    let end = Instant::now() + HALT_MAX;
    while file.exists() && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
}
