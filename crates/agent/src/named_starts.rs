//! Remembers starts that were asked for under a name, so that each is done once, and one that was not done never is.
//!
//! A file is written for each before anything is started, and again with what came of it. If the agent or the host ends
//! in between, what came of it is what is there afterwards: the guest, or none.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use skein_api::Refusal;
use tracing::warn;

use crate::dirs::replace;

/// Says how long a start is remembered: longer than any controller is out of reach, or is asked for what it began.
const KEPT_TIME: Duration = Duration::from_secs(7 * 86_400);
/// Bounds the starts that are remembered: a file of some hundred bytes each.
const KEPT_MAX: usize = 4096;
/// Bounds a file, in bytes: a name, and a refusal in words.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Holds the version of the format.
const FORMAT: u32 = 1;

/// What came of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartOutcome {
    /// The VM was started, or runs.
    Started,
    /// The VM was not started, and will not be by this name.
    NotStarted(Refusal),
}

/// A start as it is kept.
#[derive(Debug, Serialize, Deserialize)]
struct SavedStart {
    format: u32,
    name: String,
    state: SavedState,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SavedState {
    Begun,
    Started,
    NotStarted(Refusal),
}

/// The starts that were asked for under names.
pub(crate) struct NamedStarts {
    dir: PathBuf,
    /// The names of those that are under way in this process.
    under_way: Mutex<BTreeSet<String>>,
    /// Notified when one of them is over.
    over: Condvar,
}

/// A name whose start is under way, as long as this exists.
struct Turn<'a> {
    starts: &'a NamedStarts,
    name: &'a str,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.starts.under_way.lock().remove(self.name);
        self.starts.over.notify_all();
    }
}

impl NamedStarts {
    pub(crate) fn new(dir: PathBuf) -> NamedStarts {
        NamedStarts { dir, under_way: Mutex::default(), over: Condvar::new() }
    }

