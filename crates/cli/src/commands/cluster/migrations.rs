//! The cluster's side of `skein migration`.

use std::cmp::Reverse;

use anyhow::bail;
use skein_api::cluster::MigrationView;
use skein_api::{Migration, MigrationId};
use skein_client::ControllerClient;
use skein_units::duration;

use super::output::Output;
use super::screen::print_table;
use crate::commands::local::{state_word, why_words};
use crate::commands::text::{moment, print, print_json};

/// Lists the migrations that the cluster's hosts tell of: the newest last.
pub fn list(client: &ControllerClient, output: Output) -> anyhow::Result<()> {
    let mut migrations = client.migrations(None).collect::<Result<Vec<MigrationView>, _>>()?;
    migrations.sort_by(|a, b| (&a.begun, a.id).cmp(&(&b.begun, b.id)));
    if output == Output::Json {
        return print_json(&migrations);
    }
    if migrations.is_empty() {
        return print(
            "no host tells of a migration, under way or just over; `skein migration list --local` has this host's\n",
        );
    }
    let rows: Vec<_> = migrations
        .into_iter()
        .map(|migration| {
            [
                migration.id.to_string(),
                migration.vm,
                migration.source,
                migration.target,
                state_word(migration.outcome, false, migration.stage).to_owned(),
                moment(&migration.begun),
                duration(migration.elapsed_ms),
                migration.downtime_ms.map(duration).unwrap_or_default(),
                migration.operation.unwrap_or_default(),
                why_words(migration.why, &migration.detail),
            ]
        })
        .collect();
    let head = ["ID", "VM", "FROM", "TO", "STATE", "BEGUN (UTC)", "TOOK", "DOWNTIME", "OPERATION", "WHY"];
    print_table(head, &rows)
}

/// Returns a migration as its source knows it; as its target does, if the source does not tell.
///
/// # Errors
///
/// No host tells of that migration, or several are meant, or the controllers do not answer.
pub fn migration(client: &ControllerClient, id: &str) -> anyhow::Result<Box<Migration>> {
    let id = named(client, id)?;
    let ends = client.migration(id)?;
    match ends.source.or(ends.target) {
        Some(record) => Ok(Box::new(record.migration)),
        None => bail!("neither host tells of the migration {id}: {}", ends.note),
    }
}

/// Returns which migration is meant: the last one of a VM, or the one whose id begins so.
fn named(client: &ControllerClient, id: &str) -> anyhow::Result<MigrationId> {
    let of_vm = client.migrations(Some(id)).collect::<Result<Vec<_>, _>>()?;
    if let Some(last) = of_vm.iter().max_by_key(|of| (of.outcome.is_none(), &of.begun, Reverse(of.id))) {
        return Ok(last.id);
    }
    let all = client.migrations(None).collect::<Result<Vec<_>, _>>()?;
    let meant: Vec<_> = all.iter().filter(|of| of.id.to_string().starts_with(id)).collect();
    match meant[..] {
        [one] => Ok(one.id),
        [] => bail!(
            "no host of the cluster tells of a migration '{id}', under way or just over: hosts keep them for longer, \
             see `skein migration list` on them"
        ),
        _ => bail!("'{id}' begins the ids of {} migrations: give more of it", meant.len()),
    }
}
