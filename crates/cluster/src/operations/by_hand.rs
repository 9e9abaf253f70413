//! Migrations that somebody began on a host, and that no operation began: the controller leaves their guests alone.
//!
//! A drain waits for such a migration, and for one that another operation holds, and says so. One that is held may wait
//! for its window or for a person, so the drain asks for a person's word. An evacuation does not wait, as its host is
//! about to fail: a guest that is held on its way from the host is told to switch, and what was begun by hand or is
//! held on its way to the host is called off.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{MigrationView, Move, MoveState, Operation, OperationKind, VmMigration};
use skein_api::{Migration, MigrationId, Request, Role};

use crate::state::{CommandPurpose, Controller};
use crate::time::Now;

/// What is said of a guest that a drain does not move, since somebody else does.
pub(crate) const MOVED_BY_HAND: &str = "its migration was begun on its host";
/// How often an agent is asked to end a hold, in milliseconds.
const HURRY_MS: u64 = 5_000;

impl Controller {
    /// Returns the migration that a VM is in, as the VM's host tells.
    pub(super) fn migration_of(&self, vm: &str) -> Option<&Migration> {
        let host = self.tables.vms.get(vm)?.value.host.as_deref()?;
        let observed = self.observed.get(host)?;
        let migration = observed.migrations.get(&observed.vms.get(vm)?.migration?)?;
        let is_under_way = migration.role == Role::Source && migration.outcome.is_none() && !migration.in_doubt;
        is_under_way.then_some(migration)
    }

    /// Returns the VM's last migration, if that is over and another attempt follows, as the VM's host tells.
    pub(super) fn between_attempts(&self, vm: &str) -> Option<&Migration> {
        let host = self.tables.vms.get(vm)?.value.host.as_deref()?;
        let waits = |migration: &&Migration| {
            let next = migration.attempt.and_then(|attempt| attempt.next_in_ms);
            migration.vm == vm && migration.role == Role::Source && migration.outcome.is_some() && next.is_some()
        };
        self.observed.get(host)?.migrations.values().filter(waits).max_by(|one, other| one.begun.cmp(&other.begun))
    }

    /// Returns the migration that a VM is in and that no operation began.
    pub(crate) fn by_hand(&self, vm: &str) -> Option<&Migration> {
        let migration = self.migration_of(vm)?;
        let is_ours = self.begun_moves().any(|of| of.vm == vm && of.from == migration.source);
        (!is_ours).then_some(migration)
    }

    /// Returns the migration that a VM is in and for which a drain waits: no operation began it, or one holds it.
    fn waited_for(&self, vm: &str) -> Option<&Migration> {
        let held = || self.migration_of(vm).filter(|migration| is_held(migration));
        self.by_hand(vm).or_else(held)
    }

    /// Returns the migrations to a host for which its drain waits, as their sources tell.
    fn waited_for_to(&self, host: &str) -> Vec<&Migration> {
        self.comes(host).filter_map(|of| self.waited_for(&of.vm).filter(|found| found.id == of.id)).collect()
    }

    /// Returns the migrations to a host, as the host tells.
    fn comes(&self, host: &str) -> impl Iterator<Item = &Migration> {
        let here = self.observed.get(host).into_iter().flat_map(|observed| observed.migrations.values());
        here.filter(|of| of.role == Role::Target && of.outcome.is_none())
    }

    /// Returns the VMs that somebody moves, and no operation.
    pub(crate) fn moved_by_hand(&self) -> BTreeSet<&str> {
        let vms = self.observed.values().flat_map(|observed| observed.vms.values());
        let moving = vms.filter(|vm| vm.migration.is_some()).map(|vm| vm.name.as_str());
        moving.filter(|vm| self.by_hand(vm).is_some()).collect()
    }

    /// Returns the migrations to a host that no operation began, as their sources tell.
    pub(crate) fn by_hand_to(&self, host: &str) -> Vec<&Migration> {
        self.comes(host).filter_map(|of| self.by_hand(&of.vm).filter(|migration| migration.id == of.id)).collect()
    }

