//! Shows migrations to commands: the migrations under way, and the logs of those that are over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_api::{CopyProgress, FailureReason, HoldView, LogEntry, LoggedEvent, Migration, MigrationEvent, Outcome};
use skein_handover::{MigrationId, MigrationPhase, MigrationSummary, Role, SourcePhase};
use skein_journal::{EVENT_LOGS_KEPT, EventLog};
use tracing::{Level, error, info, warn};

use super::hold_terms::HoldTerms;
use super::source::Freshness;
use super::totals::MigrationTotals;
use crate::events::{AgentEvent, Declaration};
use crate::to_api::{ToApi, migration_id};

/// Bounds the migrations that are over in a list.
const SHOWN_MAX: usize = 50;
/// Says after how many new logs the logs are thinned out.
const PRUNE_EVERY: u64 = 100;

/// The table that the owner fills and commands read.
pub(crate) struct MigrationViews {
    dir: PathBuf,
    host: String,
    table: Mutex<Table>,
    changed: Condvar,
    totals: MigrationTotals,
}

/// A migration that is not over, as metrics tell of it.
pub(crate) struct OpenMigration {
    pub(crate) summary: MigrationSummary,
    /// How far the copy is, at its source.
    pub(crate) copy: Option<CopyProgress>,
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<MigrationId, ViewedMigration>,
    begun: u64,
    /// Counts the changes of all migrations.
    changes: u64,
}

struct ViewedMigration {
    log: Option<EventLog>,
    events: Vec<LoggedEvent>,
    summary: Option<MigrationSummary>,
    copy: Option<CopyProgress>,
    /// How the migration is held, if it is.
    hold: Option<HoldTerms>,
    freshness: Option<Freshness>,
    /// When the guest was stopped for the switchover.
    stopped: Option<Instant>,
    /// Counts the changes.
    version: u64,
    /// Whether the migration is over.
    over: bool,
}

impl ViewedMigration {
    /// Returns the migration, without its events.
    fn shown(&self, id: MigrationId) -> Option<Migration> {
        let mut migration = migration(id, &self.events)?;
        if let Some(summary) = &self.summary {
            migration.in_doubt = summary.in_doubt;
            migration.stage = Some(summary.stage.to_api()).filter(|_| !self.over);
            // The reason may become known after the event.
            if !summary.detail.is_empty() {
                migration.detail.clone_from(&summary.detail);
            }
        }
        migration.copy = self.copy.clone().or(migration.copy);
        migration.hold = self.hold.as_ref().filter(|_| !self.over).map(|hold| self.hold_view(hold));
        Some(migration)
    }

    fn is_under_way(&self) -> bool {
        let is_in_doubt = self.summary.as_ref().is_some_and(|summary| summary.in_doubt);
        !self.over && !is_in_doubt
    }

    fn hold_view(&self, hold: &HoldTerms) -> HoldView {
        let held = MigrationPhase::Source(SourcePhase::Held);
        let is_held = self.summary.as_ref().is_some_and(|summary| summary.stage == held);
        let begins = LogEntry::Handover { event: MigrationEvent::Phase { stage: held.to_api() } };
        let since = self.events.iter().rev().find(|logged| is_held && logged.event == begins);
        hold.view(since.map(|logged| &*logged.time), self.freshness.filter(|_| is_held))
    }

    fn log(&mut self, event: LogEntry) {
        if let Some(log) = &mut self.log {
            log.append(&event);
        }
        self.over |= matches!(event, LogEntry::Handover { event: MigrationEvent::Over { .. } });
        self.events.push(LoggedEvent { time: now(), event });
    }
}

impl MigrationViews {
    pub(super) fn new(dir: PathBuf, host: String) -> MigrationViews {
        MigrationViews { dir, host, table: Mutex::default(), changed: Condvar::new(), totals: MigrationTotals::new() }
    }

