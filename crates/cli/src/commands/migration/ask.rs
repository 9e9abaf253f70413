//! Whom a migration is asked about: this host's agent, or a controller.

use anyhow::{Context, bail};
use skein_api::cluster::VmMigration;
use skein_api::{Migration, Reply, Request};
use skein_client::{CallError, ControllerClient, ControllerError};

use crate::commands::cluster;
use crate::commands::cluster::access::ViewArgs;
use crate::commands::local::{LocalAgent, unexpected};

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
    through: impl FnOnce(&ControllerClient, &str) -> Result<VmMigration, ControllerError>,
) -> anyhow::Result<Told> {
    if asks_agent(local, view)? {
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
        let Some(vm) = moving else { return Err(refusal.into()) };
        return Ok(Told::Controller(Box::new(through(&client, &vm)?)));
    }
    let client = view.controllers.client()?;
    match moving_vm(&client, id)? {
        Some(vm) => Ok(Told::Controller(Box::new(through(&client, &vm)?))),
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
    let through = || Ok((cluster::migrations::migration(&view.controllers.client()?, id)?, Teller::Controller));
    if !asks_agent(local, view)? {
        return through();
    }
    match local.call(&Request::MigrationShow { id: id.to_owned() }) {
        Ok(Reply::Migration(migration)) => Ok((migration, Teller::ThisHost)),
        Ok(reply) => Err(unexpected(&reply).into()),
        Err(refusal) if may_be_elsewhere(view, &refusal)? => through().with_context(|| refusal.to_string()),
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

/// Returns whether this host's agent is asked first: unless the cluster's view is asked for, or there is no agent, as
/// on a desk.
fn asks_agent(local: &LocalAgent, view: &ViewArgs) -> anyhow::Result<bool> {
    Ok(!view.names_cluster() && (view.local || local.socket.exists() || view.controllers.access()?.is_none()))
}

/// Returns whether a controller may know what this host's agent does not.
fn may_be_elsewhere(view: &ViewArgs, refusal: &CallError) -> anyhow::Result<bool> {
    Ok(!view.local && matches!(refusal, CallError::Refused(_)) && view.controllers.access()?.is_some())
}

/// Returns the VM of that name, if it is in a migration; else the VM whose migration's id begins so.
fn moving_vm(client: &ControllerClient, id: &str) -> anyhow::Result<Option<String>> {
    match client.vm(id) {
        Ok(vm) => return Ok(vm.migration.map(|migration| migration.vm)),
        Err(ControllerError::Refused(problem)) if problem.status == 404 => {}
        Err(error) => return Err(error.into()),
    }
    for vm in client.vms(None) {
        if let Some(migration) = vm?.migration.filter(|migration| migration.id.to_string().starts_with(id)) {
            return Ok(Some(migration.vm));
        }
    }
    Ok(None)
}
