//! `[qemu]`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::Value as Toml;

use super::{Line, ROOT_KEYS, VALUE_BYTES_MAX, path, read_path};
use crate::reader::{Reader, Table, quote};

/// Most extra arguments.
pub const ARGS_MAX: usize = 256;

/// Which QEMU, and what else it is told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Qemu {
    /// The program; none: the agent's.
    pub binary: Option<PathBuf>,
    /// More arguments, verbatim.
    pub args: Vec<String>,
}

/// Arguments that would be at odds with what the agent says, and what to do instead.
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
            value.fault(reader, format!("args cannot have {}", quote(text)), *cure);
        }
    }
    table.finish(reader, &ROOT_KEYS);
    Qemu { binary, args: args.into_iter().map(|(_, text)| text.to_owned()).collect() }
}
