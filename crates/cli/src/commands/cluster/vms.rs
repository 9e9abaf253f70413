//! The cluster's side of `skein vm`.

use skein_api::cluster::{Vm, VmMigration};
use skein_client::ControllerClient;
use skein_units::about_bytes;

use super::output::Output;
use super::screen::print_table;
use super::words::{run_state, time};
use crate::commands::follow::limit_words;
use crate::commands::hold::hold_words;
use crate::commands::text::{clean_line, fields, moment, print, print_json};

/// Lists the cluster's VMs.
pub fn list(client: &ControllerClient, output: Output) -> anyhow::Result<()> {
    let vms = client.vms(None).collect::<Result<Vec<Vm>, _>>()?;
    if output == Output::Json {
        return print_json(&vms);
    }
    if vms.is_empty() {
        return print("there is no VM in the cluster; `skein vm start FILE --cluster` starts one\n");
    }
    let rows: Vec<_> = vms
        .into_iter()
        .map(|vm| {
            let cpu = vm.load.map(|load| format!("{} %", load.cpu_millicores / 10)).unwrap_or_default();
            [
                vm.name,
                run_state(vm.state).to_owned(),
                vm.host.unwrap_or_default(),
                about_bytes(vm.ram_bytes),
                vm.cpus.to_string(),
                cpu,
                under_way(vm.operation, vm.migration.as_ref()),
                short(&vm.note),
            ]
        })
        .collect();
    print_table(["NAME", "STATE", "HOST", "MEMORY", "CPUS", "CPU", "OPERATION", "NOTE"], &rows)
}

/// Returns the beginning of a note: `skein vm show` has all of it.
fn short(note: &str) -> String {
    const CHARS_MAX: usize = 120;
    match note.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &note[..end]),
        None => note.to_owned(),
    }
}

/// Returns the operation that moves a VM. Where somebody began its migration on a host, returns where it goes.
fn under_way(operation: Option<String>, migration: Option<&VmMigration>) -> String {
    let held = if migration.is_some_and(VmMigration::is_held) { ", held" } else { "" };
    match (operation, migration) {
        (Some(operation), _) => operation + held,
        (None, Some(migration)) => format!("to {}{held}", migration.target),
        (None, None) => String::new(),
    }
}

/// Returns a migration in words: `to hostb since 2026-12-01 21:00:03, held since …`.
fn migration_words(migration: &VmMigration) -> String {
    let begun = moment(&migration.begun);
    let mut words = vec![format!("{} to {}, begun {begun} UTC", migration.source, migration.target)];
    words.extend(migration.hold.iter().flat_map(hold_words));
    words.extend(migration.rate_limit.as_ref().map(limit_words));
    if migration.is_held() {
        words.push(format!("switch it: skein migration switch {}", migration.vm));
    }
    words.join(", ")
}

/// Shows a VM of the cluster, with what people have set.
pub fn show(client: &ControllerClient, name: &str, output: Output) -> anyhow::Result<()> {
    let vm = client.vm(name)?;
    if output == Output::Json {
        return print_json(&vm);
    }
    let set = &vm.settings;
    let properties: Vec<String> = set.properties.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let rows = [
        ("state", format!("{} since {}", run_state(vm.state), time(vm.since))),
        ("host", vm.host.clone().unwrap_or_default()),
        ("operation", vm.operation.clone().unwrap_or_default()),
        ("migration", vm.migration.as_ref().map(migration_words).unwrap_or_default()),
        ("note", vm.note.clone()),
        ("memory", about_bytes(vm.ram_bytes)),
        ("cpus", vm.cpus.to_string()),
        ("cpu", vm.load.map(|load| format!("{} %", load.cpu_millicores / 10)).unwrap_or_default()),
        ("priority", set.priority.map(|priority| priority.to_string()).unwrap_or_default()),
        ("pinned", if set.pinned { "neither optimisation nor a drain moves it" } else { "" }.to_owned()),
        ("autostart", if set.autostart { "it starts again after its host's boot" } else { "" }.to_owned()),
        ("owners", set.owners.iter().flatten().cloned().collect::<Vec<_>>().join(" ")),
        ("preferred", set.preferred.join(" ")),
        ("tags", set.tags.join(" ")),
        ("tenant", set.tenant.clone().unwrap_or_default()),
        ("availability set", set.availability_set.clone().unwrap_or_default()),
        ("properties", properties.join(" ")),
    ];
    print(&(clean_line(&vm.name) + "\n" + &fields(&rows)))
}
