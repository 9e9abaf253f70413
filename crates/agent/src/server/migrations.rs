//! Answers requests about migrations.

use std::time::Duration;

use skein_api::{EXCLUDED_PATH, MigrateOptions, Migration, MigrationRecord, Outcome, PathView, RateLimitedBy, Reply};
use skein_dataplane::PathSnapshot;
use skein_handover::{MigrationId, RefusedSwitch, Role};
use skein_units::Rate;

use super::refusal::{Answered, refusal};
use super::request_server::{RequestServer, Say};
use crate::attempts::{AskedMigration, ChangedOptions, NotBegun};
use crate::clock::wait_until;
use crate::samples::Sampled;
use crate::to_api::{ToApi, migration_id, role};

/// Says how long a guest's writing is watched for a forecast.
const DIRTY_TIME: Duration = Duration::from_secs(1);
/// Says how long a cancel waits for the end. Mostly the migration is over by then; if not, its state is returned.
const CANCEL_TIME: Duration = Duration::from_secs(5);
/// Says how long a resolve waits for the end. Mostly the migration is settled by then.
const RESOLVE_TIME: Duration = Duration::from_secs(10);
/// Bounds the migrations in a list.
const LISTED_MAX: usize = 100;

impl Sampled for RequestServer {
    fn under_way(&self) -> Vec<skein_api::MigrationId> {
        self.migrations.view().under_way().iter().map(ToApi::to_api).collect()
    }

    fn migration(&self, id: skein_api::MigrationId) -> Option<Migration> {
        let migration = self.view(migration_id(id)).ok()?;
        Some(Migration { events: Vec::new(), ..migration })
    }
}

/// Whether the client of a migration stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watching {
    /// The client is told the migration's progress until the end.
    UntilTheEnd,
    /// The client is answered as soon as the migration is begun.
    NotAtAll,
}

/// A migration that a command asks for.
pub(super) struct MigrateRequest<'a> {
    pub(super) asked: AskedMigration,
    pub(super) watching: Watching,
    /// The id of the request: see [`RequestLine::request_id`](skein_api::RequestLine::request_id).
    pub(super) request_id: Option<&'a str>,
}

impl RequestServer {
    pub(super) fn check(&self, vm: &str, to: &str, options: &MigrateOptions) -> Answered<Reply> {
        let (mut check, _) = self.starter.check(vm, to, options, Some(DIRTY_TIME))?;
        check.problems.extend(self.starter.not_allowed(vm, to, options));
        Ok(Reply::Check(check))
    }

    pub(super) fn migration_list(&self) -> Reply {
        let mut migrations = self.migrations.view().list(LISTED_MAX);
        migrations
            .iter_mut()
            .for_each(|migration| migration.attempt = self.attempts.attempt(migration_id(migration.id)));
        Reply::Migrations { migrations }
    }

    pub(super) fn migration_show(&self, id: &str) -> Answered<Reply> {
        let migration = self.find(id)?;
        Ok(Reply::Migration(Box::new(self.as_it_runs(migration))))
    }

    pub(super) fn migration_record(&self, id: &str) -> Answered<Reply> {
        let migration = self.find(id)?;
        let samples = self.samples.samples(migration.id);
        Ok(Reply::MigrationRecord(Box::new(MigrationRecord { migration: self.as_it_runs(migration), samples })))
    }

    pub(super) fn migration_watch(&self, id: &str, say: &mut Say<'_>) -> Answered<Reply> {
        let id = migration_id(self.find(id)?.id);
        match self.attempts.request_of(id) {
            Some(request) => self.follow_attempts(request, say),
            None => Ok(Reply::Migration(Box::new(self.follow(id, say)?))),
        }
    }

