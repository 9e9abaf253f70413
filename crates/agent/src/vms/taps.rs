//! Taps of NICs that are plugged into bridges, made and removed with `ip`.

use std::io;
use std::process::Command;

use skein_machine::definition::{Attachment, Definition, Nic};

use super::{VmError, io_error};
use crate::launch::tap_name;

/// Makes the taps of a VM, and plugs them into their bridges.
pub(super) fn plug(definition: &Definition) -> Result<(), VmError> {
    for nic in &definition.nics {
        if let Attachment::Bridge(bridge) = &nic.attachment {
            plug_one(&tap_name(nic), bridge)?;
        }
    }
    Ok(())
}

/// Removes them.
pub(super) fn unplug(definition: &Definition) {
    let bridged = |nic: &&Nic| matches!(nic.attachment, Attachment::Bridge(_));
    definition.nics.iter().filter(bridged).for_each(|nic| unplug_one(&tap_name(nic)));
}

fn plug_one(tap: &str, bridge: &str) -> Result<(), VmError> {
    unplug_one(tap);
    let steps: [&[&str]; 2] =
        [&["tuntap", "add", "dev", tap, "mode", "tap"], &["link", "set", "dev", tap, "master", bridge, "up"]];
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

fn unplug_one(tap: &str) {
    let _ = ip(&["link", "del", "dev", tap]);
}

fn ip(args: &[&str]) -> io::Result<std::process::Output> {
    Command::new("ip").args(args).output()
}