    /// Adds a migration that begins, or goes on after the agent was started again.
    pub(super) fn begin(&self, id: MigrationId, vm: &str, role: Role, peer: &str) {
        let (source, target) = match role {
            Role::Source => (self.host.clone(), peer.to_owned()),
            Role::Target => (peer.to_owned(), self.host.clone()),
        };
        let events = self.read(id).unwrap_or_default();
        let is_new = events.is_empty();
        let log = EventLog::open(&self.dir, &id.to_string()).ok();
        let entry = ViewedMigration {
            log,
            events,
            summary: None,
            copy: None,
            hold: None,
            freshness: None,
            stopped: None,
            version: 0,
            over: false,
        };
        let mut table = self.table.lock();
        table.entries.insert(id, entry);
        table.begun += 1;
        table.changes += 1;
        let prune = table.begun.is_multiple_of(PRUNE_EVERY);
        drop(table);
        if is_new {
            self.log(id, LogEntry::Begun { vm: vm.to_owned(), role: role.to_api(), source, target });
        }
        if prune && let Err(error) = EventLog::prune(&self.dir, EVENT_LOGS_KEPT) {
            warn!("old logs of migrations cannot be removed: {error}");
        }
    }

    /// Ends the logs of migrations that an earlier agent asked for and never wrote into its journal: queued migrations,
    /// for instance. For those under way `is_begun` returns true.
    pub(super) fn end_unbegun(&self, is_begun: impl Fn(MigrationId) -> bool) {
        let logs = EventLog::list(&self.dir).unwrap_or_default();
        for id in logs.iter().filter_map(|log| log.id.parse().ok()).filter(|id| !is_begun(*id)) {
            let Some(log) = self.read(id).and_then(|events| migration(id, &events)) else { continue };
            if log.outcome.is_none()
                && let Ok(mut log) = EventLog::open(&self.dir, &id.to_string())
            {
                let why = MigrationEvent::CalledOff { why: FailureReason::AgentRestarted, detail: String::new() };
                for event in [why, MigrationEvent::Over { outcome: Outcome::CalledOff }] {
                    log.append(&LogEntry::Handover { event });
                }
            }
        }
    }

    /// Returns whether a migration to or from this host is under way, from its beginning on. What waits for a person
    /// is not.
    pub(crate) fn any_under_way(&self) -> bool {
        self.table.lock().entries.values().any(ViewedMigration::is_under_way)
    }

    /// Returns the migrations of which [`MigrationViews::any_under_way`] tells.
    pub(crate) fn under_way(&self) -> Vec<MigrationId> {
        let table = self.table.lock();
        table.entries.iter().filter(|(_, entry)| entry.is_under_way()).map(|(id, _)| *id).collect()
    }

    /// Returns the migrations that are not over, those among them that wait for a person.
    pub(crate) fn open(&self) -> Vec<OpenMigration> {
        let table = self.table.lock();
        let open = table.entries.values().filter(|entry| !entry.over);
        open.filter_map(|of| Some(OpenMigration { summary: of.summary.clone()?, copy: of.copy.clone() })).collect()
    }

    /// Returns what was counted since the agent was started.
    pub(crate) fn totals(&self) -> &MigrationTotals {
        &self.totals
    }

    /// Removes a migration that was refused.
    pub(super) fn drop(&self, id: MigrationId) {
        self.totals.forget(id);
        let mut table = self.table.lock();
        table.entries.remove(&id);
        table.changes += 1;
        drop(table);
        let _ = std::fs::remove_file(self.dir.join(format!("{id}.jsonl")));
    }

    pub(super) fn knows(&self, id: MigrationId) -> bool {
        self.table.lock().entries.contains_key(&id)
    }

    fn log(&self, id: MigrationId, event: LogEntry) {
        self.change(id, |entry| entry.log(event));
    }

    /// Returns whether a migration's log has this note.
    pub(super) fn has_note(&self, id: MigrationId, text: &str) -> bool {
        let is_it = |logged: &LoggedEvent| matches!(&logged.event, LogEntry::Note { text: noted } if noted == text);
        self.table.lock().entries.get(&id).is_some_and(|entry| entry.events.iter().any(is_it))
    }

    /// Brings an event to the agent's log and to the migration's. `vm` is the VM's name, if the name is known.
    pub(crate) fn emit(&self, id: MigrationId, vm: Option<&str>, event: &AgentEvent) {
        self.emit_with(id, vm, event, None);
    }

