//! The cluster's side of `skein vm create`, `start`, `stop` and `delete`.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::bail;
use skein_api::VmOrigin;
use skein_api::cluster::{CreateVmRequest, OperationKind, StartVmRequest, StopVmRequest};
use skein_client::ControllerClient;

use super::moves::{Then, go_on};
use super::output::Output;
use crate::commands::local::{EXIT_BLOCKED, EXIT_CALLED_OFF};
use crate::commands::text::{clean_line, print, print_json};

/// Creates a VM that the cluster knows, and no host starts.
pub fn create(client: &ControllerClient, name: &str, definition: String, output: Output) -> anyhow::Result<()> {
    client.create_vm(&CreateVmRequest { definition, start: false, on: None, dry_run: false })?;
    if output == Output::Json {
        return print_json(&client.vm(name)?);
    }
    let name = clean_line(name);
    print(&format!("the cluster knows {name}, which is off: skein vm start {name} --cluster starts it\n"))
}

/// Starts a VM on the host that the controller picks, or on this one.
pub fn start(
    client: &ControllerClient,
    from: VmOrigin,
    on: Option<String>,
    then: Then,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let dry_run = then == Then::Check;
    let operation = match from {
        VmOrigin::Name(name) => client.start_vm(&name, &StartVmRequest { on, dry_run })?,
        VmOrigin::Definition { text, .. } => {
            let request = CreateVmRequest { definition: text, start: true, on, dry_run };
            let Some(operation) = client.create_vm(&request)? else { bail!("the controller started nothing") };
            let OperationKind::Start { vm, .. } = operation.kind.clone() else {
                return go_on(client, operation, then, output);
            };
            let code = go_on(client, operation, then, output)?;
            if then == Then::Follow && is_left_off(code) {
                let vm = clean_line(&vm);
                eprintln!(
                    "the cluster knows {vm} now, which is not started: skein vm start {vm} --cluster starts it once \
                     that is mended, skein vm delete {vm} has it forgotten"
                );
            }
            return Ok(code);
        }
    };
    go_on(client, operation, then, output)
}

/// Returns whether a start ended without a guest.
fn is_left_off(code: ExitCode) -> bool {
    [ExitCode::FAILURE, ExitCode::from(EXIT_BLOCKED), ExitCode::from(EXIT_CALLED_OFF)].contains(&code)
}

/// Stops a VM.
pub fn stop(
    client: &ControllerClient,
    name: &str,
    request: &StopVmRequest,
    then: Then,
    output: Output,
) -> anyhow::Result<ExitCode> {
    go_on(client, client.stop_vm(name, request)?, then, output)
}

/// Has a VM forgotten, once somebody at a terminal has said so twice.
pub fn delete(client: &ControllerClient, name: &str, is_sure: bool, output: Output) -> anyhow::Result<ExitCode> {
    let can_ask = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if !is_sure && !can_ask {
        bail!("nothing was deleted: nobody can be asked here; say that you are sure with --yes");
    }
    if !is_sure && !confirmed(name)? {
        bail!("nothing was deleted");
    }
    let code = go_on(client, client.delete_vm(name)?, Then::Follow, output)?;
    if output == Output::Text && code == ExitCode::SUCCESS {
        print("its disks, its UEFI variables and its TPM are where they were\n")?;
    }
    Ok(code)
}

fn confirmed(name: &str) -> anyhow::Result<bool> {
    let name = clean_line(name);
    eprint!("Have {name} forgotten by its host and the cluster? Its disks stay. [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
