//! The thread that writes: one job after the other, and the ends of leases in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use skein_store::{Cause, Changes, Lease, LeaseId, Outcome, Prepared, Revision, StoreError, Transaction};

use crate::disk::{Disk, DiskError, WriteError};
use crate::shared::Shared;

/// How many jobs wait at most. A job takes some milliseconds, so that more would wait longer than callers do.
pub(crate) const JOBS_MAX: usize = 1024;

/// How often leases are looked at, at least.
const LEASE_CHECK_PERIOD: Duration = Duration::from_millis(200);
/// How long it is waited before a lease is ended once more that could not be ended; each time twice as long as before.
const END_WAIT_MIN: Duration = Duration::from_millis(20);
/// The longest of these waits.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

/// What is to be written.
pub(crate) enum Task {
    Commit(Transaction),
    Grant(Duration),
    KeepAlive(LeaseId),
    Revoke(LeaseId),
    Compact(Revision),
}

/// What was done.
pub(crate) enum Done {
    Commit(Outcome),
    Grant(Lease),
    KeepAlive(Duration),
    Nothing,
}

pub(crate) struct Job {
    task: Task,
    answer: SyncSender<Result<Done, StoreError>>,
    stage: Arc<AtomicU8>,
}

/// A job waits, until its writer or its caller takes it away.
const WAITS: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Gives a job to the writer, and waits for its answer.
pub(crate) fn ask(jobs: &SyncSender<Job>, task: Task, within: Duration) -> Result<Done, StoreError> {
    let deadline = Instant::now() + within;
    let (answer, answers) = sync_channel(1);
    let stage = Arc::new(AtomicU8::new(WAITS));
    match jobs.try_send(Job { task, answer, stage: stage.clone() }) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => return Err(StoreError::Unavailable(Cause::new(DiskError::Slow))),
        Err(TrySendError::Disconnected(_)) => return Err(StoreError::Unavailable(Cause::new(DiskError::Ended))),
    }
    match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(result) => result,
        // The writer is about to do it, or never will.
        Err(_) => match stage.compare_exchange(WAITS, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Err(StoreError::Unavailable(Cause::new(DiskError::Slow))),
            Err(_) => Err(StoreError::Unknown(Cause::new(DiskError::Slow))),
        },
    }
}