    pub(super) fn migration_cancel(&self, id: &str) -> Answered<Reply> {
        let migration = self.find(id)?;
        let id = migration_id(migration.id);
        // Between two attempts no migration is under way, and there is something to call off all the same.
        let has_request = self.attempts.cancel(id).map_err(Box::new)?;
        if !has_request && (migration.outcome.is_some() || !self.migrations.cancel(id)) {
            let newest = self.attempts.newest_of(id).filter(|newest| *newest != id);
            let cure = newest.map_or_else(String::new, |newest| format!("its newest attempt is migration {newest}"));
            return Err(Box::new(refusal(format!("migration {} is over", migration.id), &cure)));
        }
        let now = self.settled(id)?;
        if now.outcome.is_none() && now.why.is_none() {
            let cure = "it cannot be called off any more; follow it with `skein migration watch`";
            return Err(Box::new(refusal("the guest is the target's already", cure)));
        }
        Ok(Reply::Migration(Box::new(now)))
    }

    /// Waits for a while until a migration that is called off is over, and returns how it stands.
    fn settled(&self, id: MigrationId) -> Answered<Migration> {
        wait_until(CANCEL_TIME, || self.view(id).is_ok_and(|migration| migration.outcome.is_some()));
        self.view(id)
    }

    /// Calls off what was asked for under a request id, and begins nothing under that id any more.
    pub(super) fn migration_withdraw(&self, request_id: &str) -> Answered<Reply> {
        match self.attempts.withdraw(request_id).map_err(Box::new)? {
            Some(newest) => Ok(Reply::Migration(Box::new(self.settled(newest)?))),
            None => Ok(Reply::Done),
        }
    }

    /// Limits how fast a migration sends. The next attempt of its request has the limit that the request has.
    pub(super) fn migration_limit(&self, id: &str, rate_bits_per_s: Option<u64>) -> Answered<Reply> {
        let migration = self.find(id)?;
        let id = migration_id(migration.id);
        if migration.outcome.is_some() {
            return Err(Box::new(refusal(format!("migration {} is over", migration.id), "")));
        }
        if role(migration.role) == Role::Target {
            let cure = format!("limit it at its source, {}", migration.source);
            return Err(Box::new(refusal(
                "this host is the target, and does not decide how fast the source sends",
                &cure,
            )));
        }
        self.migrations.rates().set_migration(id, rate_bits_per_s.and_then(Rate::of_bits_per_s));
        Ok(Reply::Migration(Box::new(self.view(id)?)))
    }

    /// Begins a migration's copy again with other options.
    pub(super) fn migration_restart(&self, id: &str, mut changed: ChangedOptions) -> Answered<Reply> {
        let migration = self.find(id)?;
        let id = migration_id(migration.id);
        if changed == ChangedOptions::default() {
            return Err(Box::new(refusal("nothing is to be changed", "name what is to be: a hold, or a throttle")));
        }
        if role(migration.role) == Role::Target {
            let cure = format!("ask its source, {}", migration.source);
            return Err(Box::new(refusal("this host is the target, and does not copy the guest", &cure)));
        }
        // A limit that somebody has set meanwhile holds for the next attempt, too.
        let limit = self.migrations.rates().limit_of(id).filter(|limit| limit.by == RateLimitedBy::Migration);
        changed.rate_bits_per_s = limit.map(|limit| limit.bits_per_s);
        if !self.attempts.restart(id, &changed).map_err(Box::new)? {
            return Err(Box::new(refusal(format!("migration {} is over, or being called off", migration.id), "")));
        }
        let now = self.settled(id)?;
        match now.outcome {
            Some(Outcome::CalledOff) => Ok(Reply::Migration(Box::new(now))),
            Some(_) => Err(Box::new(refusal(format!("migration {} was over first", migration.id), ""))),
            // Calling off takes long.
            None if now.why.is_some() => Ok(Reply::Migration(Box::new(now))),
            None => {
                let cure = "it cannot begin again any more; follow it with `skein migration watch`";
                Err(Box::new(refusal("the guest is the target's already", cure)))
            }
        }
    }