    /// Returns the migrations to a host that no operation began, and whose guests its agent does not tell of yet: it
    /// reserves no memory for them so far. By host, in bytes.
    pub(crate) fn not_reserved(&self) -> BTreeMap<&str, u64> {
        let mut found: BTreeMap<&str, u64> = BTreeMap::new();
        for (host, observed) in &self.observed {
            for vm in observed.vms.values().filter(|vm| vm.migration.is_some()) {
                let Some(migration) = self.by_hand(&vm.name).filter(|of| of.source == *host) else { continue };
                let there = self.observed.get(&migration.target);
                if !there.is_some_and(|there| there.vms.contains_key(&vm.name)) {
                    *found.entry(&migration.target).or_default() += vm.memory_bytes;
                }
            }
        }
        found
    }

    /// Shows the migration that a VM is in.
    pub(crate) fn vm_migration(&self, vm: &str) -> Option<VmMigration> {
        self.migration_of(vm).map(|migration| self.shown_migration(migration))
    }

    /// Shows a migration, as its source tells.
    pub(super) fn shown_migration(&self, migration: &Migration) -> VmMigration {
        let operation = self.operation_of(&migration.vm).filter(|_| self.by_hand(&migration.vm).is_none());
        shown(migration, operation)
    }

    /// Shows the migrations under way and those that ended of late, by id: at most so many after an id.
    pub fn migrations(&self, after: Option<MigrationId>, vm: Option<&str>, most: usize) -> Vec<MigrationView> {
        let mut found: BTreeMap<MigrationId, &Migration> = BTreeMap::new();
        for migration in self.observed.values().flat_map(|observed| observed.migrations.values()) {
            if after.is_none_or(|after| migration.id > after) && vm.is_none_or(|vm| migration.vm == vm) {
                let known = found.entry(migration.id).or_insert(migration);
                // The source knows how far the copy is.
                if migration.role == Role::Source {
                    *known = migration;
                }
            }
        }
        found.into_values().take(most).map(|migration| self.migration_view(migration)).collect()
    }

    /// Shows a migration. `None`: no host tells of it any more.
    pub fn migration(&self, id: MigrationId) -> Option<MigrationView> {
        let told = || self.observed.values().filter_map(|observed| observed.migrations.get(&id));
        let migration = told().find(|migration| migration.role == Role::Source).or_else(|| told().next())?;
        Some(self.migration_view(migration))
    }

    fn migration_view(&self, migration: &Migration) -> MigrationView {
        let is_under_way = self.migration_of(&migration.vm).is_some_and(|of| of.id == migration.id);
        let operation =
            self.operation_of(&migration.vm).filter(|_| is_under_way && self.by_hand(&migration.vm).is_none());
        let told = |host| self.observed.get(host).and_then(|observed| observed.migrations.get(&migration.id));
        let in_doubt = [told(&migration.source), told(&migration.target)].into_iter().flatten().any(|end| end.in_doubt);
        MigrationView { in_doubt, ..MigrationView::new(migration, operation.map(str::to_owned)) }
    }

    /// Shows the migrations from and to a host that no operation began.
    pub(crate) fn host_migrations(&self, host: &str) -> Vec<VmMigration> {
        let observed = self.observed.get(host).into_iter();
        let leaving = observed.flat_map(|observed| observed.vms.values()).filter(|vm| vm.migration.is_some());
        let leaving = leaving.filter_map(|vm| self.by_hand(&vm.name)).filter(|of| of.source == host);
        leaving.chain(self.by_hand_to(host)).map(|migration| shown(migration, None)).collect()
    }

    /// Refuses to begin something with a VM that somebody is moving.
    pub(crate) fn moving_words(&self, vm: &str) -> Option<(String, String)> {
        let Migration { id, target, .. } = self.by_hand(vm)?;
        let message = format!("'{vm}' is being moved to '{target}' already: {MOVED_BY_HAND}");
        let cure = format!(
            "wait for its end (skein vm show {vm}), or: skein migration cancel {vm}; if it is held: skein migration \
             switch {vm} (migration {id})"
        );
        Some((message, cure))
    }

