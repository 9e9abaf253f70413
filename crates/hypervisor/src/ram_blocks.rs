//! Asks where a guest's RAM is in QEMU's memory.

use serde_json::json;
use skein_guest_ram::{RamBlock, host_address, parse_ramblocks, seen_at};

use crate::qmp::error::QmpError;
use crate::qmp::message::excerpt;
use crate::qmp::monitor::Monitor;

impl Monitor {
    /// Returns QEMU's RAM blocks, with their addresses. If QEMU's table does not tell the addresses (7.2), only the
    /// memory backends that the guest has as RAM have some; the others are without.
    ///
    /// QMP has no command for them. QEMU's human monitor is not a stable interface: a table with other columns is
    /// [`QmpError::Malformed`].
    pub fn ram_blocks(&self) -> Result<Vec<RamBlock>, QmpError> {
        let table = self.human("info ramblock")?;
        let mut blocks = parse_ramblocks(&table)
            .map_err(|error| QmpError::Malformed { reason: error.to_string(), excerpt: excerpt(table.as_bytes()) })?;
        if blocks.iter().any(|block| block.host_address.is_none()) {
            let mtree = self.human("info mtree -f")?;
            for block in &mut blocks {
                if let Some((guest_address, offset)) = seen_at(&mtree, &block.name) {
                    let answer = self.human(&format!("gpa2hva {guest_address:#x}"))?;
                    block.host_address =
                        host_address(&answer, &block.name).and_then(|address| address.checked_sub(offset));
                }
            }
        }
        Ok(blocks)
    }

    /// Returns what the human monitor prints for a command.
    fn human(&self, command: &str) -> Result<String, QmpError> {
        let printed = self.execute("human-monitor-command", json!({ "command-line": command }))?;
        printed.as_str().map(str::to_owned).ok_or_else(|| QmpError::Malformed {
            reason: format!("{command} prints no text"),
            excerpt: excerpt(printed.to_string().as_bytes()),
        })
    }
}
