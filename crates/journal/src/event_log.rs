//! Keeps what happened in a migration, as a line of JSON for each event.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use nix::libc::O_NONBLOCK;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};

/// Bounds the bytes of a log. A migration writes some tens of events of about a hundred bytes.
pub const EVENT_LOG_BYTES_MAX: u64 = 4 << 20;

/// Says how many logs are worth keeping; see [`EventLog::prune`].
pub const EVENT_LOGS_KEPT: usize = 1000;

const ID_BYTES_MAX: usize = 100;

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLogEntry<E> {
    /// The time of writing, by this host's clock; in the file as RFC 3339 in UTC, with milliseconds.
    #[serde(serialize_with = "milliseconds")]
    pub time: Timestamp,
    /// What happened.
    pub event: E,
}

fn milliseconds<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.3}"))
}

/// The reason why an ID cannot be a file's name here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{id:?} is no ID: it takes 1 to {ID_BYTES_MAX} letters, digits, dots, dashes and underscores, and begins with no \
     dot"
)]
pub struct BadId {
    /// The ID, or its beginning.
    pub id: String,
}

fn path(dir: &Path, id: &str) -> Result<PathBuf, BadId> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if id.is_empty() || id.len() > ID_BYTES_MAX || id.starts_with('.') || !id.chars().all(good) {
        return Err(BadId { id: id.chars().take(ID_BYTES_MAX).collect() });
    }
    Ok(dir.join(format!("{id}.jsonl")))
}

/// The event log of one migration, open for writing: `DIR/ID.jsonl`.
///
/// The log is for people. Nothing waits for the disk. A log that cannot be written is a warning, no error: the
/// migration goes on.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    /// The open file; `None` until it could be opened.
    file: Option<File>,
    bytes: u64,
    /// Whether the file ends without a whole line.
    torn: bool,
    lost: u64,
}

impl EventLog {
    /// Opens a log, new or with its earlier events.
    pub fn open(dir: &Path, id: &str) -> Result<EventLog, BadId> {
        let mut log = EventLog { path: path(dir, id)?, file: None, bytes: 0, torn: false, lost: 0 };
        if let Err(error) = log.reopen() {
            // The first event tries again, and says so if it fails.
            tracing::debug!(path = %log.path.display(), %error, "an event log cannot be opened yet");
        }
        Ok(log)
    }

    /// Adds an event with the current time. An event that cannot be written is counted; the first is logged.
    pub fn append(&mut self, event: &impl Serialize) {
        self.append_at(Timestamp::now(), event);
    }

    /// Returns how many events could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn append_at(&mut self, time: Timestamp, event: &impl Serialize) {
        if let Err(error) = self.write(time, event) {
            if self.lost == 0 {
                tracing::warn!(path = %self.path.display(), %error, "the event log cannot be written: events are \
                    missing in it");
            }
            self.lost += 1;
        }
    }

    fn write(&mut self, time: Timestamp, event: &impl Serialize) -> io::Result<()> {
        let mut line = Vec::with_capacity(256);
        if self.file.is_none() {
            self.reopen()?;
        }
        if self.torn {
            line.push(b'\n');
        }
        serde_json::to_writer(&mut line, &EventLogEntry { time, event })?;
        line.push(b'\n');
        if self.bytes + line.len() as u64 > EVENT_LOG_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "it is as large as a log may become"));
        }
        let file = self.file.as_mut().expect("opened above");
        // One write, so that the file has a whole line or a line's beginning.
        let written = file.write(&line)?;
        self.bytes += written as u64;
        if written > 0 {
            self.torn = written < line.len();
        }
        if written < line.len() {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        let mut file = (OpenOptions::new().read(true).append(true).create(true).mode(0o640))
            .custom_flags(O_NONBLOCK)
            .open(&self.path)?;
        self.bytes = file.metadata()?.len();
        if self.bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            self.torn = last != *b"\n";
        }
        self.file = Some(file);
        Ok(())
    }

    /// Reads a log back, as far as the log can be read.
    pub fn read<E: DeserializeOwned>(dir: &Path, id: &str) -> Result<EventLogContents<E>, ReadError> {
        let path = path(dir, id)?;
        let read = || -> io::Result<Vec<u8>> {
            let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&path)?;
            let mut bytes = Vec::new();
            file.take(EVENT_LOG_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(EventLogContents::parse(&bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(ReadError::Missing { id: id.to_owned(), dir: dir.to_owned() })
            }
            Err(source) => Err(ReadError::Io { path, source }),
        }
    }

    /// Returns the logs in a directory, the last written first; none if there is no directory.
    pub fn list(dir: &Path) -> io::Result<Vec<LogFile>> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut logs = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".jsonl")) else { continue };
            if path(dir, id).is_err() {
                continue;
            }
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => {
                    logs.push(LogFile { id: id.to_owned(), modified: metadata.modified()?, bytes: metadata.len() });
                }
                // The log was pruned meanwhile, or the file is no log.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        logs.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| b.id.cmp(&a.id)));
        Ok(logs)
    }

    /// Removes all logs but the `keep` that were written last, and returns how many were removed.
    pub fn prune(dir: &Path, keep: usize) -> io::Result<usize> {
        let mut removed = 0;
        for log in EventLog::list(dir)?.iter().skip(keep) {
            match fs::remove_file(dir.join(format!("{}.jsonl", log.id))) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }
}

