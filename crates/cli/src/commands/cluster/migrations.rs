//! The cluster's side of `skein migration`.

use anyhow::{bail, ensure};
use skein_api::cluster::MigrationView;
use skein_api::{Migration, MigrationId, MigrationRecord};
use skein_client::ControllerClient;
use skein_units::duration;

use super::output::Output;
use super::screen::print_table;
use crate::commands::local::{state_word, why_words};
use crate::commands::text::{clean_line, moment, print, print_json};

/// Lists the migrations that the cluster's hosts tell of: the newest first.
pub fn list(client: &ControllerClient, output: Output) -> anyhow::Result<()> {
    let mut migrations = client.migrations(None).collect::<Result<Vec<MigrationView>, _>>()?;
    migrations.sort_by(|a, b| (&b.begun, b.id).cmp(&(&a.begun, a.id)));
    if output == Output::Json {
        return print_json(&migrations);
    }
    if migrations.is_empty() {
        return print("no host tells of a migration, under way or just over; hosts keep their own for longer\n");
    }
    let rows: Vec<_> = migrations
        .into_iter()
        .map(|migration| {
            [
                migration.id.to_string(),
                migration.vm,
                migration.source,
                migration.target,
                state_word(migration.outcome, migration.in_doubt, migration.stage).to_owned(),
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

/// Returns a migration as its source knows it; as its target does, if the source does not tell, or the guest is in
/// doubt at the target.
///
/// # Errors
///
/// No host tells of that migration, or several are meant, or the controllers do not answer.
pub fn migration(client: &ControllerClient, id: &str) -> anyhow::Result<Box<Migration>> {
    let id = named(client, id)?;
    let ends = client.migration(id)?;
    let is_in_doubt = |record: &MigrationRecord| record.migration.in_doubt;
    let (source, target) = (ends.source, ends.target);
    let first = if target.as_ref().is_some_and(is_in_doubt) { target.or(source) } else { source.or(target) };
    let note = clean_line(&ends.note);
    match first {
        None => bail!("neither host tells of the migration {id}: {note}"),
        Some(record) => {
            if !note.is_empty() {
                eprintln!("skein: {note}");
            }
            Ok(Box::new(record.migration))
        }
    }
}

/// Returns which migration is meant: the last one of a VM, or the one whose id begins so.
fn named(client: &ControllerClient, id: &str) -> anyhow::Result<MigrationId> {
    ensure!(!id.is_empty(), "an empty id names no migration");
    let of_vm = client.migrations(Some(id)).collect::<Result<Vec<_>, _>>()?;
    if let Some(last) = of_vm.iter().max_by_key(|of| (of.outcome.is_none(), &of.begun, of.id)) {
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
