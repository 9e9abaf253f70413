//! Shows the host to controllers, and answers their requests as those of commands.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use skein_api::{HostFacts, Migration, MigrationId, Reply, RequestLine, VmView};
use skein_inventory::facts::GuestFiles;
use skein_inventory::{Attachment, printable};

use super::refusal::{WORDS_BYTES_MAX, refusal};
use super::request_server::{AskedBy, RequestServer};
use crate::controllers::{ControlledHost, GuestProcess};
use crate::launch::tap_name;
use crate::to_api::{ToApi, migration_id};
use crate::vms::Vm;

/// Says how long a migration that is over is told to controllers: longer than any controller is away for a restart.
const OVER_TIME: Duration = Duration::from_secs(600);
/// Bounds the migrations that were over when the agent was started.
const EARLIER_MAX: usize = 100;
/// Bounds the addresses that other hosts are told: each NIC has some.
const ADDRESSES_MAX: usize = 32;

/// The host, as its request server knows it.
pub(crate) struct ServedHost {
    server: Arc<RequestServer>,
    /// Where the agent listens.
    listen: SocketAddr,
    /// The NICs that sessions may use; empty: all.
    nics: Vec<String>,
    /// The migrations that were over when the agent was started: a controller may not know their ends.
    earlier: Vec<Migration>,
}

impl ServedHost {
    /// `listen` has the port that is listened on. `nics` are those that sessions may use; empty: all.
    pub(crate) fn new(server: Arc<RequestServer>, listen: SocketAddr, nics: Vec<String>) -> ServedHost {
        let mut earlier = server.migrations.view().list(EARLIER_MAX);
        earlier.retain(|migration| migration.outcome.is_some() && is_recent(migration));
        ServedHost { server, listen, nics, earlier }
    }

    fn shown(&self, mut migration: Migration) -> Migration {
        if migration.outcome.is_none()
            && let Ok(now) = self.server.view(migration_id(migration.id))
        {
            migration = now;
            migration.events.clear();
        }
        migration.attempt = self.server.attempts.attempt(migration_id(migration.id));
        migration
    }
}

impl ControlledHost for ServedHost {
    fn name(&self) -> String {
        self.server.migrations.peers().host().to_owned()
    }

    fn addresses(&self) -> Vec<String> {
        if !self.listen.ip().is_unspecified() {
            return vec![self.listen.to_string()];
        }
        let nics = skein_host::nics().unwrap_or_default();
        let usable = nics.iter().filter(|nic| {
            let is_meant = self.nics.is_empty() || self.nics.contains(&nic.name);
            // Behind a tap is a guest, and behind a bridge that stands on nothing are guests alone.
            let leads_out = match nic.kind.as_deref() {
                Some("tun") => false,
                Some("bridge") => skein_host::uplink(&nics, nic).index != nic.index,
                _ => true,
            };
            is_meant && nic.up() && !nic.loopback && leads_out
        });
        let addresses = usable.flat_map(|nic| &nic.addresses).filter(|address| address.usable);
        let routed = addresses.map(|address| address.ip).filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        });
        routed.map(|ip| SocketAddr::from((ip, self.listen.port())).to_string()).take(ADDRESSES_MAX).collect()
    }

    fn facts(&self) -> HostFacts {
        self.server.starter.own_facts(None, &GuestFiles::default()).to_api()
    }

    fn closed(&self) -> Option<String> {
        self.server.rooms.closed()
    }

    fn vms(&self) -> Vec<VmView> {
        self.server.vms.all().iter().map(|vm| vm.show()).collect()
    }

    fn outline(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.server.migrations.view().changes().hash(&mut hasher);
        self.server.vms.all().iter().for_each(|vm| vm.outline().hash(&mut hasher));
        self.server.rooms.closed().hash(&mut hasher);
        hasher.finish()
    }

    fn guests(&self) -> Vec<GuestProcess> {
        let guest = |vm: &Arc<Vm>| {
            let pid = vm.running()?.process.id().pid;
            let launch = vm.launch();
            let nics = launch.definition().map(|definition| &definition.nics[..]).unwrap_or_default();
            let taps = nics.iter().map(|nic| match &nic.attachment {
                Attachment::Tap(tap) => tap.clone(),
                _ => tap_name(nic),
            });
            Some(GuestProcess { vm: vm.name.clone(), pid, taps: taps.collect() })
        };
        self.server.vms.all().iter().filter_map(guest).collect()
    }

    fn migrations(&self) -> Vec<Migration> {
        let mut all: BTreeMap<MigrationId, Migration> =
            self.earlier.iter().map(|migration| (migration.id, migration.clone())).collect();
        all.extend(self.server.migrations.view().recent().into_iter().map(|migration| (migration.id, migration)));
        let recent = all.into_values().filter(|migration| migration.outcome.is_none() || is_recent(migration));
        recent.map(|migration| self.shown(migration)).collect()
    }

    fn contacts(&self) -> BTreeMap<String, bool> {
        self.server.migrations.peers().contacts()
    }

    fn forgotten(&self) -> BTreeSet<String> {
        let mut forgotten = self.server.forgotten.lock();
        forgotten.retain(|name| self.server.vms.get(name).is_err());
        forgotten.clone()
    }

    fn run(&self, line: RequestLine) -> Reply {
        if self.server.stopping.load(Ordering::SeqCst) {
            return Reply::Error(refusal("the agent stops", "ask again when it is back"));
        }
        let reply = self.server.answer(line, AskedBy::Controller, &mut |_| Ok(()), &|| false);
        let reply = reply.unwrap_or_else(|refusal| Reply::Error(*refusal));
        match reply {
            Reply::Error(told) => Reply::Error(refusal(printable(told.message, WORDS_BYTES_MAX * 4), told.cure)),
            reply => reply,
        }
    }

    fn learn_hosts(&self, addresses: &BTreeMap<String, Vec<String>>) {
        self.server.migrations.peers().learn_hosts(addresses);
    }
}

/// Returns whether a migration ended not long ago.
fn is_recent(migration: &Migration) -> bool {
    let Ok(begun) = migration.begun.parse::<jiff::Timestamp>() else { return false };
    let end = begun + Duration::from_millis(migration.elapsed_ms.min(u64::from(u32::MAX)));
    jiff::Timestamp::now().duration_since(end).unsigned_abs() <= OVER_TIME
}
