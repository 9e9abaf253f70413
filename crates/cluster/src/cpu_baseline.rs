//! Finds the CPU model of VMs that are to be able to move to each host of a group.

use std::fmt;

use skein_api::Accel as ApiAccel;
use skein_inventory::definition::{Accel, Definition};
use skein_inventory::{CpuModels, cpu_baseline};

use crate::state::Controller;

/// A CPU model that all hosts of a group have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuBaseline {
    /// QEMU's name of the model.
    pub model: String,
    /// How many hosts have the model.
    hosts: usize,
    group: Option<String>,
    /// The hosts of the group that have no such accelerator, or have not told their models.
    left_out: Vec<String>,
}

impl fmt::Display for CpuBaseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = match (self.hosts, &self.group) {
            (1, Some(group)) => format!("the only host of the group {group} has"),
            (1, None) => "the only host without a group has".to_owned(),
            (hosts, Some(group)) => format!("all {hosts} hosts of the group {group} have"),
            (hosts, None) => format!("all {hosts} hosts without a group have"),
        };
        write!(f, "its CPU model is {}, the best that {hosts}", self.model)?;
        match self.left_out.is_empty() {
            true => Ok(()),
            false => write!(f, " (not counted: {})", self.left_out.join(", ")),
        }
    }
}

impl Controller {
    /// Returns the CPU model with which a VM of this definition starts on `host`, if a controller has to find that.
    pub(crate) fn cpu_baseline_of(&self, definition: Option<&str>, host: &str) -> Option<CpuBaseline> {
        let definition = Definition::parse(definition?, "definition").ok()?;
        self.cpu_baseline(&definition, host)?.ok()
    }

    /// Returns the CPU model that stands for `baseline` in a definition, if the VM starts on `host`; or why there is
    /// none. `None`: the definition has no `baseline`.
    pub(crate) fn cpu_baseline(&self, definition: &Definition, host: &str) -> Option<Result<CpuBaseline, String>> {
        definition.baseline_flags()?;
        let own = &self.tables.hosts.get(host)?.value;
        let accel = match definition.accel {
            Accel::Kvm => ApiAccel::Kvm,
            Accel::Tcg => ApiAccel::Tcg,
            // What works is what the host's agent takes.
            Accel::Auto if own.cpu_models.contains_key(&ApiAccel::Kvm) => ApiAccel::Kvm,
            Accel::Auto => ApiAccel::Tcg,
        };
        let group = &own.settings.group;
        let of_group = self.tables.hosts.iter().filter(|(_, stored)| stored.value.settings.group == *group);
        let mut models: Vec<&CpuModels> = Vec::new();
        let mut left_out: Vec<String> = Vec::new();
        for (name, stored) in of_group {
            match stored.value.cpu_models.get(&accel) {
                Some(known) => models.push(known),
                None if name == host => return Some(Err("which CPU models it has is not known".into())),
                None => left_out.push(name.clone()),
            }
        }
        let hosts = models.len();
        let found = cpu_baseline(models).ok_or_else(|| {
            let group =
                group.as_ref().map_or_else(|| "without a group".into(), |group| format!("of the group {group}"));
            format!("the {hosts} hosts {group} have no CPU model in common")
        });
        Some(found.map(|model| CpuBaseline { model: model.to_owned(), hosts, group: group.clone(), left_out }))
    }
}