    /// Emits an event together with the migration's state, so that a caller that waits for the end reads the reason
    /// that is known by then. `summary` is `None` for a migration that the manager has forgotten.
    pub(super) fn emit_with(
        &self,
        id: MigrationId,
        vm: Option<&str>,
        event: &AgentEvent,
        summary: Option<MigrationSummary>,
    ) {
        let Declaration { name, level, line, entry: logged } = event.declaration();
        self.totals.event(id, self.role(id), name, event);
        if let Some(logged) = logged {
            self.change(id, |entry| {
                entry.summary = summary.or(entry.summary.take());
                entry.log(logged);
            });
        }
        if matches!(event, AgentEvent::Handover(MigrationEvent::Over { outcome: Outcome::Moved })) {
            self.count_moved(id);
        }
        match (line, level) {
            (None, _) => {}
            (Some(line), Level::ERROR) => error!(%id, vm, event = name, "{line}"),
            (Some(line), Level::WARN) => warn!(%id, vm, event = name, "{line}"),
            (Some(line), _) => info!(%id, vm, event = name, "{line}"),
        }
    }

    fn role(&self, id: MigrationId) -> Option<skein_api::Role> {
        match self.table.lock().entries.get(&id)?.events.first()?.event {
            LogEntry::Begun { role, .. } => Some(role),
            _ => None,
        }
    }

    fn count_moved(&self, id: MigrationId) {
        let moved = self.table.lock().entries.get(&id).and_then(|entry| migration(id, &entry.events));
        if let Some(moved) = moved {
            self.totals.moved(moved.role, moved.elapsed_ms);
        }
    }

    pub(super) fn update(&self, summary: MigrationSummary) {
        let id = summary.id;
        let is_known = self.table.lock().entries.get(&id).is_some_and(|entry| entry.summary.as_ref() == Some(&summary));
        if !is_known {
            self.change(id, |entry| entry.summary = Some(summary));
        }
    }

    /// Returns how many migrations from here to a host copy now.
    pub(super) fn copying_to(&self, peer: &str) -> u32 {
        let copies = |entry: &&ViewedMigration| {
            entry.summary.as_ref().is_some_and(|summary| {
                let phase =
                    matches!(summary.stage, MigrationPhase::Source(SourcePhase::Precopy | SourcePhase::Switchover));
                phase && summary.peer == peer
            })
        };
        self.table.lock().entries.values().filter(copies).count() as u32
    }

    /// Shows how far a copy is.
    pub(super) fn set_progress(&self, id: MigrationId, copy: CopyProgress) {
        self.totals.progress(id, &copy);
        self.change(id, |entry| entry.copy = Some(copy));
    }

    /// Shows how a migration is held.
    pub(super) fn set_hold(&self, id: MigrationId, hold: HoldTerms) {
        self.change(id, |entry| entry.hold = Some(hold));
    }

    /// Shows how fresh the target of a held guest is.
    pub(super) fn set_freshness(&self, id: MigrationId, freshness: Option<Freshness>) {
        self.change(id, |entry| entry.freshness = freshness);
    }

    /// Shows how far a copy is, and logs it.
    pub(super) fn log_progress(&self, id: MigrationId, copy: CopyProgress) {
        self.set_progress(id, copy.clone());
        self.log(id, LogEntry::Copied { copy: Box::new(copy) });
    }

    /// Notes that the guest is stopped for the switchover.
    pub(super) fn stopped(&self, id: MigrationId) {
        self.change(id, |entry| {
            entry.stopped.get_or_insert_with(Instant::now);
        });
    }

    /// Notes that the guest runs at the target.
    pub(super) fn runs_there(&self, id: MigrationId) {
        let stopped = self.table.lock().entries.get(&id).and_then(|entry| entry.stopped);
        if let Some(stopped) = stopped {
            let ms = stopped.elapsed().as_millis() as u64;
            self.totals.downtime(ms);
            self.log(id, LogEntry::Downtime { ms });
        }
    }

    /// Notes that nothing more will happen in the migration. Its log stays.
    pub(super) fn forget(&self, id: MigrationId) {
        self.change(id, |entry| entry.over = true);
        self.totals.forget(id);
        let mut table = self.table.lock();
        // A command may still watch a migration that has just ended: the last migrations stay at hand.
        let over: Vec<MigrationId> = table.entries.iter().filter(|(_, e)| e.over).map(|(id, _)| *id).collect();
        if over.len() > SHOWN_MAX {
            let oldest = over.into_iter().min_by_key(|id| table.entries[id].events.first().map(|e| e.time.clone()));
            oldest.map(|id| table.entries.remove(&id));
        }
        if let Some(entry) = table.entries.get_mut(&id) {
            entry.log = None;
        }
    }

