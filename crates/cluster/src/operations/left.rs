//! How much is left of moves, and how long that takes at the pace at which guests leave their hosts.

use std::collections::BTreeMap;

use skein_api::cluster::{Move, MoveState, Operation};

use super::record::starts;
use crate::pace::{Stretch, setups_ms};
use crate::state::Controller;

/// What is left of the moves from a host.
#[derive(Default)]
struct Left {
    bytes: u64,
    waiting: usize,
}

impl Controller {
    /// Returns how much of a guest's memory is to be moved, in bytes, as far as its host tells.
    pub(crate) fn memory_of(&self, vm: &str) -> u64 {
        let Some(record) = self.tables.vms.get(vm).map(|found| &found.value) else { return 0 };
        let observed = record.host.as_deref().and_then(|host| self.observed.get(host));
        let load = observed.and_then(|observed| observed.vm_loads.get(vm));
        load.map_or(record.ram_bytes, |load| load.ram_bytes.min(record.ram_bytes))
    }

    /// Notes a move that was made, for the pace at which guests leave its host.
    pub(super) fn note_pace(&mut self, operation: &Operation, index: usize) {
        let of = &operation.moves[index];
        let (Some(begun), Some(ended)) = (of.begun, of.ended) else { return };
        // An earlier attempt took its own time.
        if of.attempts != 1 {
            return;
        }
        let bytes = self.memory_of_move(operation, index);
        let moved = Stretch { begun_ms: begun.0, ended_ms: ended.0, bytes };
        self.paces.entry(of.from.clone()).or_default().note(moved);
    }

    /// Returns how much of guests' memory leaves a host in a second, in bytes, by the moves that were made.
    pub(super) fn pace(&self, host: &str) -> Option<f64> {
        let pace = self.paces.get(host)?;
        let mut under_way = Vec::new();
        for operation in self.open_operations().filter(|found| !starts(&found.kind)) {
            for (index, of) in operation.moves.iter().enumerate() {
                // One that has an outcome is noted, or says nothing.
                if of.from == host
                    && of.off.is_none()
                    && of.state == MoveState::Begun
                    && !self.has_outcome(of)
                    && let Some(begun) = of.begun
                {
                    let bytes = self.memory_of_move(operation, index);
                    let moved = bytes.saturating_sub(self.left_of(of, bytes));
                    under_way.push(Stretch { begun_ms: begun.0, ended_ms: self.wall.0, bytes: moved });
                }
            }
        }
        pace.bytes_per_s(under_way.into_iter())
    }

    /// Returns how long the rest of an operation takes at the pace at which guests leave its hosts, in milliseconds.
    /// `None`: nothing has left one of them yet.
    pub(super) fn left_by_pace_ms(&self, operation: &Operation) -> Option<u64> {
        if starts(&operation.kind) {
            return None;
        }
        let mut left: BTreeMap<&str, Left> = BTreeMap::new();
        for (index, of) in operation.moves.iter().enumerate().filter(|(_, of)| of.off.is_none() && !of.state.is_over())
        {
            let bytes = self.memory_of_move(operation, index);
            let from = left.entry(&of.from).or_default();
            from.bytes += if of.state == MoveState::Begun { self.left_of(of, bytes) } else { bytes };
            from.waiting += usize::from(of.state == MoveState::Waiting);
        }
        let times = left.into_iter().map(|(host, left)| {
            let copies_ms = left.bytes as f64 * 1e3 / self.pace(host)?;
            Some(copies_ms as u64 + setups_ms(left.waiting, self.slots(host).1))
        });
        times.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    fn has_outcome(&self, of: &Move) -> bool {
        let at = |host: &String| self.observed.get(host)?.migrations.get(&of.migration?)?.outcome;
        at(&of.from).or_else(|| at(of.to.as_ref()?)).is_some()
    }

    fn memory_of_move(&self, operation: &Operation, index: usize) -> u64 {
        let begun = self.runs.get(&operation.id).and_then(|run| run.memory.get(&index));
        begun.copied().unwrap_or_else(|| self.memory_of(&operation.moves[index].vm))
    }

    /// Returns how much of a guest's memory is still at the source of a move that is under way.
    fn left_of(&self, of: &Move, bytes: u64) -> u64 {
        let observed = self.observed.get(&of.from);
        let migration = of.migration.and_then(|id| observed?.migrations.get(&id));
        let Some(copy) = migration.and_then(|migration| migration.copy.as_ref()) else { return bytes };
        // What is sent again is little, mostly.
        if copy.round > 1 || copy.total_bytes == 0 {
            return 0;
        }
        let share = copy.remaining_bytes as f64 / copy.total_bytes as f64;
        (bytes as f64 * share.min(1.0)) as u64
    }
}
