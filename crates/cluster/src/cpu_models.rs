//! The CPU models of a host.

use std::collections::BTreeMap;

use skein_api::{Accel, HostFacts};
use skein_inventory::CpuModels;

/// The CPU models that a host can give a guest whole, by accelerator.
pub(crate) type HostCpuModels = BTreeMap<Accel, CpuModels>;

/// Returns the CPU models that a host can give a guest whole, under each accelerator that works there. `None`: no QEMU
/// of the host has been asked.
pub(crate) fn cpu_models(facts: &HostFacts) -> Option<HostCpuModels> {
    let qemu = facts.qemu.as_ref().ok()?;
    let of_accels = qemu.accels.iter().map(|accel| {
        let whole = accel.cpu_models.iter().filter(|model| model.missing.is_empty());
        (accel.accel, whole.filter_map(|model| Some((model.name.clone(), model.feature_count?))).collect())
    });
    let told = of_accels.filter(|(_, models): &(_, CpuModels)| !models.is_empty());
    Some(told.collect())
}