    fn change(&self, id: MigrationId, change: impl FnOnce(&mut ViewedMigration)) {
        let mut table = self.table.lock();
        if let Some(entry) = table.entries.get_mut(&id) {
            change(entry);
            entry.version += 1;
            table.changes += 1;
        }
        drop(table);
        self.changed.notify_all();
    }

    /// Returns how often any migration has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.table.lock().changes
    }

    /// Returns the migrations under way and the last that are over since the agent was started, without their events.
    pub(crate) fn recent(&self) -> Vec<Migration> {
        self.table.lock().entries.iter().filter_map(|(id, entry)| entry.shown(*id)).collect()
    }

    /// Waits until a migration has a version newer than `seen`, or `patience` is over. Returns the version then.
    pub(crate) fn wait(&self, id: MigrationId, seen: u64, patience: Duration) -> u64 {
        let mut table = self.table.lock();
        let version = |table: &Table| table.entries.get(&id).map_or(seen, |entry| entry.version);
        self.changed.wait_while_for(&mut table, |table| version(table) == seen, patience);
        version(&table)
    }

    /// Returns a migration, by its id.
    pub(crate) fn get(&self, id: MigrationId) -> Option<Migration> {
        let table = self.table.lock();
        if let Some(entry) = table.entries.get(&id) {
            return Some(Migration { events: entry.events.clone(), ..entry.shown(id)? });
        }
        drop(table);
        let events = self.read(id)?;
        migration(id, &events).map(|migration| Migration { events, ..migration })
    }

    /// Returns the migration that a text means. The text is the beginning of an id, or the name of a VM, which means
    /// the VM's last migration.
    ///
    /// # Errors
    /// The text means no migration, or several.
    pub(crate) fn find(&self, text: &str) -> Result<Migration, String> {
        // Every id begins with the empty text: an empty variable of a script would mean the only migration.
        if text.is_empty() {
            return Err("an empty id names no migration".into());
        }
        let all = self.list(usize::MAX);
        // The host's clock may have been set since the last one, or since this one began.
        let of_vm = |migration: &&Migration| migration.vm == text;
        let under_way = all.iter().filter(of_vm).find(|migration| migration.outcome.is_none());
        if let Some(of_vm) = under_way.or_else(|| all.iter().find(of_vm)) {
            return self.get(migration_id(of_vm.id)).ok_or_else(|| "its log is gone".into());
        }
        let found: Vec<&Migration> =
            all.iter().filter(|migration| migration.id.to_string().starts_with(text)).collect();
        match found[..] {
            [] => Err(format!("there is no migration '{text}' on this host, nor one of a VM of that name")),
            [one] => self.get(migration_id(one.id)).ok_or_else(|| "its log is gone".into()),
            _ => Err(format!("{} migrations begin with '{text}': say more of the id", found.len())),
        }
    }

    /// Returns the migrations under way and the last that are over, at most `most`: the newest first, without events.
    pub(crate) fn list(&self, most: usize) -> Vec<Migration> {
        let mut ids: Vec<MigrationId> = self.table.lock().entries.keys().copied().collect();
        let logs = EventLog::list(&self.dir).unwrap_or_default();
        let logged = logs.iter().filter_map(|log| log.id.parse::<MigrationId>().ok());
        ids.extend(logged.take(most.min(SHOWN_MAX.max(EVENT_LOGS_KEPT))));
        ids.sort();
        ids.dedup();
        let mut all: Vec<Migration> = ids.into_iter().filter_map(|id| self.get(id)).collect();
        all.iter_mut().for_each(|migration| migration.events.clear());
        all.sort_by(|a, b| b.begun.cmp(&a.begun));
        all.truncate(most);
        all
    }

    fn read(&self, id: MigrationId) -> Option<Vec<LoggedEvent>> {
        let events = EventLog::read::<LogEntry>(&self.dir, &id.to_string()).ok()?;
        let logged =
            events.entries.into_iter().map(|entry| LoggedEvent { time: shown(entry.time), event: entry.event });
        Some(logged.collect())
    }
}

fn now() -> String {
    shown(jiff::Timestamp::now())
}

fn shown(time: jiff::Timestamp) -> String {
    format!("{time:.3}")
}

