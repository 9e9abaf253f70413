//! Keeps requests over a restart of the agent: in a file for each, written before its migration is begun.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use serde::{Deserialize, Serialize};
use skein_hypervisor::ProcessId;
use tracing::warn;

use super::machine::{AskedMigration, AttemptCount, Attempts, AttemptsEnd, BegunAttempt, ChangedOptions};
use crate::dirs::replace;

/// Bounds a file, in bytes: a thousand attempts with a check that found much.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Holds the version of the format; a file of another version is left alone.
const FORMAT: u32 = 1;

/// A request as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedRequest {
    format: u32,
    /// The id that the client chose for the request.
    pub(super) request_id: Option<String>,
    pub(super) asked_at: jiff::Timestamp,
    pub(super) asked: AskedMigration,
    /// What a person has changed since.
    #[serde(default)]
    pub(super) changed: ChangedOptions,
    /// The process of the guest; `None`: not known.
    #[serde(default)]
    pub(super) guest: Option<ProcessId>,
    /// The attempts that were begun. The newest may never have come to be: it was about to be begun.
    pub(super) begun: Vec<BegunAttempt>,
    pub(super) count: AttemptCount,
    /// The end of all attempts; `None`: they are not over.
    pub(super) end: Option<AttemptsEnd>,
}

impl SavedRequest {
    /// Returns a request with its attempts as they stand.
    pub(super) fn of(
        request_id: Option<String>,
        asked_at: jiff::Timestamp,
        guest: Option<ProcessId>,
        attempts: &Attempts,
    ) -> SavedRequest {
        SavedRequest {
            format: FORMAT,
            request_id,
            asked_at,
            asked: attempts.asked().clone(),
            changed: attempts.changed().clone(),
            guest,
            begun: attempts.begun().to_vec(),
            count: attempts.count(),
            end: attempts.end().cloned(),
        }
    }
}

/// The directory of the files. A file is named by its first migration's id.
pub(crate) struct RequestStore {
    dir: PathBuf,
}

impl RequestStore {
    pub(crate) fn new(dir: PathBuf) -> RequestStore {
        RequestStore { dir }
    }

    /// Writes a request. Returns when the file is there after a power cut.
    ///
    /// # Errors
    ///
    /// The directory cannot be written.
    pub(super) fn write(&self, request: &SavedRequest) -> io::Result<()> {
        let Some(path) = self.path(request) else { return Ok(()) };
        replace(&path, &serde_json::to_vec_pretty(request).expect("plain data always serialises"))?;
        fs::File::open(&self.dir)?.sync_all()
    }

    /// Forgets a request.
    pub(super) fn remove(&self, request: &SavedRequest) {
        if let Some(path) = self.path(request)
            && let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!("{} cannot be removed: {error}", path.display());
        }
    }

    /// Returns all requests, the oldest first. A file that cannot be read is logged and left where it is.
    pub(super) fn load(&self) -> Vec<SavedRequest> {
        let mut requests = Vec::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            // The file is of an agent that died while it wrote.
            if path.extension().is_some_and(|extension| extension == "new") {
                let _ = fs::remove_file(&path);
            }
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let read = read_file(&path)
                .and_then(|bytes| serde_json::from_slice::<SavedRequest>(&bytes).map_err(io::Error::other));
            match read {
                Ok(request) if request.format != FORMAT => {
                    warn!("{} has format {}, of another version of skein", path.display(), request.format);
                }
                Ok(request) if self.path(&request).as_ref() == Some(&path) => requests.push(request),
                Ok(_) => warn!("{} is passed over: its name is not that of its first migration", path.display()),
                Err(error) => warn!("{} cannot be read: {error}", path.display()),
            }
        }
        requests.sort_by_key(|request| request.asked_at);
        requests
    }

    fn path(&self, request: &SavedRequest) -> Option<PathBuf> {
        let first = request.begun.first()?.migration;
        Some(self.dir.join(format!("{first}.json")))
    }
}

/// Reads a regular file of bounded length; anything else is refused, and not waited for.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::File::options().read(true).custom_flags(O_NONBLOCK | O_NOFOLLOW).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use skein_api::{MigrateOptions, Refusal};
    use skein_handover::MigrationId;

    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_what_is_no_request_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = RequestStore::new(dir.path().join("attempts"));
        assert_eq!(store.load(), [], "there is no directory");
        fs::create_dir(dir.path().join("attempts")).unwrap();
        let options = MigrateOptions { retries: 3, deadline_s: Some(60), ..MigrateOptions::default() };
        let asked = AskedMigration { vm: "web1".into(), to: "hostb".into(), options, hold: None, by_controller: false };
        let count = AttemptCount { made: 2, allowed: 4, is_cancelled: true, restarts: true };
        let changed = ChangedOptions { hold: None, allow_throttle: Some(60), rate_bits_per_s: Some(1) };
        let request = |second, id: u64, end| {
            let begun = vec![BegunAttempt { number: 1, migration: MigrationId(id) }];
            let attempts = Attempts::recovered(asked.clone(), changed.clone(), begun, count, end);
            let guest = Some(ProcessId { pid: 7, started: 9 });
            SavedRequest::of(Some("name".into()), jiff::Timestamp::from_second(second).unwrap(), guest, &attempts)
        };
        let refused = AttemptsEnd::Refused(Refusal { message: "no".into(), cure: "wait".into() });
        let (older, newer) = (request(1, 7, None), request(2, 3, Some(refused)));
        store.write(&newer).unwrap();
        store.write(&older).unwrap();
        fs::write(dir.path().join("attempts/bad.json"), "{").unwrap();
        fs::write(dir.path().join("attempts/0.new"), "{").unwrap();
        let mut other = serde_json::to_value(&older).unwrap();
        other["format"] = 2.into();
        fs::write(dir.path().join("attempts/other.json"), other.to_string()).unwrap();
        let attempts = dir.path().join("attempts");
        nix::unistd::mkfifo(&attempts.join("pipe.json"), Mode::S_IRWXU).unwrap();
        fs::File::create(attempts.join("huge.json")).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        fs::copy(attempts.join("0000000000000003.json"), attempts.join("copy.json")).unwrap();
        assert_eq!(store.load(), [older.clone(), newer.clone()]);
        assert!(!attempts.join("0.new").exists());
        store.remove(&older);
        store.remove(&older);
        assert_eq!(store.load(), [newer]);
    }

    #[test]
    fn a_file_of_this_version_stays_readable() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"format":1,"request_id":"a-name","asked_at":"2026-11-25T20:00:00Z",
            "asked":{"vm":"web1","to":"hostb","options":{"retries":2}},
            "begun":[{"number":1,"migration":"00000000000000ab"}],
            "count":{"made":1,"allowed":3,"is_cancelled":false},"end":"migration"}"#;
        fs::write(dir.path().join("00000000000000ab.json"), text).unwrap();
        let read = RequestStore::new(dir.path().to_owned()).load();
        let [read] = &read[..] else { panic!("{read:?}") };
        assert_eq!((read.begun[0].migration, read.asked.options.retries), (MigrationId(0xab), 2));
        assert_eq!((read.end.as_ref(), read.request_id.as_deref()), (Some(&AttemptsEnd::Migration), Some("a-name")));
    }
}
