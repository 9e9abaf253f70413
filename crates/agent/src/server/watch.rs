//! Follows migrations for commands.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{Migration, PROGRESS_PERIOD, Reply};
use skein_handover::MigrationId;

use super::refusal::{Answered, refusal};
use super::request_server::{RequestServer, Say};
use crate::clock::wait_until;

/// How often progress is told at most.
const PROGRESS_MIN: Duration = Duration::from_millis(100);
/// A migration whose outcome is certain is tidied up by then, at both ends.
const SETTLE_TIME: Duration = Duration::from_secs(3);

impl RequestServer {
    /// Tells what is new of a migration until it is over.
    pub(super) fn follow(&self, id: MigrationId, say: &mut Say<'_>) -> Answered<Migration> {
        let mut seen = 0;
        loop {
            let mut migration = self.view(id)?;
            if migration.outcome.is_some() {
                // Whoever goes on at once, with `vm list` or back again, finds everything in order.
                let is_settled = || self.migrations.view().get(id).is_none_or(|migration| migration.stage.is_none());
                wait_until(SETTLE_TIME, is_settled);
                return self.view(id);
            }
            migration.events.clear();
            let gone = |_| Box::new(refusal("nobody listens", ""));
            say(&Reply::Progress(Box::new(migration))).map_err(gone)?;
            let since = Instant::now();
            seen = self.migrations.view().wait(id, seen, PROGRESS_PERIOD);
            if self.stopping.load(Ordering::SeqCst) {
                let cure = "the migration is taken up when it is back: `skein migration watch`";
                return Err(Box::new(refusal("the agent stops", cure)));
            }
            let is_over = self.migrations.view().get(id).is_none_or(|migration| migration.outcome.is_some());
            if !is_over {
                thread::sleep(PROGRESS_MIN.saturating_sub(since.elapsed()));
            }
        }
    }
}