/// A log in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// The ID of the migration.
    pub id: String,
    /// When the log was last written.
    pub modified: SystemTime,
    /// The log's length, in bytes.
    pub bytes: u64,
}

/// The content of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLogContents<E> {
    /// The entries, in the order in which they were written.
    pub entries: Vec<EventLogEntry<E>>,
    /// The lines that could not be read, because of a crash, another version, or an editor.
    pub damaged: Vec<DamagedLine>,
    /// Whether the last line is half written, by a crash or at this moment.
    pub torn: bool,
}

/// A line that is no event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedLine {
    /// The line's number, counted from 1.
    pub line: usize,
    /// The reason why the line is no event.
    pub why: String,
}

impl<E: DeserializeOwned> EventLogContents<E> {
    fn parse(bytes: &[u8]) -> EventLogContents<E> {
        let mut events = EventLogContents { entries: Vec::new(), damaged: Vec::new(), torn: false };
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if line == b"\n" {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(entry) => events.entries.push(entry),
                Err(_) if !line.ends_with(b"\n") => events.torn = true,
                Err(error) => events.damaged.push(DamagedLine { line: index + 1, why: error.to_string() }),
            }
        }
        events
    }
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The ID cannot be a log's name.
    #[error(transparent)]
    Id(#[from] BadId),
    /// There is no such log.
    #[error("there is no log of migration {id} in {dir}: `skein migration list` names those that there \
             are", dir = .dir.display())]
    Missing {
        /// The ID of the migration.
        id: String,
        /// The directory that was searched.
        dir: PathBuf,
    },
    /// The system failed.
    #[error("cannot read {path}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Event {
        Phase { name: String, ms: u32 },
        Done,
    }

    fn phase(name: &str, ms: u32) -> Event {
        Event::Phase { name: name.into(), ms }
    }

    #[test]
    fn a_line_is_what_the_documentation_says() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(dir.path(), "web-1").unwrap();
        log.append_at("2026-02-03T04:05:06.1204Z".parse().unwrap(), &phase("precopy", 12));
        log.append_at("2026-02-03T04:05:07Z".parse().unwrap(), &Event::Done);
        assert_eq!(
            fs::read_to_string(dir.path().join("web-1.jsonl")).unwrap(),
            "{\"time\":\"2026-02-03T04:05:06.120Z\",\"event\":{\"phase\":{\"name\":\"precopy\",\"ms\":12}}}\n\
             {\"time\":\"2026-02-03T04:05:07.000Z\",\"event\":\"done\"}\n"
        );
        let before = Timestamp::now();
        log.append(&Event::Done);
        let events = EventLog::read::<Event>(dir.path(), "web-1").unwrap();
        assert_eq!(
            events.entries.iter().map(|entry| entry.event.clone()).collect::<Vec<_>>(),
            [phase("precopy", 12), Event::Done, Event::Done]
        );
        let late = events.entries[2].time.duration_since(before);
        assert!(late.abs() < jiff::SignedDuration::from_secs(60), "{late}");
        assert_eq!((events.damaged, events.torn, log.lost()), (vec![], false, 0));
    }

    #[test]
    fn a_torn_line_costs_itself_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.jsonl");
        EventLog::open(dir.path(), "m").unwrap().append(&phase("one", 1));
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, [&bytes[..], &bytes[..20]].concat()).unwrap();
        let events = EventLog::read::<Event>(dir.path(), "m").unwrap();
        assert_eq!((events.entries.len(), events.damaged.len(), events.torn), (1, 0, true));

        EventLog::open(dir.path(), "m").unwrap().append(&phase("two", 2));
        let events = EventLog::read::<Event>(dir.path(), "m").unwrap();
        assert_eq!(events.entries.len(), 2);
        assert_eq!(events.entries[1].event, phase("two", 2));
        assert_eq!((events.damaged.len(), events.damaged[0].line, events.torn), (1, 2, false));
        // Another program's events can still be read.
        assert_eq!(EventLog::read::<Value>(dir.path(), "m").unwrap().entries[0].event["phase"]["name"], "one");
        let other = EventLog::read::<u32>(dir.path(), "m").unwrap();
        assert_eq!((other.entries.len(), other.damaged.len()), (0, 3));
    }

    #[test]
    fn a_log_that_cannot_be_written_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("later");
        let mut log = EventLog::open(&missing, "m").unwrap();
        log.append(&Event::Done);
        log.append(&Event::Done);
        assert_eq!(log.lost(), 2);
        fs::create_dir(&missing).unwrap();
        log.append(&phase("there", 3));
        let events = EventLog::read::<Event>(&missing, "m").unwrap();
        assert_eq!((events.entries.len(), log.lost()), (1, 2));

        // This device is always full.
        std::os::unix::fs::symlink("/dev/full", dir.path().join("full.jsonl")).unwrap();
        let mut log = EventLog::open(dir.path(), "full").unwrap();
        log.append(&Event::Done);
        assert_eq!(log.lost(), 1);
    }

    #[test]
    fn a_log_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(dir.path(), "long").unwrap();
        let event = "x".repeat(100_000);
        for _ in 0..50 {
            log.append(&event);
        }
        let fit = EVENT_LOG_BYTES_MAX / 100_046;
        assert_eq!(log.lost(), 50 - fit);
        assert_eq!(EventLog::read::<String>(dir.path(), "long").unwrap().entries.len() as u64, fit);
    }

    #[test]
    fn an_id_stays_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        for id in ["", ".", "..", "../x", "a/b", "a\0", "ü", ".hidden", &"x".repeat(101)] {
            assert!(EventLog::open(dir.path(), id).is_err(), "{id:?}");
            assert!(matches!(EventLog::read::<Event>(dir.path(), id), Err(ReadError::Id(_))), "{id:?}");
        }
        assert!(EventLog::open(dir.path(), &"x".repeat(100)).is_ok());
        let missing = EventLog::read::<Event>(dir.path(), "a-b_C.1").unwrap_err();
        assert!(matches!(missing, ReadError::Missing { .. }), "{missing}");
    }

    #[test]
    fn the_newest_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(EventLog::list(&dir.path().join("none")).unwrap(), []);
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30);
        for n in 0..12u64 {
            EventLog::open(dir.path(), &format!("m{n}")).unwrap().append(&n);
            let file = File::open(dir.path().join(format!("m{n}.jsonl"))).unwrap();
            // The order of writing is not the order of the names.
            file.set_modified(begin + Duration::from_secs(n * 5 % 12)).unwrap();
        }
        fs::write(dir.path().join("other.txt"), "not ours").unwrap();
        fs::create_dir(dir.path().join("directory.jsonl")).unwrap();
        let newest: Vec<String> = (0..12u64).rev().map(|t| format!("m{}", t * 5 % 12)).collect();
        let ids = || EventLog::list(dir.path()).unwrap().into_iter().map(|log| log.id).collect::<Vec<_>>();
        assert_eq!(ids(), newest);
        assert_eq!(EventLog::prune(dir.path(), 5).unwrap(), 7);
        assert_eq!(ids(), newest[..5]);
        assert_eq!(EventLog::prune(dir.path(), 5).unwrap(), 0);
        assert!(dir.path().join("other.txt").exists() && dir.path().join("directory.jsonl").exists());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
            let events = EventLogContents::<Value>::parse(&bytes);
            prop_assert_eq!(events.entries.len() + events.damaged.len() + usize::from(events.torn), lines);
        }

        #[test]
        fn a_log_cut_anywhere_gives_what_was_whole(
            events in proptest::collection::vec((any::<String>(), any::<u32>()), 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            let time = Timestamp::UNIX_EPOCH;
            for (name, ms) in &events {
                bytes.extend(serde_json::to_vec(&EventLogEntry { time, event: phase(name, *ms) }).unwrap());
                bytes.push(b'\n');
            }
            let cut = cut.index(bytes.len() + 1);
            let whole = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
            let read = EventLogContents::<Event>::parse(&bytes[..cut]);
            prop_assert!(read.damaged.is_empty());
            // A line that only lacks its end is whole, too.
            prop_assert!(read.entries.len() == whole || read.entries.len() == whole + 1 && !read.torn);
            for (entry, (name, ms)) in read.entries.iter().zip(&events) {
                prop_assert_eq!(&entry.event, &phase(name, *ms));
            }
        }
    }
}
