//! Follows migrations for commands.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{Migration, PROGRESS_PERIOD, Refusal, Reply};
use skein_handover::MigrationId;

use super::refusal::{Answered, refusal};
use super::request_server::{RequestServer, Say};
use crate::attempts::{AttemptsEnd, RequestKey, Standing};
use crate::clock::wait_until;

/// Says how often progress is told at most.
const PROGRESS_MIN: Duration = Duration::from_millis(100);
/// Bounds the wait until a migration whose outcome is certain is tidied up, at both ends.
const SETTLE_TIME: Duration = Duration::from_secs(3);

impl RequestServer {
    /// Tells what is new of a request's migrations until there is no further migration.
    pub(super) fn follow_attempts(&self, request: RequestKey, say: &mut Say<'_>) -> Answered<Reply> {
        loop {
            let forgotten = || Box::new(refusal("the request is forgotten", "see `skein migration list`"));
            let standing = self.attempts.standing(request).ok_or_else(forgotten)?;
            match &standing {
                Standing::Running(id) => {
                    self.follow(*id, say)?;
                    let now = self.attempts.standing(request);
                    if now.is_some_and(|now| !matches!(now, Standing::Over(..))) {
                        // The client learns why another migration follows.
                        say(&Reply::Progress(Box::new(self.view(*id)?))).map_err(|_| nobody_listens())?;
                    }
                }
                Standing::Between(id) => {
                    if !self.attempts.wait(request, &standing, PROGRESS_PERIOD) {
                        say(&Reply::Progress(Box::new(self.view(*id)?))).map_err(|_| nobody_listens())?;
                    }
                    self.refuse_if_stopping()?;
                }
                Standing::Over(_, AttemptsEnd::Blocked(check)) => return Ok(Reply::Check(check.clone())),
                Standing::Over(_, AttemptsEnd::Refused(refusal)) => return Err(Box::new(refusal.clone())),
                Standing::Over(id, AttemptsEnd::Migration) => return Ok(Reply::Migration(Box::new(self.view(*id)?))),
            }
        }
    }

    fn refuse_if_stopping(&self) -> Answered<()> {
        if self.stopping.load(Ordering::SeqCst) {
            let cure = "the migration is taken up when it is back: `skein migration watch`";
            return Err(Box::new(refusal("the agent stops", cure)));
        }
        Ok(())
    }

    /// Tells what is new of a migration until it is over.
    pub(super) fn follow(&self, id: MigrationId, say: &mut Say<'_>) -> Answered<Migration> {
        let mut seen = 0;
        loop {
            let mut migration = self.view(id)?;
            if migration.outcome.is_some() {
                // A person who goes on at once, with `vm list` or back again, finds everything in order.
                let is_settled = || self.migrations.view().get(id).is_none_or(|migration| migration.stage.is_none());
                wait_until(SETTLE_TIME, is_settled);
                return self.view(id);
            }
            migration.events.clear();
            say(&Reply::Progress(Box::new(migration))).map_err(|_| nobody_listens())?;
            let since = Instant::now();
            seen = self.migrations.view().wait(id, seen, PROGRESS_PERIOD);
            self.refuse_if_stopping()?;
            let is_over = self.migrations.view().get(id).is_none_or(|migration| migration.outcome.is_some());
            if !is_over {
                thread::sleep(PROGRESS_MIN.saturating_sub(since.elapsed()));
            }
        }
    }
}

fn nobody_listens() -> Box<Refusal> {
    Box::new(refusal("nobody listens", ""))
}
