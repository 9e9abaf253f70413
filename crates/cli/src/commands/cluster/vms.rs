//! The cluster's side of `skein vm`.

use skein_api::cluster::Vm;
use skein_client::ControllerClient;
use skein_units::about_bytes;

use super::output::Output;
use super::screen::print_table;
use super::words::{run_state, time};
use crate::commands::text::{clean_line, fields, print, print_json};

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
                vm.operation.unwrap_or_default(),
                vm.note,
            ]
        })
        .collect();
    print_table(["NAME", "STATE", "HOST", "MEMORY", "CPUS", "CPU", "OPERATION", "NOTE"], &rows)
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
