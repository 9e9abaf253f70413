//! The cluster's side of `skein migrate`: the controller picks the target, and says why.

use std::process::ExitCode;

use skein_api::cluster::{MigrateRequest, Operation};
use skein_client::ControllerClient;

use super::follow::{exit_code, follow, follow_migration, hints};
use super::output::Output;
use super::plan::moves;
use super::words::kind;
use crate::commands::local::EXIT_BLOCKED;
use crate::commands::text::{clean_line, print, print_json};

/// What is done once the target is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Only say what would be done.
    Check,
    /// Begin, and return.
    Detach,
    /// Begin, and follow.
    Follow,
}

impl Then {
    /// Returns what options ask for.
    pub fn of(check: bool, detach: bool) -> Then {
        match (check, detach) {
            (true, _) => Then::Check,
            (false, true) => Then::Detach,
            (false, false) => Then::Follow,
        }
    }
}

/// Moves a VM of the cluster. One that is to be held is followed until it is held.
pub fn migrate(
    client: &ControllerClient,
    vm: &str,
    request: &MigrateRequest,
    then: Then,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let operation = client.migrate(vm, request)?;
    match then {
        Then::Follow => follow_migration(client, operation, vm, request.hold.is_some(), output),
        _ => go_on(client, operation, then, output),
    }
}

/// Shows or follows an operation that was begun, or would be.
pub fn go_on(client: &ControllerClient, operation: Operation, then: Then, output: Output) -> anyhow::Result<ExitCode> {
    if then == Then::Check {
        match output {
            Output::Json => print_json(&operation)?,
            Output::Text => print(&(moves(&operation) + &clean_line(&operation.message) + "\n"))?,
        }
        let can = !operation.moves.is_empty() && operation.moves.iter().all(|of| of.to.is_some());
        return Ok(if can { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BLOCKED) });
    }
    if then == Then::Follow {
        return follow(client, operation, output);
    }
    match output {
        Output::Json => print_json(&operation)?,
        Output::Text => print(&format!("{} is begun\n{}\n", kind(&operation.kind), hints(&operation.id)))?,
    }
    Ok(exit_code(operation.state))
}
