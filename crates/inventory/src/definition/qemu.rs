//! `[qemu]`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Value as Toml;

use super::values::{Line, ROOT_KEYS, VALUE_BYTES_MAX, path, read_path};
use crate::command_line;
use crate::toml_reader::{Reader, Table, quote};

/// The most extra arguments.
pub const ARGS_MAX: usize = 256;

/// Which QEMU runs the VM, and what else it is told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Qemu {
    /// The program. `None`: the agent's.
    pub binary: Option<PathBuf>,
    /// The extra arguments, verbatim.
    pub args: Vec<String>,
}

/// The arguments that would be at odds with what the agent says, and what to do instead.
const RESERVED: [(&str, &str); 11] = [
    ("incoming", "the agent says when a QEMU waits for a migration: leave it out"),
    ("S", "the agent says when a guest runs: leave it out"),
    ("daemonize", "the agent keeps QEMU running by itself: leave it out"),
    ("loadvm", "a migration would start from a snapshot: leave it out"),
    ("snapshot", "what the guest writes would stay on the source: leave it out"),
    ("name", "use name = ..."),
    ("m", "use memory = ..."),
    ("smp", "use cpus = ..."),
    ("cpu", "use cpu = ..."),
    ("accel", "use accel = ..."),
    ("enable-kvm", "use accel = \"kvm\""),
];

impl Qemu {
    pub(super) fn write(&self, line: &mut Line) {
        if *self != Qemu::default() {
            // An empty list says nothing, but gives the section a line to begin with.
            let args: Vec<Toml> = self.args.iter().map(|arg| arg.as_str().into()).collect();
            line("\n[qemu]\nargs", args.into());
            self.binary.iter().for_each(|binary| line("binary", path(binary)));
        }
    }
}

pub(super) fn read(reader: &mut Reader, mut table: Table) -> Qemu {
    let binary = read_path(reader, table.get("binary"));
    let args = table.get("args").map_or(Vec::new(), |value| value.strings(reader, ARGS_MAX, VALUE_BYTES_MAX));
    for (value, text) in &args {
        let option = text.strip_prefix('-').map(|text| text.strip_prefix('-').unwrap_or(text));
        if let Some((_, cure)) = RESERVED.iter().find(|(name, _)| option == Some(name)) {
            value.report_at(reader, format!("args cannot have {}", quote(text)), *cure);
        }
    }
    table.finish(reader, &ROOT_KEYS);
    Qemu { binary, args: args.into_iter().map(|(_, text)| text.to_owned()).collect() }
}

/// The devices that nothing can move, by how their names begin, and what they are.
const HOST_ONLY_DEVICES: [(&str, &str); 2] =
    [("vfio-", "a device of this host"), ("usb-host", "a USB device of this host")];

impl Qemu {
    /// Returns whether the arguments name a file, such as a disk's.
    pub fn names(&self, path: &Path) -> bool {
        // A doubled comma is QEMU's way to write a comma. JSON and lists take a comma as it is.
        let text = path.to_string_lossy();
        let escaped = text.replace(',', ",,");
        self.args.iter().any(|arg| arg.contains(&*text) || arg.contains(&escaped))
    }

    /// Returns what in the arguments keeps the guest on the host where it starts. QEMU itself says more once the guest
    /// runs. [`super::Definition::parse`] has no such rule: it would make definitions unreadable that older versions
    /// have started and kept.
    pub fn unmovable(&self) -> Vec<String> {
        let mut found = Vec::new();
        for option in command_line::options(&self.args) {
            let told = quote(&format!("{} {}", self.args[option.at - 1], option.value));
            let keys = command_line::keys(option.value);
            let driver = command_line::driver(&keys);
            if option.name == "device" {
                let device = HOST_ONLY_DEVICES.iter().find(|(name, _)| driver.starts_with(name));
                found.extend(device.map(|(_, what)| format!("args {told} give the guest {what}")));
            } else if option.is_temporary() {
                found.push(format!("with args {told} what the guest writes is in a file that only this QEMU has"));
            }
        }
        let directories = command_line::host_directories(&self.args).into_iter();
        found.extend(directories.map(|option| format!("args \"{option}\" give the guest a directory of this host")));
        let other = command_line::devices_of_chance(&self.args).into_iter();
        found.extend(
            other.map(|device| format!("args \"{device}\" give the guest another identity on each host: name a guid")),
        );
        found
    }
}
