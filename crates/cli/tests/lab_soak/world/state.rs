//! The hosts, agents and guests of a soak, and what was done to them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use skein_api::MigrationId;
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::{Params, Rewrite};

/// The number of hosts.
const HOSTS: usize = 3;
/// The number of each host's NICs.
pub const NICS: usize = 2;
/// The most migrations at once to and from a host; more are queued.
const AT_ONCE: u16 = 2;
/// The MiB of the working guests' memory that are verified.
const FILL_MB: [u32; 2] = [64, 128];
/// The number of guests without a program.
const BARE: usize = 2;

pub(super) struct Guest {
    pub(super) name: String,
    pub(super) definition: String,
    /// Whether the guest runs the lab's workload, which writes memory and checks it. A bare guest has no program.
    pub(super) working: bool,
    /// The host that the guest is on.
    pub(super) at: String,
}

pub struct World {
    pub cluster: Cluster,
    pub(super) guests: Vec<Guest>,
    /// The migrations that were judged.
    pub(super) known: BTreeSet<MigrationId>,
    /// The QEMUs that the soak killed.
    pub(super) killed: BTreeSet<u32>,
    pub(super) round_began: Instant,
    /// What was done, and when in the round.
    pub timeline: Vec<(Duration, String)>,
    /// The boots that failed.
    pub boots: Vec<String>,
}

impl World {
    pub fn new(program: &Path, seed: u64) -> World {
        let settings = Settings {
            hosts: HOSTS,
            nics: NICS,
            rates: vec![Some(500)],
            incoming: AT_ONCE,
            outgoing: AT_ONCE,
            ..Settings::new(program.to_owned())
        };
        let mut cluster = Cluster::up(settings);
        let hosts = cluster.hosts();
        let mut guests = Vec::new();
        for (n, fill_mb) in FILL_MB.iter().enumerate() {
            let params = Params {
                fill_mb: *fill_mb,
                compressible: 0,
                rewrite_mb: fill_mb / 3,
                rewrite: Rewrite::Quarter,
                rate: 1000,
                beat_ms: 20,
                seed: seed + n as u64,
                ..Params::default()
            };
            let name = format!("work{n}");
            let definition = cluster.working(&name, &params);
            guests.push(Guest { name, definition, working: true, at: hosts[n % HOSTS].clone() });
        }
        for n in 0..BARE {
            let name = format!("bare{n}");
            let definition = cluster.bare(&name);
            guests.push(Guest { name, definition, working: false, at: hosts[(n + 1) % HOSTS].clone() });
        }
        let mut world = World {
            cluster,
            guests,
            known: BTreeSet::new(),
            killed: BTreeSet::new(),
            round_began: Instant::now(),
            timeline: Vec::new(),
            boots: Vec::new(),
        };
        (0..world.guests.len()).for_each(|at| world.boot(at));
        world
    }

    pub fn guests(&self) -> usize {
        self.guests.len()
    }

    pub(super) fn note(&mut self, what: String) {
        self.timeline.push((self.round_began.elapsed(), what));
    }

    pub(super) fn qemus(&self, vm: &str, host: &str) -> Vec<u32> {
        let qemus = self.cluster.qemus(host).into_iter();
        qemus.filter(|qemu| qemu.vm.as_deref() == Some(vm)).map(|qemu| qemu.pid).collect()
    }

    /// Returns everything that is known, to find out the cause, and where the files stay.
    pub fn keep(&mut self) -> (String, PathBuf) {
        let mut text = self.cluster.report();
        for Guest { name, .. } in &self.guests {
            for (qemu, status) in self.cluster.witness().migrations(name) {
                text += &format!("---- {name}: {qemu}: {status:?}\n");
            }
            text += &format!("---- {name} ran: {:#?}\n", self.cluster.witness().runs(name));
        }
        (text, self.cluster.keep_files())
    }
}