/// Does jobs until nobody is left who could give one.
pub(crate) fn run(mut disk: Disk, shared: &Shared, jobs: &Receiver<Job>) {
    let _ended = EndsStore(shared);
    let mut trouble = Trouble::default();
    loop {
        match jobs.recv_timeout(trouble.wait.unwrap_or_else(|| until_next_end(shared))) {
            Ok(job) => {
                if job.stage.compare_exchange(WAITS, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    // Whoever had a lease that is over must not write any more.
                    end_leases(&mut disk, shared, &mut trouble);
                    // A caller that no longer waits has been told that the outcome is unknown.
                    let _ = job.answer.try_send(done(&mut disk, shared, job.task));
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                end_leases(&mut disk, shared, &mut trouble);
                trouble.wait_longer();
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn until_next_end(shared: &Shared) -> Duration {
    if shared.check().is_err() {
        return LEASE_CHECK_PERIOD;
    }
    let until = shared.memory.read().next_end().map(|end| end.saturating_sub((shared.clock)()));
    until.unwrap_or(LEASE_CHECK_PERIOD).min(LEASE_CHECK_PERIOD)
}

/// Leases that are over and cannot be ended, as on a full disk.
#[derive(Debug, Default)]
struct Trouble {
    /// How long it is waited before they are tried again. `None`: there are none.
    wait: Option<Duration>,
    /// What was said last.
    told: Option<String>,
}

impl Trouble {
    /// Notes why a lease cannot be ended. Returns whether that is to be said: it is another reason than before.
    fn note(&mut self, why: String) -> bool {
        self.wait.get_or_insert(END_WAIT_MIN);
        let is_new = self.told.as_ref() != Some(&why);
        self.told = Some(why);
        is_new
    }

    fn wait_longer(&mut self) {
        self.wait = self.wait.map(|wait| (wait * 2).min(END_WAIT_MAX));
    }
}

/// The store ends with its writer, also if that panics: what it would read is then of the past.
struct EndsStore<'a>(&'a Shared);

impl Drop for EndsStore<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn done(disk: &mut Disk, shared: &Shared, task: Task) -> Result<Done, StoreError> {
    shared.check()?;
    let now = (shared.clock)();
    match task {
        Task::Commit(transaction) => {
            let prepared = shared.memory.read().prepare(&transaction)?;
            let Prepared::Changes(changes) = prepared else {
                let Prepared::Conflict { failed } = prepared else { unreachable!("it is one of the two") };
                return Ok(Done::Commit(Outcome::Conflict { failed }));
            };
            let revision = changes.revision;
            write(disk, shared, changes)?;
            Ok(Done::Commit(Outcome::Committed { revision }))
        }
        Task::Grant(ttl) => {
            let lease = shared.memory.read().next_lease(ttl);
            ended(shared, disk.write_lease(lease))?;
            shared.memory.write().add_lease(now, lease);
            Ok(Done::Grant(lease))
        }
        // Leases that are due have ended just now.
        Task::KeepAlive(lease) => shared.memory.write().keep_alive(now, lease).map(Done::KeepAlive),
        Task::Revoke(lease) => {
            let changes = shared.memory.read().prepare_end(lease)?;
            write(disk, shared, changes)?;
            Ok(Done::Nothing)
        }
        Task::Compact(through) => {
            let (dropped, compacted) = {
                let memory = shared.memory.read();
                (memory.prepare_compaction(through)?, memory.compacted())
            };
            if through > compacted {
                ended(shared, disk.compact(through, &dropped))?;
                shared.memory.write().compact(through)?;
                shared.notify();
            }
            Ok(Done::Nothing)
        }
    }
}

/// Ends the leases that are due. If the disk takes nothing, they end later.
fn end_leases(disk: &mut Disk, shared: &Shared, trouble: &mut Trouble) {
    let due = match shared.check() {
        Ok(()) => shared.memory.read().due((shared.clock)()),
        // Nothing is written any more.
        Err(_) => Vec::new(),
    };
    for lease in due {
        let Ok(changes) = shared.memory.read().prepare_end(lease) else { continue };
        if let Err(error) = write(disk, shared, changes) {
            let error = &error as &dyn std::error::Error;
            if trouble.note(words(error)) {
                tracing::warn!(%lease, error, "a lease that is over cannot be ended; it is tried again");
            }
            return;
        }
    }
    if trouble.told.is_some() {
        tracing::info!("leases that are over are ended again");
    }
    *trouble = Trouble::default();
}

/// Returns an error with its causes.
fn words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"))
}

/// First the disk, then memory, then those who wait.
fn write(disk: &mut Disk, shared: &Shared, changes: Changes) -> Result<(), StoreError> {
    if changes.versions.is_empty() && changes.ended.is_none() {
        return Ok(());
    }
    let before = shared.memory.read().revision();
    ended(shared, disk.write(before, &changes))?;
    shared.memory.write().apply(changes);
    shared.notify();
    Ok(())
}

/// Ends the store if nobody knows what is on the disk.
fn ended(shared: &Shared, result: Result<(), WriteError>) -> Result<(), StoreError> {
    result.map_err(|WriteError { error, ends }| {
        if ends {
            shared.end();
        }
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_ended_is_tried_ever_less_often_and_said_once() {
        let mut trouble = Trouble::default();
        assert!(trouble.note("full".into()));
        assert_eq!(trouble.wait, Some(END_WAIT_MIN));
        for _ in 0..20 {
            trouble.wait_longer();
            assert!(!trouble.note("full".into()));
        }
        assert_eq!(trouble.wait, Some(END_WAIT_MAX));
        assert!(trouble.note("read-only".into()) && trouble.note("full".into()), "it is another reason");
    }
}
