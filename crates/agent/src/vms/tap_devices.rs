//! Makes and removes taps of NICs that are plugged into bridges, with `ip`.

use std::io;
use std::process::Command;

use skein_inventory::definition::{Attachment, Definition, Nic};

use super::error::{VmError, io_error};
use crate::launch::tap_name;

/// Makes the taps of a VM, and plugs them into their bridges.
pub(super) fn plug(definition: &Definition) -> Result<(), VmError> {
    for nic in &definition.nics {
        if let Attachment::Bridge(bridge) = &nic.attachment {
            plug_one(&tap_name(nic), bridge, nic.options.queues.is_some_and(|queues| queues > 1))?;
        }
    }
    Ok(())
}

/// Removes the taps of a VM.
pub(super) fn unplug(definition: &Definition) {
    let bridged = |nic: &&Nic| matches!(nic.attachment, Attachment::Bridge(_));
    definition.nics.iter().filter(bridged).for_each(|nic| unplug_one(&tap_name(nic)));
}

fn plug_one(tap: &str, bridge: &str, several_queues: bool) -> Result<(), VmError> {
    if is_open(tap) {
        return Err(VmError::TapInUse(tap.to_owned()));
    }
    unplug_one(tap);
    if !ip(&["link", "show", "dev", bridge]).map_err(io_error(format!("ip link show dev {bridge}")))?.status.success() {
        return Err(VmError::NoBridge(bridge.to_owned()));
    }
    let mut add = vec!["tuntap", "add", "dev", tap, "mode", "tap"];
    add.extend(several_queues.then_some("multi_queue"));
    let steps: [&[&str]; 2] = [&add, &["link", "set", "dev", tap, "master", bridge, "up"]];
    for step in steps {
        let what = || format!("ip {}", step.join(" "));
        let done = ip(step).map_err(io_error(what()))?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            return Err(io_error(what())(io::Error::other(said)));
        }
    }
    Ok(())
}

/// Removes a tap. A tap that a QEMU has open was not left by an earlier QEMU.
fn unplug_one(tap: &str) {
    if !is_open(tap) {
        let _ = ip(&["link", "del", "dev", tap]);
    }
}

/// Returns whether a process has the tap open. A tap has a carrier as long as one has.
fn is_open(tap: &str) -> bool {
    ip(&["link", "show", "dev", tap]).is_ok_and(|found| String::from_utf8_lossy(&found.stdout).contains("LOWER_UP"))
}

fn ip(args: &[&str]) -> io::Result<std::process::Output> {
    Command::new("ip").args(args).output()
}
