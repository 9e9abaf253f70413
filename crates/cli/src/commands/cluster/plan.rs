//! What an operation moves, where to, and why.

use skein_api::cluster::Operation;

use super::words::{move_state, way};
use crate::commands::text::table;

/// Returns an operation's moves, each with its reason.
pub fn moves(operation: &Operation) -> String {
    moves_from(operation, 0)
}

/// Returns an operation's moves from one on, each with its reason.
pub fn moves_from(operation: &Operation, first: usize) -> String {
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
            let why = if of.detail.is_empty() { of.reason.clone() } else { format!("{}: {}", of.reason, of.detail) };
            [way(of), move_state(&operation.kind, of).to_owned(), why + &after]
        })
        .collect();
    table(["MOVE", "STATE", "WHY"], &rows)
}
