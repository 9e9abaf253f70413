//! An operation's record, and what is read from it.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{Move, MoveState, Operation, OperationKind, OperationState, Progress};

use crate::records::VmRecord;
use crate::state::{Controller, OperationRun, Planted};
use crate::time::Now;

/// Which moves count as made, in the cluster that a plan goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// All that are planned, so that plans fit together.
    All,
    /// Those that were begun, and those of failovers: what only waits gives way to a failover.
    Urgent,
}

impl Controller {
    /// Returns an operation, with its progress.
    pub fn operation(&self, id: &str) -> Option<Operation> {
        let found = self.tables.operations.get(id)?;
        Some(Operation { version: found.revision, ..found.value.clone() })
    }

    /// Returns the operations before an id, the newest first, `most` at most. An empty id is behind all.
    pub fn operations(&self, before: &str, most: usize) -> Vec<Operation> {
        self.operations_that(before, most, |_| true)
    }

    /// Returns the operations before an id that are under way, as [`Self::operations`] does.
    pub fn operations_under_way(&self, before: &str, most: usize) -> Vec<Operation> {
        self.operations_that(before, most, |state| !state.is_over())
    }

    fn operations_that(&self, before: &str, most: usize, is_wanted: impl Fn(OperationState) -> bool) -> Vec<Operation> {
        let all = self.tables.operations.iter().rev();
        let found = all.skip_while(|(id, _)| !before.is_empty() && id.as_str() >= before);
        let found = found.filter(|(_, found)| is_wanted(found.value.state)).take(most);
        found.filter_map(|(id, _)| self.operation_view(id)).collect()
    }

    /// Returns an operation with how far its guests' copies are, which is not stored.
    pub fn operation_view(&self, id: &str) -> Option<Operation> {
        let mut operation = self.operation(id)?;
        for of in operation.moves.iter_mut().filter(|of| of.state == MoveState::Begun) {
            let at_source = self.observed.get(&of.from);
            let migration = of.migration.and_then(|id| at_source?.migrations.get(&id));
            of.copy = migration.filter(|migration| migration.outcome.is_none()).and_then(|of| of.copy.clone());
        }
        let mut open = operation.moves.iter().filter(|of| !of.state.is_over());
        // The copies tell better than the forecast, if all that is left is under way.
        let by_copies = open.try_fold(0, |left, of| Some(of.copy.as_ref()?.left_ms()?.max(left)));
        operation.progress.left_ms = by_copies.filter(|left| *left > 0).or(operation.progress.left_ms);
        Some(operation)
    }

    /// Returns how many operations are under way.
    pub fn operations_open(&self) -> usize {
        self.runs.len()
    }