/// Returns what a log says of its migration, without the events; `None`: the log is empty.
fn migration(id: MigrationId, events: &[LoggedEvent]) -> Option<Migration> {
    let first = events.first()?;
    let LogEntry::Begun { vm, role, source, target } = &first.event else { return None };
    let mut migration = Migration {
        id: id.to_api(),
        vm: vm.clone(),
        role: *role,
        source: source.clone(),
        target: target.clone(),
        stage: None,
        outcome: None,
        why: None,
        detail: String::new(),
        in_doubt: false,
        begun: first.time.clone(),
        elapsed_ms: 0,
        downtime_ms: None,
        copy: None,
        paths: Vec::new(),
        rate_limit: None,
        attempt: None,
        hold: None,
        events: Vec::new(),
    };
    let mut end: Option<(&str, Outcome)> = None;
    for LoggedEvent { time, event } in events {
        match event {
            LogEntry::Handover { event: MigrationEvent::Over { outcome } } => {
                end = Some((time, *outcome));
            }
            LogEntry::Handover { event: MigrationEvent::CalledOff { why, detail } } => {
                migration.why = Some(*why);
                migration.detail.clone_from(detail);
            }
            LogEntry::Copied { copy } => migration.copy = Some((**copy).clone()),
            LogEntry::Downtime { ms } => migration.downtime_ms = Some(*ms),
            _ => {}
        }
    }
    migration.outcome = end.map(|(_, outcome)| outcome);
    let until = end.map_or_else(now, |(time, _)| time.to_owned());
    let parse = |time: &str| time.parse::<jiff::Timestamp>().ok();
    if let (Some(from), Some(until)) = (parse(&migration.begun), parse(&until)) {
        migration.elapsed_ms = until.duration_since(from).as_millis().max(0) as u64;
    }
    Some(migration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_migration_is_seen_with_the_reason_that_is_known_then() {
        let dir = tempfile::tempdir().unwrap();
        let view = MigrationViews::new(dir.path().to_owned(), "a".into());
        let id = MigrationId(1);
        view.begin(id, "v1", Role::Source, "b");
        let summary = |detail: &str, outcome| MigrationSummary {
            id,
            role: Role::Source,
            vm: "v1".into(),
            peer: "b".into(),
            stage: MigrationPhase::Source(SourcePhase::Keep),
            priority: 50,
            is_hold: false,
            is_to_be_held: false,
            why: Some(skein_handover::FailureReason::TargetRefused),
            detail: detail.into(),
            in_doubt: false,
            outcome,
        };
        let (why, detail) = (FailureReason::TargetRefused, "QEMU's last words".to_owned());
        view.emit_with(
            id,
            None,
            &AgentEvent::Handover(MigrationEvent::CalledOff { why, detail }),
            Some(summary("QEMU's last words", None)),
        );
        // The reason and the end are told at once.
        let over = MigrationEvent::Over { outcome: Outcome::CalledOff };
        let known = summary("could not be mended", Some(skein_handover::Outcome::CalledOff));
        view.emit_with(id, None, &AgentEvent::Handover(over), Some(known));
        let seen = view.get(id).unwrap();
        assert_eq!((seen.outcome, &seen.detail[..]), (Some(Outcome::CalledOff), "could not be mended"));
        // An event that comes when the migration is gone takes nothing away.
        view.emit_with(id, None, &AgentEvent::Handover(MigrationEvent::WriteFailed), None);
        assert_eq!(view.get(id).unwrap().detail, "could not be mended");
    }

    #[test]
    fn a_migration_is_found_by_the_beginning_of_its_id_or_its_vm_and_not_by_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let view = MigrationViews::new(dir.path().to_owned(), "a".into());
        let [first, second] = [MigrationId(0xab00), MigrationId(0xab << 56)];
        view.begin(first, "v1", Role::Source, "b");
        let found = |text: &str| view.find(text).map(|migration| migration_id(migration.id));
        assert!(found("").unwrap_err().contains("empty id"), "also if there is only one");
        for text in ["0", "000000000000ab00", "v1"] {
            assert_eq!(found(text), Ok(first), "{text}");
        }
        view.begin(second, "v2", Role::Target, "b");
        assert_eq!((found("ab"), found("00"), found("v2")), (Ok(second), Ok(first), Ok(second)));
        for text in ["abc", "v3", "ab01", "*"] {
            assert!(found(text).unwrap_err().contains("no migration"), "{text}");
        }
        assert!(found("").is_err());
        view.begin(MigrationId(0xab01), "v1", Role::Source, "b");
        assert!(found("000000000000ab0").unwrap_err().contains("2 migrations begin"));
    }
}
