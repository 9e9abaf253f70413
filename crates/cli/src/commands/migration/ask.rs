//! Whom a migration is asked about: this host's agent, or a controller.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use skein_api::cluster::VmMigration;
use skein_api::{Migration, MigrationId, Reply, Request};
use skein_client::{CallError, ControllerClient, ControllerError, Moving};

use crate::commands::cluster;
use crate::commands::cluster::access::ViewArgs;
use crate::commands::local::{LocalAgent, unexpected};

/// How long a controller may take for what this host's agent does not know. A controller waits 8 s for a host.
const ELSEWHERE_WITHIN: Duration = Duration::from_secs(10);

/// A migration, by who told of it.
pub(super) enum Told {
    Agent(Box<Migration>),
    Controller(Box<VmMigration>),
}

/// Asks this host's agent about a migration; a controller, if its view is asked for, if there is no agent, or if the
/// agent refuses and a controller knows the migration by its VM's name or its id.
pub(super) fn ask_anywhere(
    local: &LocalAgent,
    view: &ViewArgs,
    (id, request): (&str, &Request),
    through: impl FnOnce(&ControllerClient, Moving<'_>) -> Result<VmMigration, ControllerError>,
) -> anyhow::Result<Told> {
    ensure!(!id.is_empty(), "an empty id names no migration");
    if !view.asks_cluster(local)? {
        let refusal = match local.call(request) {
            Ok(Reply::Migration(migration)) => return Ok(Told::Agent(migration)),
            Ok(reply) => return Err(unexpected(&reply).into()),
            Err(error) => error,
        };
        // The agent of another host may know it.
        if !may_be_elsewhere(view, &refusal)? {
            return Err(refusal.into());
        }
        let client = view.controllers.client()?;
        let moving = moving_vm(&client, id);
        let moving = moving.with_context(|| format!("{refusal}; and nothing is known of migrations of other hosts"))?;
        let Some((vm, id)) = moving else { return Err(refusal.into()) };
        let told = through(&client, Moving { vm: &vm, id }).with_context(|| refusal.to_string())?;
        return Ok(Told::Controller(Box::new(told)));
    }
    let client = view.controllers.client()?;
    match moving_vm(&client, id)? {
        Some((vm, id)) => Ok(Told::Controller(Box::new(through(&client, Moving { vm: &vm, id })?))),
        None => {
            bail!("the controller knows no migration '{id}' that is under way: see `skein migration list --cluster`")
        }
    }
}

/// Which host a migration is shown as seen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Teller {
    ThisHost,
    Controller,
}

/// Returns a migration as this host's agent knows it, or as a controller has it from another host.
pub(super) fn show_anywhere(local: &LocalAgent, view: &ViewArgs, id: &str) -> anyhow::Result<(Box<Migration>, Teller)> {
    let told = |client: &ControllerClient| Ok((cluster::migrations::migration(client, id)?, Teller::Controller));
    if view.asks_cluster(local)? {
        return told(&view.controllers.client()?);
    }
    match local.call(&Request::MigrationShow { id: id.to_owned() }) {
        Ok(Reply::Migration(migration)) => Ok((migration, Teller::ThisHost)),
        Ok(reply) => Err(unexpected(&reply).into()),
        Err(refusal) if is_missing(&refusal) && may_be_elsewhere(view, &refusal)? => {
            let hasty = view.controllers.hasty_client(ELSEWHERE_WITHIN);
            hasty.and_then(|client| told(&client)).with_context(|| refusal.to_string())
        }
        Err(error) => Err(error.into()),
    }
}

/// Asks this host's agent about a migration.
pub(super) fn ask(local: &LocalAgent, request: &Request) -> anyhow::Result<Box<Migration>> {
    match local.call(request)? {
        Reply::Migration(migration) => Ok(migration),
        reply => Err(unexpected(&reply).into()),
    }
}

/// Returns whether this host's agent knows no such migration.
fn is_missing(refusal: &CallError) -> bool {
    matches!(refusal, CallError::Refused(of) if of.message.starts_with("there is no migration"))
}

/// Returns whether a controller may know what this host's agent does not.
fn may_be_elsewhere(view: &ViewArgs, refusal: &CallError) -> anyhow::Result<bool> {
    Ok(!view.local && matches!(refusal, CallError::Refused(_)) && view.controllers.access()?.is_some())
}

/// Returns the VM of that name with its migration, if it is in one; else the VM whose migration's id begins so.
///
/// # Errors
///
/// Several ids begin so, or no controller answers.
fn moving_vm(client: &ControllerClient, id: &str) -> anyhow::Result<Option<(String, MigrationId)>> {
    match client.vm(id) {
        Ok(vm) => return Ok(vm.migration.map(|migration| (migration.vm, migration.id))),
        Err(ControllerError::Refused(problem)) if problem.status == 404 => {}
        Err(error) => return Err(error.into()),
    }
    let mut meant = None;
    for vm in client.vms(None) {
        if let Some(migration) = vm?.migration.filter(|migration| migration.id.to_string().starts_with(id))
            && meant.replace((migration.vm, migration.id)).is_some()
        {
            bail!("'{id}' begins the ids of several migrations: give more of it");
        }
    }
    Ok(meant)
}
