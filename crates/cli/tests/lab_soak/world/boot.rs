//! How a guest is started.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;

use skein_api::Request;
use skein_lab_cluster::{GUEST_TIME, until};

use super::state::{Guest, World};

/// How often booting a guest is tried.
const BOOTS: usize = 3;

impl World {
    /// Starts a guest and waits until it works. A guest that gives up while it boots, as an emulated guest on a busy
    /// machine may, was not in a migration, so it is started again.
    pub(super) fn boot(&mut self, at: usize) {
        for n in 1.. {
            let Guest { name, definition, working, at: host } = &self.guests[at];
            let console = self.cluster.dir().join(format!("{name}.console"));
            self.cluster.start_vm(host, definition);
            listen(&self.cluster.run_dir(host).join("vms").join(name).join("console"), &console);
            let has_ended = || self.qemus(name, host).is_empty();
            let runs = || self.cluster.where_runs(name) == [host.as_str()];
            let works = || self.cluster.talk(name, |agent| agent.status()).ready;
            let is_up = catch_unwind(AssertUnwindSafe(|| {
                let up = until(GUEST_TIME, || has_ended() || (runs() && (!working || works())));
                up && !has_ended()
            }));
            if is_up.unwrap_or(false) {
                return;
            }
            let said = std::fs::read_to_string(&console).unwrap_or_default();
            let words = said.trim_end().get(said.trim_end().len().saturating_sub(1000)..).unwrap_or_default();
            let what = format!("{name} did not boot: QEMU ended: {}; it said: {words}", has_ended());
            assert!(n < BOOTS, "{what}");
            println!("{what}");
            self.boots.push(what);
            // The guest may have ended by itself.
            let _ = self.cluster.ask(host, &Request::VmStop { name: name.clone(), timeout_s: 0, force: true });
            self.cluster.asked(host, &Request::VmForget { name: name.clone() });
        }
    }
}

/// Writes a guest's serial output to a file until its QEMU ends.
fn listen(socket: &Path, file: &Path) {
    let (Ok(mut from), Ok(mut to)) = (UnixStream::connect(socket), File::create(file)) else { return };
    thread::spawn(move || io::copy(&mut from, &mut to));
}
