//! The device tree, as HMP's `info qtree` prints it.
//!
//! The format is that of `qbus_print` and `qdev_print` of QEMU's system/qdev-monitor.c (softmmu/ before 8.2), the same
//! from 7.2 to 10:
//!
//! ```text
//! bus: main-system-bus
//!   type System
//!   dev: q35-pcihost, id ""
//!     short_root_bus = 0 (0x0)
//!     bus: pcie.0
//!       type PCIE
//!       dev: virtio-blk-pci, id "late"
//!         addr = 05.0
//!         class SCSI controller, addr 00:05.0, pci id 1af4:1001 (sub 1af4:0002)
//! ```
//!
//! Each level is indented by two blanks. Lines of a device that are not `name = value` tell what the guest made of the
//! device (BARs, interrupts), and are passed over.

use super::model::Device;

/// The deepest tree that is read: PCI bridges in bridges with USB hubs in hubs have some twenty levels.
const DEPTH_MAX: usize = 64;

/// The error of a text that is no device tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the device tree: {why}")]
pub struct NoTree {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub why: &'static str,
}

/// Returns the devices on the root buses, with all devices below them.
///
/// # Errors
///
/// The first line that no device tree has.
pub fn parse(text: &str) -> Result<Vec<Device>, NoTree> {
    let mut roots = Vec::new();
    // The devices that are open, from the root on, each with the indentation of its properties.
    let mut open: Vec<(usize, Device)> = Vec::new();
    // The buses that are open, each with the indentation of its devices.
    let mut buses: Vec<(usize, String)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fault = |why| NoTree { line: number + 1, why };
        let content = line.trim_start_matches(' ');
        let indentation = line.len() - content.len();
        if let Some(name) = content.strip_prefix("bus: ") {
            close(indentation, &mut open, &mut roots);
            buses.retain(|(of_devices, _)| *of_devices <= indentation);
            if buses.len() >= DEPTH_MAX {
                return Err(fault("it is too deep"));
            }
            buses.push((indentation + 2, name.trim_end().to_owned()));
        } else if let Some(device) = content.strip_prefix("dev: ") {
            close(indentation, &mut open, &mut roots);
            buses.retain(|(of_devices, _)| *of_devices <= indentation);
            let (of_devices, bus) = buses.last().ok_or(fault("a device without a bus"))?;
            if *of_devices != indentation {
                return Err(fault("a device beside its bus"));
            }
            let (driver, id) = device.split_once(", id \"").ok_or(fault("a device without an id"))?;
            let id = id.trim_end().strip_suffix('"').ok_or(fault("an id without an end"))?;
            let device = Device { bus: bus.clone(), driver: driver.to_owned(), id: id.to_owned(), ..Device::default() };
            open.push((indentation + 2, device));
        } else if let Some((indented, device)) = open.last_mut()
            && *indented == indentation
            && let Some((name, value)) = content.split_once(" = ")
        {
            device.properties.insert(name.to_owned(), value.trim_end().to_owned());
        }
    }
    close(0, &mut open, &mut roots);
    if roots.is_empty() {
        return Err(NoTree { line: 1, why: "there is no device" });
    }
    Ok(roots)
}

/// Gives devices that end before a line of this indentation to their parents.
fn close(indentation: usize, open: &mut Vec<(usize, Device)>, roots: &mut Vec<Device>) {
    while let Some((_, device)) = open.pop_if(|(of_properties, _)| *of_properties > indentation) {
        match open.last_mut() {
            Some((_, parent)) => parent.children.push(device),
            None => roots.push(device),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TREE: &str = "bus: main-system-bus
  type System
  dev: hpet, id \"\"
    gpio-out \"sysbus-irq\" 32
    timers = 3 (0x3)
    mmio 00000000fed00000/0000000000000400
  dev: q35-pcihost, id \"\"
    bus: pcie.0
      type PCIE
      dev: virtio-blk-pci, id \"late\"
        addr = 05.0
        class SCSI controller, addr 00:05.0, pci id 1af4:1001 (sub 1af4:0002)
        bar 0: i/o at 0xffffffffffffffff [0x7e]
        bus: virtio-bus
          type virtio-pci-bus
          dev: virtio-blk-device, id \"\"
            drive = \"d0\"
            serial = \"a = b\"
      dev: mch, id \"\"
        addr = 00.0
";

    #[test]
    fn a_tree_is_read() {
        let roots = parse(TREE).unwrap();
        let drivers: Vec<&str> = roots.iter().map(|device| device.driver.as_str()).collect();
        assert_eq!(drivers, ["hpet", "q35-pcihost"]);
        assert_eq!(roots[0].properties.iter().collect::<Vec<_>>(), [(&"timers".into(), &"3 (0x3)".into())]);
        let [block, mch] = &roots[1].children[..] else { panic!("{roots:#?}") };
        assert_eq!(
            (block.bus.as_str(), block.driver.as_str(), block.id.as_str()),
            ("pcie.0", "virtio-blk-pci", "late")
        );
        assert_eq!(block.properties["addr"], "05.0");
        assert_eq!(block.children[0].properties["serial"], "\"a = b\"");
        assert_eq!((mch.driver.as_str(), mch.bus.as_str(), mch.children.len()), ("mch", "pcie.0", 0));
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        for bad in [
            "",
            "\n",
            "unknown command: 'info qtree'",
            "dev: x, id \"\"",
            "bus: a\ndev: x, id \"\"",
            "bus: a\n  dev: x",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let deep: String = (0..200).map(|level| format!("{:1$}bus: b\n", "", level * 2)).collect();
        assert!(parse(&deep).is_err());
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(at in 0..TREE.len(), cut in 0usize..60, piece in "[ a-z:=\",\\n]{0,30}") {
            let end = (at + cut).min(TREE.len());
            if let (Some(head), Some(tail)) = (TREE.get(..at), TREE.get(end..)) {
                let _ = parse(&format!("{head}{piece}{tail}"));
            }
            let _ = parse(&piece);
        }
    }
}