    /// Returns a drain, and those that it follows: their guests come home together.
    pub(crate) fn drains<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        std::iter::successors(Some(id), |id| match &self.tables.operations.get(*id)?.value.kind {
            // Ids sort by their age, so that this comes to an end.
            OperationKind::Drain { follows: Some(before), .. } if before.as_str() < *id => Some(before.as_str()),
            _ => None,
        })
    }

    pub(crate) fn is_open(&self, id: &str) -> bool {
        self.tables.operations.get(id).is_some_and(|found| !found.value.state.is_over())
    }

    /// Returns the operation that is to move, start, stop or delete a VM.
    pub(crate) fn operation_of(&self, vm: &str) -> Option<&str> {
        let moves = |found: &&Operation| {
            let is_asked = match &found.kind {
                OperationKind::Migrate { vm: asked, .. }
                | OperationKind::Start { vm: asked, .. }
                | OperationKind::Stop { vm: asked, .. }
                | OperationKind::Delete { vm: asked } => asked == vm,
                _ => false,
            };
            is_asked || found.moves.iter().any(|of| of.vm == vm && !of.state.is_over())
        };
        self.open_operations().find(moves).map(|found| found.id.as_str())
    }

    /// Counts the migrations to and from a host that operations have begun.
    pub(crate) fn slots_used(&self, host: &str) -> (u32, u32) {
        let mut used = (0, 0);
        if self.has(Planted::SlotsForgotten) {
            return used;
        }
        for of in self.begun_moves() {
            used.0 += u32::from(of.to.as_deref() == Some(host));
            used.1 += u32::from(of.from == host);
        }
        used
    }

    /// Returns the moves of guests that are under way.
    pub(crate) fn begun_moves(&self) -> impl Iterator<Item = &Move> {
        self.open_moves().filter(|of| of.off.is_none() && of.state == MoveState::Begun)
    }

    /// Returns the moves that wait, or are under way.
    pub(crate) fn open_moves(&self) -> impl Iterator<Item = &Move> {
        self.open_operations().flat_map(|found| &found.moves).filter(|of| !of.state.is_over())
    }

    /// Returns the moves that wait or are under way and count as made, with their operations.
    pub(crate) fn pending(&self, pending: Pending) -> impl Iterator<Item = (&Operation, &Move)> {
        let counts = move |operation: &Operation, of: &Move| match pending {
            Pending::All => !of.state.is_over(),
            Pending::Urgent if is_failover(&operation.kind) => !of.state.is_over(),
            Pending::Urgent => of.state == MoveState::Begun,
        };
        let moves = self.open_operations().flat_map(|found| found.moves.iter().map(move |of| (found, of)));
        moves.filter(move |(operation, of)| counts(operation, of))
    }

    /// Returns the VMs that are to be started, and where.
    pub(crate) fn pending_starts(&self, pending: Pending) -> impl Iterator<Item = (&str, &str)> {
        let moves = self.pending(pending).filter(|(found, _)| starts(&found.kind));
        moves.filter_map(|(_, of)| Some((of.vm.as_str(), of.to.as_deref()?)))
    }

    /// Returns the operations that are under way, the oldest first.
    pub(crate) fn open_operations(&self) -> impl Iterator<Item = &Operation> {
        self.runs.keys().filter_map(|id| self.tables.operations.get(id)).map(|found| &found.value)
    }

    /// Makes an operation, and keeps it.
    pub(crate) fn begin_operation(
        &mut self,
        now: Now,
        kind: OperationKind,
        state: OperationState,
        by: &str,
    ) -> Operation {
        let operation = self.unsaved_operation(now, kind, state, by);
        self.keep_operation(now, operation)
    }

    /// Keeps a new operation, and returns the operation with its progress.
    pub(crate) fn keep_operation(&mut self, now: Now, operation: Operation) -> Operation {
        self.runs.insert(operation.id.clone(), OperationRun::default());
        self.save_operation(now, operation.clone());
        self.operation(&operation.id).unwrap_or(operation)
    }

    /// Makes an operation that is not kept.
    pub(crate) fn unsaved_operation(
        &mut self,
        now: Now,
        kind: OperationKind,
        state: OperationState,
        by: &str,
    ) -> Operation {
        let term = self.term().unwrap_or_default();
        Operation {
            // Ids sort by their age, also when much else was numbered meanwhile.
            id: format!("{:08}-{:012}", term.0, self.number()),
            kind,
            state,
            by: by.to_owned(),
            created: now.wall,
            ended: None,
            cancelled: false,
            message: String::new(),
            moves: Vec::new(),
            fencing: None,
            power: None,
            update: None,
            progress: Progress::default(),
            version: 0,
        }
    }

    /// Returns how far an operation is.
    pub(crate) fn progress(&self, now: Now, operation: &Operation) -> Progress {
        progress(now, operation, self.left_by_pace_ms(operation))
    }

    /// Keeps a changed operation.
    pub(crate) fn save_operation(&mut self, now: Now, mut operation: Operation) {
        operation.progress = self.progress(now, &operation);
        if operation.state.is_over() {
            operation.ended = operation.ended.or(Some(now.wall));
            self.runs.remove(&operation.id);
        }
        let id = operation.id.clone();
        if self.tables.operations.get(&id).is_none_or(|found| found.value != operation) {
            self.tables.put(&id, operation);
        }
    }

    /// Forgets operations that have long been over.
    pub(crate) fn forget_operations(&mut self) {
        let mut more = self.tables.operations.len().saturating_sub(self.settings.operations_kept + self.runs.len());
        if more == 0 {
            return;
        }
        let last = self.tables.hosts.values().filter_map(|host| host.value.drain.as_deref());
        let resumed = self.open_operations().filter_map(|found| match &found.kind {
            OperationKind::Resume { drain, .. } => Some(drain.as_str()),
            _ => None,
        });
        let drains: BTreeSet<String> = last.chain(resumed).flat_map(|id| self.drains(id)).map(str::to_owned).collect();
        let over = self
            .tables
            .operations
            .iter()
            .filter(|(id, found)| found.value.state.is_over() && !drains.contains(id.as_str()));
        let over: Vec<String> = over.map(|(id, _)| id.clone()).collect();
        for id in over {
            if more == 0 {
                break;
            }
            self.tables.delete::<Operation>(&id);
            more -= 1;
        }
    }
}

