//! The cluster's side of `skein vm`.

use skein_api::cluster::Vm;
use skein_client::ControllerClient;
use skein_units::about_bytes;

use super::output::Output;
use super::screen::print_table;
use super::words::run_state;
use crate::commands::text::{print, print_json};

/// Lists the cluster's VMs.
pub fn list(client: &ControllerClient, output: Output) -> anyhow::Result<()> {
    let vms = client.vms(None).collect::<Result<Vec<Vm>, _>>()?;
    if output == Output::Json {
        return print_json(&vms);
    }
    if vms.is_empty() {
        return print("there is no VM in the cluster; `skein vm start FILE` on a host starts one\n");
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