    /// Says for what an operation waits that its own moves do not tell. `None`: for nothing.
    pub(super) fn waits_words(&self, operation: &Operation) -> Option<String> {
        let OperationKind::Drain { host, evacuate, .. } = &operation.kind else { return None };
        let mut words: Vec<String> = Vec::new();
        for vm in self.guests_on(host) {
            let other = self.operation_of(&vm).filter(|other| *other != operation.id);
            if let Some(migration) = self.waited_for(&vm).filter(|_| other.is_some() || self.by_hand(&vm).is_some()) {
                words.push(leaving_words(migration, *evacuate));
            } else if let Some(other) = other {
                words.push(format!("{vm} is in operation {other}"));
            }
        }
        let coming = self.waited_for_to(host);
        words.extend(coming.iter().map(|migration| coming_words(migration, *evacuate)));
        let others = self.open_operations().filter(|other| other.id != operation.id);
        let begun = others.flat_map(|other| other.moves.iter().map(move |of| (&other.id, of)));
        let begun = begun.filter(|(_, of)| of.state == MoveState::Begun && of.to.as_ref() == Some(host));
        let begun = begun.filter(|(_, of)| !coming.iter().any(|migration| migration.vm == of.vm));
        words.extend(begun.map(|(id, of)| format!("{} comes from {}, by operation {id}", of.vm, of.from)));
        words.extend(
            self.untold_on(host).iter().map(|vm| format!("{vm} has come, and its host of before has not told")),
        );
        (!words.is_empty()).then(|| format!("waits: {}", words.join("; ")))
    }

    /// Says in a drain's plan what becomes of guests that somebody is moving. `is_kept`: the plan is carried out.
    pub(super) fn tell_by_hand(&self, operation: &mut Operation, first: usize, is_kept: bool) {
        let OperationKind::Drain { host, evacuate, .. } = operation.kind.clone() else { return };
        for of in operation.moves.iter_mut().skip(first).filter(|of| of.from == host && of.to.is_none()) {
            let Some(migration) = self.by_hand(&of.vm) else { continue };
            of.reason = leaving_words(migration, evacuate);
            match is_kept {
                true => (of.to, of.detail) = (Some(migration.target.clone()), MOVED_BY_HAND.into()),
                // One that is held leaves when a person says so.
                false if is_held(migration) && !evacuate => {}
                false => (of.to, of.state) = (Some(migration.target.clone()), MoveState::Waiting),
            }
        }
        if !is_kept {
            self.tell_others(operation, &host, evacuate);
        }
    }

    /// Adds the guests to a drain that is only shown which other operations have, and those that come by hand.
    fn tell_others(&self, operation: &mut Operation, host: &str, evacuate: bool) {
        for vm in self.guests_on(host) {
            let is_told = operation.moves.iter().any(|of| of.vm == vm && of.from == host);
            let Some(other) = self.operation_of(&vm).filter(|_| !is_told) else { continue };
            let mut of = Move::new(&vm, host, None, &format!("it is in operation {other}"));
            let held = self.migration_of(&vm).filter(|migration| is_held(migration));
            let to = self.open_moves().find(|of| of.vm == vm && of.from == host).and_then(|of| of.to.clone());
            match held {
                Some(migration) => {
                    of.reason = leaving_words(migration, evacuate);
                    (of.to, of.state) = match evacuate {
                        true => (to, MoveState::Waiting),
                        false => (None, MoveState::Left),
                    };
                }
                // It is waited for.
                None if to.is_some() => (of.to, of.state) = (to, MoveState::Waiting),
                None => {}
            }
            operation.moves.push(of);
        }
        for migration in self.waited_for_to(host) {
            let mut of = Move::new(&migration.vm, &migration.source, None, &coming_words(migration, evacuate));
            if !is_held(migration) {
                (of.to, of.state) = (Some(host.to_owned()), MoveState::Waiting);
            }
            operation.moves.push(of);
        }
    }

