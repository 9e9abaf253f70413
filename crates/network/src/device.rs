//! Where a NIC is in its host: bus, NUMA node, interrupts, virtual functions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::source::{Ask, Source};

/// A NIC as a device of its host, by `/sys/bus/BUS/devices/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Device {
    /// `pci`, `virtio`, `usb` …
    pub bus: String,
    /// The device's name on that: `0000:3b:00.0`.
    pub name: String,
    /// The NUMA node; `None` on a host with one, or where the firmware does not say.
    pub numa_node: Option<u32>,
    /// The cores that are near, as a list: `0-15,32-47`.
    pub near_cores: Option<String>,
    /// What the slot gives, in words: `8.0 GT/s PCIe x8`.
    pub slot: Option<String>,
    /// The virtual functions in use (SR-IOV).
    pub functions: Option<u32>,
    /// The virtual functions that the NIC can have.
    pub functions_max: Option<u32>,
    /// Whether this is a virtual function itself.
    pub is_function: bool,
    /// The interrupts, in order.
    pub interrupts: Vec<Interrupt>,
}

/// An interrupt of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interrupt {
    /// The interrupt's number, as in `/proc/interrupts`.
    pub number: u32,
    /// What the driver calls it: mostly the queue.
    pub name: String,
    /// The cores that it goes to, as a list.
    pub cores: Option<String>,
    /// How often it came, since the host was booted.
    pub count: u64,
}

/// Reads a device. `table`: what [`interrupts`] returns.
pub(crate) fn read(source: &dyn Source, bus: &str, name: &str, table: &BTreeMap<u32, (String, u64)>) -> Device {
    let folder = format!("/sys/bus/{bus}/devices/{name}");
    let file = |name: &str| Some(source.ask(&Ask::File(format!("{folder}/{name}"))).text()?.trim().to_owned());
    let number = |name: &str| file(name)?.parse().ok();
    let names = |name: &str| source.ask(&Ask::Directory(format!("{folder}/{name}"))).names();
    let mut numbers: Vec<u32> = names("msi_irqs").iter().filter_map(|name| name.parse().ok()).collect();
    if numbers.is_empty() {
        // A virtio device's interrupts are those of the PCI device below.
        numbers = names("../msi_irqs").iter().filter_map(|name| name.parse().ok()).collect();
    }
    numbers.sort_unstable();
    let interrupt = |number: u32| {
        let (name, count) = table.get(&number).cloned()?;
        let cores = source.ask(&Ask::File(format!("/proc/irq/{number}/effective_affinity_list"))).text();
        Some(Interrupt { number, name, cores: cores.map(|cores| cores.trim().to_owned()), count })
    };
    let slot = file("current_link_speed").zip(file("current_link_width"));
    Device {
        bus: bus.to_owned(),
        name: name.to_owned(),
        numa_node: number("numa_node"),
        near_cores: file("local_cpulist").filter(|list| !list.is_empty()),
        slot: slot.map(|(speed, width)| format!("{speed} x{width}")),
        functions: number("sriov_numvfs"),
        functions_max: number("sriov_totalvfs"),
        is_function: source.ask(&Ask::Link(format!("{folder}/physfn"))).text().is_some(),
        interrupts: numbers.into_iter().filter_map(interrupt).collect(),
    }
}

/// Reads `/proc/interrupts`: the name and count of each that has a number.
pub(crate) fn interrupts(source: &dyn Source) -> BTreeMap<u32, (String, u64)> {
    let text = source.ask(&Ask::File("/proc/interrupts".to_owned())).text().unwrap_or_default();
    text.lines().skip(1).filter_map(interrupt_line).collect()
}

/// Reads ` 27:   5   0  PCI-MSIX-0000:00:04.0   1-edge   virtio0-input.0`.
fn interrupt_line(line: &str) -> Option<(u32, (String, u64))> {
    let (number, rest) = line.split_once(':')?;
    let number = number.trim().parse().ok()?;
    let counts = rest.split_whitespace().map_while(|word| word.parse::<u64>().ok());
    let name = rest.split_whitespace().last()?.to_owned();
    Some((number, (name, counts.fold(0, u64::saturating_add))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_interrupts_are_read() {
        let line = " 27:          5       1000  PCI-MSIX-0000:00:04.0   1-edge      eth0-TxRx-0";
        assert_eq!(interrupt_line(line), Some((27, ("eth0-TxRx-0".into(), 1005))));
        for line in ["NMI:  0  0  Non-maskable interrupts", "", "27", "27:"] {
            assert_eq!(interrupt_line(line), None, "{line}");
        }
    }
}
