//! A state in a line of a trace.

use std::fmt;

use super::state::{Agent, World};

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let off = |on: bool| if on { "" } else { "(off) " };
        let source = match &self.source {
            Agent::Busy(source) => format!("{:?}{}", source.phase(), if source.is_in_doubt() { "?" } else { "" }),
            agent => format!("{agent:?}"),
        };
        let target = match &self.target {
            Agent::Busy(target) => format!("{:?}{}", target.phase(), if target.is_in_doubt() { "?" } else { "" }),
            agent => format!("{agent:?}"),
        };
        let disk = |record: Option<String>| record.unwrap_or_else(|| "-".into());
        write!(
            f,
            "{}{source} [{}] QEMU {:?} | {}{target} [{}] QEMU {:?}{}",
            off(self.source_on),
            disk(self.source_disk.map(|last| format!("{last:?}"))),
            self.source_qemu,
            off(self.target_on),
            disk(self.target_disk.map(|last| format!("{last:?}"))),
            self.target_qemu,
            if self.moved_in { " (moved in)" } else { "" },
        )
    }
}