    /// Notes that a guest has gone that somebody else moved.
    pub(super) fn look_at_by_hand(&self, now: Now, of: &mut Move) {
        let host = self.tables.vms.get(&of.vm).and_then(|vm| vm.value.host.as_deref());
        if of.detail == MOVED_BY_HAND && host.is_some() && host == of.to.as_deref() {
            (of.state, of.ended) = (MoveState::Done, Some(now.wall));
        }
    }

    /// Has guests switch that are held on their way from a host that is evacuated, and calls off what is held on its
    /// way to it.
    pub(super) fn hurry(&mut self, now: Now, operation: &Operation) {
        let OperationKind::Drain { host, evacuate: true, .. } = &operation.kind else { return };
        let guests = self.guests_on(host);
        let leaving = guests.iter().filter_map(|vm| self.waited_for(vm)).filter(|of| is_held(of));
        let leaving = leaving.map(|of| {
            let vm = self.tables.vms.get(&of.vm).map(|found| &found.value);
            // One that does not report may be switched off, with its guests.
            let switches = self.refusal(vm, Some(&of.target)).is_none() && self.reporting(&of.target).is_some();
            (of.source.clone(), of.id, switches)
        });
        let comes = self.waited_for_to(host);
        let all: Vec<(String, MigrationId, bool)> =
            leaving.chain(comes.into_iter().map(|of| (of.source.clone(), of.id, false))).collect();
        for (source, migration, switches) in all {
            let is_recent = self.hurried.get(&migration).is_some_and(|at| now.ms_since(*at) < HURRY_MS);
            let purpose = CommandPurpose::Hurry { migration };
            let Some(session) = self.session_of(&source).filter(|_| !is_recent && !self.is_asked(&purpose)) else {
                continue;
            };
            self.hurried.retain(|_, at| now.ms_since(*at) < HURRY_MS);
            self.hurried.insert(migration, now.mono_ms);
            let id = migration.to_string();
            let request = match switches {
                true => Request::MigrationSwitch { id, deadline_s: None },
                false => Request::MigrationCancel { id },
            };
            self.send(session, purpose, None, request);
        }
    }
}

fn shown(migration: &Migration, operation: Option<&str>) -> VmMigration {
    VmMigration {
        id: migration.id,
        vm: migration.vm.clone(),
        source: migration.source.clone(),
        target: migration.target.clone(),
        operation: operation.map(str::to_owned),
        begun: migration.begun.clone(),
        hold: migration.hold.clone(),
        rate_limit: migration.rate_limit,
        copy: migration.copy.clone(),
    }
}

fn is_held(migration: &Migration) -> bool {
    migration.hold.as_ref().is_some_and(|hold| hold.since.is_some())
}

/// Says how a guest leaves a host that is drained.
fn leaving_words(migration: &Migration, evacuates: bool) -> String {
    let Migration { vm, target, .. } = migration;
    match (is_held(migration), evacuates) {
        (false, _) => format!("{vm} is on its way to {target} already: {MOVED_BY_HAND}, and is waited for"),
        (true, true) => format!("{vm} is held on its way to {target}, and is told to switch"),
        (true, false) => format!(
            "{vm} is held on its way to {target}: have it switch (skein migration switch {vm}), or call that off \
             (skein migration cancel {vm}), and the drain moves it"
        ),
    }
}

/// Says how a guest comes to a host that is drained.
fn coming_words(migration: &Migration, evacuates: bool) -> String {
    let Migration { vm, source, target, .. } = migration;
    match (evacuates, is_held(migration)) {
        (true, _) => format!("{vm} is on its way here from {source}, and that is called off"),
        (false, false) => format!("{vm} is on its way here from {source}, and is moved on once it has come"),
        (false, true) => format!(
            "{vm} is held on its way to {target}: call that off (skein migration cancel {vm}); if it switches, it is \
             moved on"
        ),
    }
}
