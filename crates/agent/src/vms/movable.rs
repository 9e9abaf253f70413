//! Refuses to start what cannot be moved, unless its file says that it is to stay.

use std::path::{Path, PathBuf};

use skein_hypervisor::Guest;
use skein_hypervisor::guest::facts::BlockNode;
use skein_inventory::definition::Definition;

use super::error::VmError;
use super::vm::Vm;
use crate::host_files::image;

/// Names QEMU's block drivers that open a file or a block device of the host.
const FILE_DRIVERS: [&str; 4] = ["file", "host_device", "host_cdrom", "io_uring"];
/// Bounds the reasons that are told.
const REASONS_MAX: usize = 8;

/// Checks what a definition says.
pub(super) fn check(definition: &Definition) -> Result<(), VmError> {
    refuse(definition, definition.qemu.unmovable())
}

/// Checks what the VM's QEMU says once it runs: its devices, and the files that it has open.
pub(super) fn check_running(vm: &Vm, guest: &dyn Guest) -> Result<(), VmError> {
    let launch = vm.launch();
    let Some(definition) = launch.definition().filter(|definition| definition.migration.allowed) else {
        return Ok(());
    };
    let of_guest = |source| VmError::Guest { name: vm.name.clone(), source };
    let nodes = guest.block_nodes().map_err(of_guest)?;
    let mut reasons = guest.blocked_reasons().map_err(of_guest)?;
    reasons.extend(unreachable(&nodes, Path::exists));
    refuse(definition, reasons)
}

fn refuse(definition: &Definition, mut reasons: Vec<String>) -> Result<(), VmError> {
    if reasons.is_empty() || !definition.migration.allowed {
        return Ok(());
    }
    reasons.truncate(REASONS_MAX);
    Err(VmError::Unmovable { name: definition.name.clone(), why: reasons.join("; ") })
}

/// Returns the files of a QEMU's block nodes that no other host can have at the same place.
fn unreachable(nodes: &[BlockNode], exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let files = nodes.iter().filter(|node| FILE_DRIVERS.contains(&node.driver.as_str()));
    let paths = files.filter_map(|node| image(&node.filename));
    let told = |path: PathBuf| {
        let shown = path.display();
        if !path.is_absolute() {
            // The path is relative to the directory that the agent happens to have.
            return Some(format!("its args name the file {shown} by a relative path"));
        }
        (!exists(&path)).then(|| format!("it writes to {shown}, which no other process can open (snapshot=on?)"))
    };
    paths.filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skein_hypervisor::MigrationInfo;

    use super::*;

    #[test]
    fn what_stays_is_refused_unless_it_may_stay() {
        let text = |more: &str| format!("name = 'a'\nmemory = '64 MiB'\n{more}");
        let definition = |more: &str| Definition::parse(&text(more), "a.toml").unwrap();
        assert!(check(&definition("[qemu]\nargs = ['-device', 'virtio-rng-pci']")).is_ok());
        let args = "[qemu]\nargs = ['-virtfs', 'local,path=/srv']\n";
        let error = check(&definition(args)).unwrap_err();
        assert!(error.to_string().contains("-virtfs local,path=/srv"), "{error}");
        assert!(check(&definition(&format!("{args}[migration]\nallowed = false"))).is_ok());
    }

    #[test]
    fn what_qemu_says_is_read() {
        let reasons = json!({ "blocked-reasons": ["State blocked by non-migratable device 'nvme'"] });
        let blocked = |answer| MigrationInfo::parse(answer).unwrap().blocked_reasons;
        assert_eq!(blocked(reasons), ["State blocked by non-migratable device 'nvme'"]);
        assert_eq!(blocked(json!({})), [""; 0]);
        let node = |driver: &str, file: &str| BlockNode {
            name: "n".into(),
            driver: driver.into(),
            filename: file.into(),
            backing_file: None,
            read_only: false,
        };
        let nodes = [
            node("file", "/srv/a"),
            node("raw", "b.img"),
            node("file", "b.img"),
            node("file", "/var/tmp/vl.X"),
            node("nbd", "nbd://h/x"),
        ];
        let found = unreachable(&nodes, |path| path == Path::new("/srv/a"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("b.img by a relative path") && found[1].contains("/var/tmp/vl.X"), "{found:?}");
    }
}
