//! Requests about migrations.

use std::thread;
use std::time::{Duration, Instant};

use skein_api::{FailureReason, LogEntry, MigrateOptions, Migration, Outcome, PathView, Reply};
use skein_dataplane::PathSnapshot;
use skein_handover::MigrationId;
use tracing::info;

use super::refusal::{Answered, refusal};
use super::request_server::{RequestServer, Say};
use crate::clock::wait_until;
use crate::error_chain;
use crate::migrations::StartRefused;
use crate::to_api::{migration_id, role};

/// Pause before a migration is begun again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// How long a guest's writing is watched for a forecast.
const DIRTY_TIME: Duration = Duration::from_secs(1);
/// A migration that is called off is over by then, mostly; it is told how it stands if not.
const CANCEL_TIME: Duration = Duration::from_secs(5);
/// A migration in doubt is settled by then, mostly.
const RESOLVE_TIME: Duration = Duration::from_secs(10);
/// Migrations that are listed.
const LISTED_MAX: usize = 100;

/// A migration that a command asks for.
pub(super) struct MigrateRequest<'a> {
    pub(super) vm: &'a str,
    pub(super) to: &'a str,
    pub(super) options: &'a MigrateOptions,
    /// Answer as soon as it is begun.
    pub(super) detach: bool,
    /// See [`RequestLine::request_id`](skein_api::RequestLine::request_id).
    pub(super) request_id: Option<&'a str>,
}

impl RequestServer {
    pub(super) fn check(&self, vm: &str, to: &str, options: &MigrateOptions) -> Answered<Reply> {
        Ok(Reply::Check(self.starter.check(vm, to, options, Some(DIRTY_TIME))?.0))
    }

    pub(super) fn migration_list(&self) -> Reply {
        Reply::Migrations { migrations: self.migrations.view().list(LISTED_MAX) }
    }

    pub(super) fn migration_show(&self, id: &str) -> Answered<Reply> {
        Ok(Reply::Migration(Box::new(self.find(id)?)))
    }

    pub(super) fn migration_watch(&self, id: &str, say: &mut Say<'_>) -> Answered<Reply> {
        let id = migration_id(self.find(id)?.id);
        Ok(Reply::Migration(Box::new(self.follow(id, say)?)))
    }

    pub(super) fn migration_cancel(&self, id: &str) -> Answered<Reply> {
        let migration = self.find(id)?;
        let id = migration_id(migration.id);
        if migration.outcome.is_some() || !self.migrations.cancel(id) {
            return Err(Box::new(refusal(format!("migration {} is over", migration.id), "")));
        }
        let is_settled = || self.view(id).is_ok_and(|migration| migration.outcome.is_some());
        wait_until(CANCEL_TIME, is_settled);
        let now = self.view(id)?;
        if now.outcome.is_none() && now.why.is_none() {
            let cure = "it cannot be called off any more; follow it with `skein migration watch`";
            return Err(Box::new(refusal("the guest is the target's already", cure)));
        }
        Ok(Reply::Migration(Box::new(now)))
    }

    pub(super) fn migration_resolve(&self, id: &str, other_host_is_off: bool) -> Answered<Reply> {
        let migration = self.find(id)?;
        if !other_host_is_off {
            let cure = "make sure that the other host is off, and say so with --other-host-is-off";
            return Err(Box::new(refusal("without proof the guest could run twice", cure)));
        }
        if !migration.in_doubt {
            let message = format!("migration {} is not in doubt", migration.id);
            return Err(Box::new(refusal(message, "see `skein migration show`")));
        }
        let id = migration_id(migration.id);
        self.migrations.prove(id, role(migration.role));
        let is_settled = || self.view(id).is_ok_and(|migration| migration.outcome.is_some());
        wait_until(RESOLVE_TIME, is_settled);
        Ok(Reply::Migration(Box::new(self.view(id)?)))
    }

    pub(super) fn find(&self, text: &str) -> Answered<Migration> {
        let found = self.migrations.view().find(text);
        found.map_err(|message| Box::new(refusal(message, "see `skein migration list`")))
    }

    /// A migration with what is known of its paths.
    pub(super) fn view(&self, id: MigrationId) -> Answered<Migration> {
        let unknown = || Box::new(refusal(format!("there is no migration {id}"), "see `skein migration list`"));
        let mut migration = self.migrations.view().get(id).ok_or_else(unknown)?;
        let peer =
            if migration.source == self.migrations.peers().host() { &migration.target } else { &migration.source };
        migration.paths = self.migrations.paths(peer, |paths, meter| {
            let path = |path: PathSnapshot| PathView {
                bits_per_s: meter.rate(&path).unwrap_or(0),
                nic: path.info.nic,
                remote: path.info.remote.ip().to_string(),
                usable: path.status.usable,
                sent_bytes: path.status.sent_bytes,
            };
            paths.into_iter().map(path).collect()
        });
        Ok(migration)
    }

    pub(super) fn migrate(&self, wanted: &MigrateRequest<'_>, say: &mut Say<'_>) -> Answered<Reply> {
        let MigrateRequest { vm: name, to, options, detach, request_id } = *wanted;
        if let Some(id) = request_id.and_then(|id| self.begun_requests.get(id, Instant::now())) {
            return Ok(Reply::Migration(Box::new(if detach { self.view(id)? } else { self.follow(id, say)? })));
        }
        let (mut tries, mut allowed) = (0, options.retries);
        loop {
            let (check, launch) = self.starter.check(name, to, options, None)?;
            if check.blocks() {
                return Ok(Reply::Check(check));
            }
            if !check.problems.is_empty() && tries == 0 {
                let _ = say(&Reply::Check(check));
            }
            let vm = self.vms.get(name)?;
            let offer = self.starter.offer(&vm, launch, options)?;
            let was_direct = offer.indirect.is_none();
            let note = LogEntry::Note { text: offer.to_string() };
            let begin = || {
                let id = self.migrations.begin(name, to, offer, options)?;
                self.migrations.view().log(id, note);
                Ok(id)
            };
            let begun = match request_id {
                Some(request_id) if tries == 0 => self.begun_requests.get_or_begin(request_id, Instant::now(), begin),
                Some(request_id) => begin().inspect(|id| self.begun_requests.replace(request_id, *id, Instant::now())),
                None => begin(),
            };
            let id = begun.map_err(|error: StartRefused| Box::new(refusal(error_chain(&error), "")))?;
            if detach {
                return Ok(Reply::Migration(Box::new(self.view(id)?)));
            }
            let migration = self.follow(id, say)?;
            let may_pass = migration.outcome == Some(Outcome::CalledOff)
                && !matches!(migration.why, Some(FailureReason::Cancelled));
            // Without direct placement it is another thing: that is tried unasked.
            allowed += u32::from(was_direct && vm.indirect().is_some());
            if !may_pass || tries >= allowed {
                return Ok(Reply::Migration(Box::new(migration)));
            }
            tries += 1;
            // Who watches learns why.
            let _ = say(&Reply::Progress(Box::new(migration)));
            info!(vm = name, to, "migration {id} came to nothing; try {tries} of {allowed} follows");
            thread::sleep(RETRY_PAUSE);
        }
    }
}
