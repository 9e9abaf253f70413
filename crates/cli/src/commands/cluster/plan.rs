//! What an operation moves, where to, and why.

use skein_api::cluster::{Move, Operation};

use super::words::{move_state, way};
use crate::commands::text::table;

/// Returns an operation's moves, each with its reason.
pub fn moves(operation: &Operation) -> String {
    moves_from(operation, 0, |_| false)
}

/// Returns an operation's moves from one on, each with its reason, and what became of it unless that `is_told`.
pub fn moves_from(operation: &Operation, first: usize, is_told: impl Fn(&Move) -> bool) -> String {
    if operation.moves.len() <= first {
        return String::new();
    }
    let rows: Vec<_> = operation
        .moves
        .iter()
        .skip(first)
        .map(|of| {
            let after: Vec<&str> =
                of.waits.iter().filter_map(|place| Some(operation.moves.get(*place as usize)?.vm.as_str())).collect();
            let after = if after.is_empty() { String::new() } else { format!(" (after {})", after.join(", ")) };
            let is_planned = of.detail.is_empty() || is_told(of);
            let why = if is_planned { of.reason.clone() } else { format!("{}: {}", of.reason, of.detail) };
            [way(of), move_state(&operation.kind, of).to_owned(), why + &after]
        })
        .collect();
    // What is only shown waits for nothing.
    if operation.is_only_shown() {
        return table(["MOVE", "WHY"], &rows.into_iter().map(|[way, _, why]| [way, why]).collect::<Vec<_>>());
    }
    table(["MOVE", "STATE", "WHY"], &rows)
}