    pub(super) fn migration_switch(&self, id: &str, deadline_s: Option<u64>) -> Answered<Reply> {
        let migration = self.find(id)?;
        let id = migration_id(migration.id);
        self.migrations.switch(id, deadline_s.map(Duration::from_secs)).map_err(|refused| {
            let id = migration.id;
            let (message, cure) = match refused {
                RefusedSwitch::IsTarget => {
                    let source = &migration.source;
                    (format!("the source of migration {id} has it switch"), format!("say so on {source}"))
                }
                RefusedSwitch::IsNotHeld => {
                    let cure = "it switches by itself as soon as it may; follow it with `skein migration watch`";
                    (format!("migration {id} is not held"), cure.into())
                }
                RefusedSwitch::IsOver | RefusedSwitch::Unknown => {
                    let cure = "see `skein migration show`, and `skein migrate --hold` to begin again";
                    (format!("migration {id} is over, or being called off"), cure.into())
                }
            };
            Box::new(refusal(message, &cure))
        })?;
        // How fresh the target was is what the guest's standstill is told from.
        Ok(Reply::Migration(Box::new(Migration { hold: migration.hold, ..self.view(id)? })))
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

    /// Returns a migration as it runs.
    pub(super) fn view(&self, id: MigrationId) -> Answered<Migration> {
        let unknown = || Box::new(refusal(format!("there is no migration {id}"), "see `skein migration list`"));
        Ok(self.as_it_runs(self.migrations.view().get(id).ok_or_else(unknown)?))
    }

    /// Adds to a migration its place among the attempts and, if it is under way, what limits its rate, and its paths.
    fn as_it_runs(&self, mut migration: Migration) -> Migration {
        let id = migration_id(migration.id);
        migration.attempt = self.attempts.attempt(id);
        if migration.outcome.is_some() {
            return migration;
        }
        if role(migration.role) == Role::Source {
            migration.rate_limit = self.migrations.rates().limit_of(id);
        }
        let peer =
            if migration.source == self.migrations.peers().host() { &migration.target } else { &migration.source };
        migration.paths = self.migrations.paths(peer, |paths, meter| {
            let path = |path: PathSnapshot| PathView {
                bits_per_s: meter.rate(&path).unwrap_or(0),
                rdma: meter.rdma(&path),
                note: match path.carries {
                    _ if path.excluded.any() => EXCLUDED_PATH.to_owned(),
                    words if !words.is_empty() => words,
                    _ if path.status.usable && path.status.data_connections == 0 => "carries no data".into(),
                    _ => String::new(),
                },
                connections: match (path.connections, path.status.data_connections) {
                    (words, _) if !words.is_empty() => words,
                    (_, 0) => String::new(),
                    (_, number) => format!("{number}: as the other host dialled"),
                },
                nic: path.info.nic,
                remote: path.info.remote.ip().to_string(),
                usable: path.status.usable,
                sent_bytes: path.status.sent_bytes,
                rdma_connections: path.rdma_connections as u32,
            };
            paths.into_iter().map(path).collect()
        });
        migration
    }

    pub(super) fn migrate(&self, wanted: MigrateRequest<'_>, say: &mut Say<'_>) -> Answered<Reply> {
        let MigrateRequest { asked, watching, request_id } = wanted;
        let begun = match self.attempts.begin(asked, request_id) {
            Ok(begun) => begun,
            Err(NotBegun::Blocked(check)) => return Ok(Reply::Check(*check)),
            Err(NotBegun::Refused(refusal) | NotBegun::GuestGone(refusal)) => return Err(Box::new(refusal)),
        };
        if let Some(check) = begun.check.filter(|check| !check.problems.is_empty()) {
            let _ = say(&Reply::Check(check));
        }
        match watching {
            Watching::UntilTheEnd => self.follow_attempts(begun.key, say),
            Watching::NotAtAll => {
                let newest = self.attempts.standing(begun.key).map_or(begun.migration, |standing| standing.newest());
                Ok(Reply::Migration(Box::new(self.view(newest)?)))
            }
        }
    }
}