    /// Starts a VM by `start`, unless that was done under this name before. `runs` tells whether the VM has a QEMU. The
    /// outcome is on the disk when the call returns.
    ///
    /// # Errors
    ///
    /// The outcome is not known, or cannot be kept: the same name may be asked for again.
    pub(crate) fn once(
        &self,
        name: &str,
        patience: Duration,
        runs: impl Fn() -> bool,
        start: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<StartOutcome, Refusal> {
        let _turn = self.take_turn(name, patience)?;
        let file = self.dir.join(format!("{name}.json"));
        match read(&file, name) {
            Ok(None) => {}
            Ok(Some(SavedState::Started)) => return Ok(StartOutcome::Started),
            Ok(Some(SavedState::NotStarted(why))) => return Ok(StartOutcome::NotStarted(why)),
            // An earlier process of the agent began it, and nobody goes on with it.
            Ok(Some(SavedState::Begun)) => {
                let cut_short = Refusal {
                    message: "the agent ended while it was at that, and it was not done".into(),
                    cure: "ask for it again".into(),
                };
                return self.end(&file, name, if runs() { Ok(()) } else { Err(cut_short) });
            }
            Err(error) => return Err(unkept(&file, &error)),
        }
        self.forget_old();
        write(&file, name, SavedState::Begun).map_err(|error| unkept(&file, &error))?;
        // A VM that runs is what was asked for, whoever started it.
        let done = start().or_else(|why| if runs() { Ok(()) } else { Err(why) });
        self.end(&file, name, done)
    }

    /// Waits until no other thread is at a start of this name.
    fn take_turn<'a>(&'a self, name: &'a str, patience: Duration) -> Result<Turn<'a>, Refusal> {
        let end = Instant::now() + patience;
        let mut under_way = self.under_way.lock();
        while under_way.contains(name) {
            if self.over.wait_until(&mut under_way, end).timed_out() {
                let message = "the VM is still being started".into();
                return Err(Refusal { message, cure: "ask again when that is done".into() });
            }
        }
        under_way.insert(name.to_owned());
        Ok(Turn { starts: self, name })
    }

    fn end(&self, file: &Path, name: &str, done: Result<(), Refusal>) -> Result<StartOutcome, Refusal> {
        let (state, outcome) = match done {
            Ok(()) => (SavedState::Started, StartOutcome::Started),
            Err(why) => (SavedState::NotStarted(why.clone()), StartOutcome::NotStarted(why)),
        };
        write(file, name, state).map_err(|error| unkept(file, &error))?;
        Ok(outcome)
    }

    /// Forgets starts of long ago.
    fn forget_old(&self) {
        let of_file = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
        let found = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut all: Vec<(SystemTime, PathBuf)> = found.filter_map(of_file).collect();
        all.sort();
        let more = all.len().saturating_sub(KEPT_MAX - 1);
        let is_old = |written: &SystemTime| written.elapsed().is_ok_and(|age| age > KEPT_TIME);
        for (index, (written, path)) in all.iter().enumerate() {
            if (index < more || is_old(written))
                && let Err(error) = fs::remove_file(path)
            {
                warn!("{} cannot be removed: {error}", path.display());
            }
        }
    }
}

fn unkept(file: &Path, error: &io::Error) -> Refusal {
    Refusal { message: format!("{}: {error}", file.display()), cure: "mend that on this host".into() }
}

fn write(file: &Path, name: &str, state: SavedState) -> io::Result<()> {
    let saved = SavedStart { format: FORMAT, name: name.to_owned(), state };
    replace(file, &serde_json::to_vec(&saved).expect("plain data always serialises"))?;
    fs::File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads what came of a start. What cannot be read is not guessed.
fn read(file: &Path, name: &str) -> io::Result<Option<SavedState>> {
    let length = match fs::symlink_metadata(file) {
        Ok(found) if found.is_file() => found.len(),
        Ok(_) => return Err(io::Error::other("it is no regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    let saved: SavedStart = serde_json::from_slice(&fs::read(file)?).map_err(io::Error::other)?;
    if saved.format != FORMAT || saved.name != name {
        return Err(io::Error::other("it is of another version of skein, or of another start"));
    }
    Ok(Some(saved.state))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn refusal() -> Refusal {
        Refusal { message: "no room".into(), cure: "make room".into() }
    }

    #[test]
    fn a_name_is_started_once_and_what_was_not_started_never_is() {
        let dir = tempfile::tempdir().unwrap();
        let count = Cell::new(0);
        let start = |done: Result<(), Refusal>| {
            count.set(count.get() + 1);
            done
        };
        for _ in 0..2 {
            // Each round is another process of the agent.
            let starts = NamedStarts::new(dir.path().to_owned());
            for _ in 0..2 {
                let done = starts.once("a.0.1", PATIENCE, || false, || start(Ok(())));
                assert_eq!(done, Ok(StartOutcome::Started));
                let not = starts.once("a.1.1", PATIENCE, || false, || start(Err(refusal())));
                assert_eq!(not, Ok(StartOutcome::NotStarted(refusal())), "also if it could be started by now");
            }
        }
        assert_eq!(count.get(), 2);
    }

    #[test]
    fn a_start_that_was_cut_short_is_what_is_there_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let starts = NamedStarts::new(dir.path().to_owned());
        for name in ["runs", "runs-not"] {
            write(&dir.path().join(format!("{name}.json")), name, SavedState::Begun).unwrap();
        }
        let never = || panic!("it was begun before");
        assert_eq!(starts.once("runs", PATIENCE, || true, never), Ok(StartOutcome::Started));
        for runs in [false, true] {
            let StartOutcome::NotStarted(why) = starts.once("runs-not", PATIENCE, || runs, never).unwrap() else {
                panic!("what was said once stays so");
            };
            assert!(why.message.contains("the agent ended"), "{why:?}");
        }
    }

    #[test]
    fn a_vm_that_runs_needs_no_start() {
        let dir = tempfile::tempdir().unwrap();
        let starts = NamedStarts::new(dir.path().to_owned());
        let done = starts.once("a", PATIENCE, || true, || Err(refusal()));
        assert_eq!(done, Ok(StartOutcome::Started));
    }

    #[test]
    fn who_asks_again_meanwhile_waits_for_the_outcome() {
        let dir = tempfile::tempdir().unwrap();
        let starts = NamedStarts::new(dir.path().to_owned());
        let (begun, is_begun) = sync_channel(1);
        let (go, goes) = sync_channel::<()>(1);
        thread::scope(|scope| {
            let starts = &starts;
            let first = scope.spawn(move || {
                starts.once(
                    "a",
                    PATIENCE,
                    || false,
                    || {
                        begun.send(()).unwrap();
                        goes.recv().unwrap();
                        Err(refusal())
                    },
                )
            });
            is_begun.recv().unwrap();
            let never = || panic!("it is under way");
            let early = starts.once("a", Duration::ZERO, || false, never).unwrap_err();
            assert!(early.message.contains("still being started"), "{early:?}");
            let second = scope.spawn(move || starts.once("a", PATIENCE, || false, never));
            go.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Ok(StartOutcome::NotStarted(refusal())));
            assert_eq!(second.join().unwrap(), Ok(StartOutcome::NotStarted(refusal())));
        });
    }

    #[test]
    fn what_cannot_be_read_or_kept_starts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let never = || panic!("nothing is started");
        for odd in ["", "{", r#"{"format":2,"name":"a","state":"begun"}"#, r#"{"format":1,"name":"b","state":"begun"}"#]
        {
            fs::write(dir.path().join("a.json"), odd).unwrap();
            let starts = NamedStarts::new(dir.path().to_owned());
            assert!(starts.once("a", PATIENCE, || false, never).unwrap_err().message.contains("a.json"), "{odd}");
        }
        let starts = NamedStarts::new(dir.path().join("none"));
        assert!(starts.once("a", PATIENCE, || false, never).is_err());
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let dir = tempfile::tempdir().unwrap();
        let starts = NamedStarts::new(dir.path().to_owned());
        (0..KEPT_MAX + 3).for_each(|n| fs::write(dir.path().join(format!("x{n}.json")), "").unwrap());
        starts.once("a", PATIENCE, || false, || Ok(())).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT_MAX);
    }
}