/// Returns whether an operation starts guests that run nowhere, and does not move any.
pub(super) fn starts(kind: &OperationKind) -> bool {
    matches!(kind, OperationKind::Failover { .. } | OperationKind::Start { .. } | OperationKind::Autostart { .. })
}

/// Returns whether an operation starts the guests of a host that died. Nothing that can wait goes before one.
pub(crate) fn is_failover(kind: &OperationKind) -> bool {
    matches!(kind, OperationKind::Failover { .. })
}

/// Returns whether a move's guest is held on its way, or is to be: nobody knows when it leaves.
pub(crate) fn is_held(operation: &Operation, of: &Move) -> bool {
    matches!(&operation.kind, OperationKind::Migrate { vm, hold: Some(_), .. } if *vm == of.vm)
}

/// Returns how much of an operation is done, and how long the rest takes: as long as its forecast says, corrected by
/// how long the moves took that are done; or as the pace says at which guests leave their hosts, where that is known.
fn progress(now: Now, operation: &Operation, by_pace_ms: Option<u64>) -> Progress {
    let mut progress = Progress { forecast_ms: operation.progress.forecast_ms, ..Progress::default() };
    let (mut took, mut forecast, mut left) = (0, 0, 0);
    for of in &operation.moves {
        let is_move = of.state != MoveState::Left;
        progress.moves += u32::from(is_move);
        let expected = of.forecast_ms.unwrap_or(0);
        match (of.state, of.begun, of.ended) {
            (MoveState::Done, Some(begun), Some(ended)) => {
                progress.moves_done += 1;
                took += ended.0.saturating_sub(begun.0);
                forecast += expected;
            }
            (MoveState::Done, ..) => progress.moves_done += 1,
            (MoveState::Begun, Some(begun), _) => {
                progress.moves_running += 1;
                left += expected.saturating_sub(now.wall.0.saturating_sub(begun.0));
            }
            (MoveState::Waiting, ..) => left += expected,
            _ => {}
        }
    }
    // What is over says nothing of what an operation waits for once its moves are made.
    let is_made = !operation.moves.is_empty() && operation.moves.iter().all(|of| of.state.is_over());
    if operation.state.is_over() || is_made {
        return progress;
    }
    let elapsed = now.wall.0.saturating_sub(operation.created.0);
    let total: u64 = operation.moves.iter().filter_map(|of| of.forecast_ms).sum();
    progress.left_ms = match progress.forecast_ms {
        _ if by_pace_ms.is_some() => by_pace_ms,
        // Moves that run at the same time share the links: what is left is the plan's part that is left.
        Some(planned) if total > 0 => {
            let by_plan = planned as f64 * left as f64 / total as f64;
            let slower = if forecast > 0 { (took as f64 / forecast as f64).clamp(0.1, 10.0) } else { 1.0 };
            Some((by_plan * slower) as u64)
        }
        Some(planned) => Some(planned.saturating_sub(elapsed)),
        None => None,
    };
    progress
}

/// The hosts that refused a VM in an operation.
pub(crate) fn refusals(operation: &Operation) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for of in operation.moves.iter().filter(|of| of.state == MoveState::Failed) {
        if let Some(to) = &of.to {
            found.entry(of.vm.clone()).or_default().insert(to.clone());
        }
    }
    found
}

/// Returns whether a VM may be on a host. Possible owners hold for everybody, also for those who choose a host
/// themselves.
pub(crate) fn is_owner(vm: Option<&VmRecord>, host: Option<&str>) -> bool {
    let owners = vm.and_then(|vm| vm.settings.owners.as_ref());
    owners.is_none_or(|owners| host.is_some_and(|host| owners.iter().any(|owner| owner == host)))
}
