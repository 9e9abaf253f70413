//! A simulated host and its agent, without I/O: guests that are names and loads, migrations, commands, faults. Time is
//! an argument: milliseconds since the fleet's beginning.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::{
    FailureReason, HostFacts, HostLoad, Migration, MigrationId, MigrationPhase, MigrationSlots, NicFacts, Outcome,
    Refusal, Reply, Request, Role, SourcePhase, TargetPhase, Term, VmLoad, VmOrigin, VmState, VmView,
};
use skein_placement::dice::Dice;

use crate::loads::Loads;
use crate::words::{Fault, Known, KnownVm, Peer, PeerWord, host_name, number_of, vm_name};

const GIB: u64 = 1 << 30;
/// What each host has.
const HOST_RAM_BYTES: u64 = 192 * GIB;
const HOST_CPUS: u32 = 48;
const NIC_BITS_PER_S: u64 = 10_000_000_000;
/// The migrations at once that an agent allows, each way.
const SLOTS: u32 = 4;
/// What a migration takes besides its copy, in milliseconds.
const SETUP_MS: u64 = 800;
/// How long a guest takes to start, in milliseconds, at least and besides.
const START_MS: (u64, usize) = (300, 1500);
/// How many migrations that are over an agent tells of.
const OVER_KEPT: usize = 32;
/// Of how many migrations one fails.
const FAILS_OF: usize = 50;

/// A guest, or a VM that is off.
#[derive(Clone, Debug, PartialEq)]
struct Guest {
    memory_bytes: u64,
    cpus: u32,
    state: VmState,
    migration: Option<MigrationId>,
    note: String,
}

/// What becomes of a command.
#[derive(Debug)]
pub(crate) enum Obeyed {
    Reply(Reply),
    /// A guest is being started: see [`Host::started`].
    Starts {
        vm: String,
        name: String,
        after_ms: u64,
    },
}

/// What a host wants done.
#[derive(Debug)]
pub(crate) enum Wish {
    Tell(Peer),
    /// To be woken by [`Host::copied`].
    Copies {
        migration: MigrationId,
        after_ms: u64,
    },
}

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// The number of the agent's start, of the host's boot.
    pub(crate) instance: u64,
    boot: u64,
    /// What a migration carries of a guest's memory in a second.
    copy_bytes_per_s: u64,
    /// Whether the host has power.
    pub(crate) is_on: bool,
    pub(crate) highest: Term,
    guests: BTreeMap<String, Guest>,
    migrations: BTreeMap<MigrationId, Migration>,
    /// When a migration began, by its id.
    begun_ms: BTreeMap<MigrationId, u64>,
    /// The migrations that were asked for by a name.
    asked: BTreeMap<String, MigrationId>,
    /// The starts that were asked for by a name, and whether they are done.
    starts: BTreeMap<String, bool>,
    dice: Dice,
    wishes: Vec<Wish>,
}

/// What a host is at a moment.
pub(crate) struct Snapshot {
    pub(crate) load: HostLoad,
    pub(crate) vms: BTreeMap<String, VmView>,
    pub(crate) loads: BTreeMap<String, VmLoad>,
    pub(crate) migrations: BTreeMap<MigrationId, Migration>,
}

impl Host {
    /// Makes a host with guests that run.
    pub(crate) fn new(number: u32, guests: u32, copy_bytes_per_s: u64, seed: u64) -> Host {
        let mut dice = Dice::new(seed ^ u64::from(number) << 20);
        let first = (number - 1) * guests;
        let new = |dice: &mut Dice| Guest {
            memory_bytes: *dice.pick(&[GIB, 2 * GIB, 2 * GIB, 4 * GIB, 8 * GIB]),
            cpus: *dice.pick(&[1, 2, 2, 4]),
            state: VmState::Running,
            migration: None,
            note: String::new(),
        };
        Host {
            name: host_name(number),
            instance: dice.any(),
            boot: 1,
            copy_bytes_per_s,
            is_on: true,
            highest: Term(0),
            guests: (1..=guests).map(|vm| (vm_name(first + vm), new(&mut dice))).collect(),
            migrations: BTreeMap::new(),
            begun_ms: BTreeMap::new(),
            asked: BTreeMap::new(),
            starts: BTreeMap::new(),
            dice,
            wishes: Vec::new(),
        }
    }

    pub(crate) fn boot_id(&self) -> String {
        format!("{}-boot-{}", self.name, self.boot)
    }

    /// Takes what the host wants done.
    pub(crate) fn wishes(&mut self) -> Vec<Wish> {
        std::mem::take(&mut self.wishes)
    }

    // ---- what is told ----

    pub(crate) fn facts(&self) -> HostFacts {
        let slots = MigrationSlots { limit: SLOTS, used: 0 };
        let flags = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 \
                     ht syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm rep_good nopl cpuid pni pclmulqdq ssse3 fma cx16 \
                     sse4_1 sse4_2 x2apic movbe popcnt aes xsave avx f16c rdrand hypervisor lahf_lm svm abm sse4a \
                     misalignsse 3dnowprefetch osvw topoext perfctr_core ssbd ibrs ibpb stibp vmmcall fsgsbase bmi1 \
                     avx2 smep bmi2 erms invpcid avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb avx512cd";
        HostFacts {
            name: self.name.clone(),
            boot_id: Some(self.boot_id()),
            ram_bytes: HOST_RAM_BYTES,
            ram_available_bytes: HOST_RAM_BYTES.saturating_sub(self.ram_used()),
            kept_ram_bytes: 0,
            room: None,
            hugepages: Vec::new(),
            cpus: HOST_CPUS,
            cpu_vendor: "AuthenticAMD".into(),
            cpu_flags: flags.split(' ').map(str::to_owned).collect(),
            kvm: Ok(()),
            qemu: Err("a simulated host has none".into()),
            bridges: BTreeSet::from(["br0".to_owned()]),
            taps_in_use: BTreeSet::new(),
            vms: Vec::new(),
            incoming: slots,
            outgoing: slots,
            journal: Ok(()),
            files: Vec::new(),
            digests: BTreeMap::new(),
            nics: ["nic0", "nic1"]
                .map(|name| NicFacts { name: name.into(), speed_bits_per_s: Some(NIC_BITS_PER_S) })
                .into(),
            swtpm: None,
            closed: None,
        }
    }

    fn ram_used(&self) -> u64 {
        self.guests.values().filter(|guest| guest.state != VmState::Stopped).map(|guest| guest.memory_bytes).sum()
    }

    /// Returns all that the agent tells.
    pub(crate) fn snapshot(&self, now_ms: u64, loads: &Loads) -> Snapshot {
        let running = self.guests.iter().filter(|(_, guest)| guest.state == VmState::Running);
        let of = |(name, guest): (&String, &Guest)| {
            (name.clone(), loads.of(number_of(name), guest.memory_bytes, guest.cpus, now_ms))
        };
        let loads: BTreeMap<String, VmLoad> = running.map(of).collect();
        let sum = |of: fn(&VmLoad) -> u64| loads.values().map(of).sum::<u64>();
        let load = HostLoad {
            cpu_millicores: sum(|load| load.cpu_millicores) + 150,
            ram_bytes: HOST_RAM_BYTES,
            ram_available_bytes: HOST_RAM_BYTES.saturating_sub(self.ram_used()),
            disk_read_bytes_per_s: sum(|load| load.disk_read_bytes_per_s),
            disk_write_bytes_per_s: sum(|load| load.disk_write_bytes_per_s),
            net_receive_bytes_per_s: sum(|load| load.net_receive_bytes_per_s),
            net_send_bytes_per_s: sum(|load| load.net_send_bytes_per_s),
        };
        let vms = self.guests.iter().map(|(name, guest)| (name.clone(), view(name, guest))).collect();
        let migrations = self.migrations.iter().map(|(id, migration)| {
            let mut migration = migration.clone();
            if migration.outcome.is_none() {
                migration.elapsed_ms = now_ms.saturating_sub(self.begun_ms.get(id).copied().unwrap_or(now_ms));
            }
            (*id, migration)
        });
        Snapshot { load, vms, loads, migrations: migrations.collect() }
    }

    /// Returns what is compared with what the controller shows.
    pub(crate) fn known(&self, is_there: bool) -> Known {
        let of = |guest: &Guest| KnownVm { state: guest.state, is_moving: guest.migration.is_some() };
        let vms = self.guests.iter().map(|(name, guest)| (name.clone(), of(guest))).collect();
        Known { host: self.name.clone(), is_there: is_there && self.is_on, vms }
    }

    /// Has a guest say something of itself. Returns whether there is one.
    pub(crate) fn mark(&mut self, note: String) -> bool {
        let calm = |guest: &&mut Guest| guest.state == VmState::Running && guest.migration.is_none();
        let found = self.guests.values_mut().find(calm);
        found.map(|guest| guest.note = note).is_some()
    }

    // ---- commands ----

    /// Does what a command of the leader asks for. `id` is fresh.
    pub(crate) fn obey(&mut self, now_ms: u64, name: Option<String>, request: Request, id: MigrationId) -> Obeyed {
        Obeyed::Reply(match request {
            Request::Migrate { vm, to, .. } => self.migrate(now_ms, name, &vm, &to, id),
            Request::MigrationCancel { id } => match id.parse() {
                Ok(id) if self.call_off(id, FailureReason::Cancelled) => Reply::Done,
                _ => refused("no such migration is under way"),
            },
            Request::MigrationWithdraw { id } => self.withdraw(&id),
            Request::VmStart { from, .. } => {
                let vm = match from {
                    VmOrigin::Definition { file, .. } => file.trim_end_matches(".toml").to_owned(),
                    VmOrigin::Name(name) => name,
                };
                return self.start(name, vm);
            }
            Request::VmStop { name, .. } => match self.guests.get_mut(&name) {
                Some(guest) if guest.migration.is_some() => refused("it is in a migration"),
                Some(guest) if guest.state == VmState::Running => {
                    guest.state = VmState::Stopped;
                    Reply::Vm(Box::new(view(&name, guest)))
                }
                _ => refused("it does not run"),
            },
            Request::VmForget { name } => match self.guests.get(&name) {
                Some(guest) if guest.state != VmState::Stopped => refused("it runs"),
                _ => {
                    self.guests.remove(&name);
                    Reply::Done
                }
            },
            Request::HostLimit { .. } => Reply::Done,
            _ => refused("a simulated agent does not do that"),
        })
    }

    fn start(&mut self, name: Option<String>, vm: String) -> Obeyed {
        let Some(name) = name else { return Obeyed::Reply(refused("a start has a name")) };
        let runs = self.guests.get(&vm).map(|guest| guest.state);
        let reply = match (self.starts.get(&name), runs) {
            (Some(false), Some(VmState::Starting)) => refused("it is still being started"),
            (Some(_), Some(VmState::Running)) | (None, Some(VmState::Running)) => {
                self.starts.insert(name, true);
                self.guests.get(&vm).map_or(Reply::Done, |guest| Reply::Vm(Box::new(view(&vm, guest))))
            }
            (Some(true), _) => Reply::Done,
            (Some(false), _) => Reply::NotStarted(refusal("its host went down meanwhile")),
            (None, Some(VmState::Stopped) | None) => {
                let new = Guest {
                    memory_bytes: 2 * GIB,
                    cpus: 2,
                    state: VmState::Starting,
                    migration: None,
                    note: String::new(),
                };
                self.guests.entry(vm.clone()).or_insert(new).state = VmState::Starting;
                self.starts.insert(name.clone(), false);
                let after_ms = START_MS.0 + self.dice.below(START_MS.1) as u64;
                return Obeyed::Starts { vm, name, after_ms };
            }
            (None, Some(_)) => Reply::NotStarted(refusal("it is on its way")),
        };
        Obeyed::Reply(reply)
    }

    /// Brings a start to its end. Returns what the agent answers.
    pub(crate) fn started(&mut self, vm: &str, name: &str) -> Reply {
        match self.guests.get_mut(vm).filter(|guest| guest.state == VmState::Starting) {
            Some(guest) => {
                guest.state = VmState::Running;
                self.starts.insert(name.to_owned(), true);
                Reply::Vm(Box::new(view(vm, guest)))
            }
            None => Reply::NotStarted(refusal("its host went down meanwhile")),
        }
    }

    // ---- migrations ----

    fn migrate(&mut self, now_ms: u64, name: Option<String>, vm: &str, to: &str, id: MigrationId) -> Reply {
        if let Some(known) = name.as_ref().and_then(|name| self.asked.get(name)) {
            let of = self.migrations.get(known);
            return of.map_or_else(|| refused("it was long ago"), |of| Reply::Migration(Box::new(of.clone())));
        }
        let Some(guest) = self.guests.get_mut(vm).filter(|guest| guest.state == VmState::Running) else {
            return refused("no such VM runs here");
        };
        if guest.migration.is_some() {
            return refused("it is in a migration");
        }
        guest.migration = Some(id);
        let (memory_bytes, cpus) = (guest.memory_bytes, guest.cpus);
        let stage = Some(MigrationPhase::Source(SourcePhase::Precopy));
        let migration = Migration { stage, ..Migration::new(id, vm, Role::Source, &self.name, to) };
        self.migrations.insert(id, migration.clone());
        self.begun_ms.insert(id, now_ms);
        self.asked.extend(name.map(|name| (name, id)));
        self.tell(to, id, PeerWord::Begin { vm: vm.to_owned(), memory_bytes, cpus });
        let copy_ms = memory_bytes * 1000 / self.copy_bytes_per_s.max(1);
        let after_ms = SETUP_MS + copy_ms * 7 / 10 + self.dice.below(copy_ms as usize * 8 / 10) as u64;
        self.wishes.push(Wish::Copies { migration: id, after_ms });
        Reply::Migration(Box::new(migration))
    }

    /// Calls off what was asked for under a name. Nothing that was asked for is still on its way here.
    fn withdraw(&mut self, name: &str) -> Reply {
        let Some(id) = self.asked.get(name).copied() else { return Reply::Done };
        self.call_off(id, FailureReason::Cancelled);
        let of = self.migrations.get(&id);
        of.map_or_else(|| refused("it was long ago"), |of| Reply::Migration(Box::new(of.clone())))
    }

    /// Goes on with a migration whose copy is done: the guest is handed over, or it fails.
    pub(crate) fn copied(&mut self, id: MigrationId) {
        let Some(migration) = self.under_way(id, Role::Source) else { return };
        let to = migration.target.clone();
        if self.dice.below(FAILS_OF) == 0 {
            self.call_off(id, FailureReason::MigrationFailed);
        } else {
            self.tell(&to, id, PeerWord::Take);
        }
    }

    /// Hears what another host's agent says.
    pub(crate) fn hear(&mut self, now_ms: u64, peer: Peer) {
        let Peer { from, migration: id, word, .. } = peer;
        match word {
            PeerWord::Begin { vm, memory_bytes, cpus } => {
                let has_room = self.ram_used() + memory_bytes <= HOST_RAM_BYTES;
                if !self.is_on || !has_room || self.guests.contains_key(&vm) {
                    return self.tell(&from, id, PeerWord::Over);
                }
                let stage = Some(MigrationPhase::Target(TargetPhase::Ready));
                let migration = Migration { stage, ..Migration::new(id, &vm, Role::Target, &from, &self.name) };
                self.migrations.insert(id, migration);
                self.begun_ms.insert(id, now_ms);
                let (state, migration, note) = (VmState::Incoming, Some(id), String::new());
                self.guests.insert(vm, Guest { memory_bytes, cpus, state, migration, note });
            }
            PeerWord::Take => match self.under_way(id, Role::Target).map(|of| of.vm.clone()) {
                Some(vm) if self.is_on => {
                    if let Some(guest) = self.guests.get_mut(&vm) {
                        (guest.state, guest.migration) = (VmState::Running, None);
                    }
                    self.over(id, Outcome::Moved, None);
                    self.tell(&from, id, PeerWord::Taken);
                }
                _ => self.tell(&from, id, PeerWord::Over),
            },
            PeerWord::Taken => {
                if let Some(vm) = self.under_way(id, Role::Source).map(|of| of.vm.clone()) {
                    self.guests.remove(&vm);
                    self.over(id, Outcome::Moved, None);
                }
            }
            PeerWord::Over => {
                if self.under_way(id, Role::Source).is_some() {
                    self.keep(id, FailureReason::ContactLost);
                } else if let Some(vm) = self.under_way(id, Role::Target).map(|of| of.vm.clone()) {
                    self.guests.remove(&vm);
                    self.over(id, Outcome::CalledOff, Some(FailureReason::ContactLost));
                }
            }
        }
    }

    /// Calls a migration off that this host is the source of, and tells the target. Returns whether there is one.
    fn call_off(&mut self, id: MigrationId, why: FailureReason) -> bool {
        let Some(to) = self.under_way(id, Role::Source).map(|of| of.target.clone()) else { return false };
        self.keep(id, why);
        self.tell(&to, id, PeerWord::Over);
        true
    }

    /// Ends a migration whose guest stays.
    fn keep(&mut self, id: MigrationId, why: FailureReason) {
        self.guests.values_mut().filter(|guest| guest.migration == Some(id)).for_each(|guest| guest.migration = None);
        self.over(id, Outcome::CalledOff, Some(why));
    }

    fn under_way(&self, id: MigrationId, role: Role) -> Option<&Migration> {
        self.migrations.get(&id).filter(|of| of.outcome.is_none() && of.role == role)
    }

    fn over(&mut self, id: MigrationId, outcome: Outcome, why: Option<FailureReason>) {
        let Some(migration) = self.migrations.get_mut(&id) else { return };
        (migration.stage, migration.outcome, migration.why) = (None, Some(outcome), why);
        migration.downtime_ms = (outcome == Outcome::Moved).then_some(40);
        let over = self.migrations.values().filter(|of| of.outcome.is_some());
        if over.clone().count() > OVER_KEPT
            && let Some(oldest) = over.min_by_key(|of| self.begun_ms.get(&of.id)).map(|of| of.id)
        {
            self.migrations.remove(&oldest);
            self.begun_ms.remove(&oldest);
        }
    }

    fn tell(&mut self, to: &str, migration: MigrationId, word: PeerWord) {
        self.wishes.push(Wish::Tell(Peer { to: to.to_owned(), from: self.name.clone(), migration, word }));
    }

    // ---- faults ----

    /// Suffers a fault. The host's connection is for the caller to break.
    pub(crate) fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::Restart => self.instance = self.dice.any(),
            Fault::Cut => {}
            Fault::Off => {
                self.is_on = false;
                let flights: Vec<Migration> =
                    self.migrations.values().filter(|of| of.outcome.is_none()).cloned().collect();
                for of in flights {
                    let (other, outcome) = match of.role {
                        Role::Source => (of.target, Outcome::Ended),
                        Role::Target => (of.source, Outcome::CalledOff),
                    };
                    self.tell(&other, of.id, PeerWord::Over);
                    self.over(of.id, outcome, Some(FailureReason::ContactLost));
                }
                self.guests.retain(|_, guest| guest.state != VmState::Incoming);
                for guest in self.guests.values_mut() {
                    (guest.state, guest.migration) = (VmState::Stopped, None);
                }
            }
        }
    }

    /// Boots a host that was off.
    pub(crate) fn boot(&mut self) {
        self.is_on = true;
        self.boot += 1;
        self.instance = self.dice.any();
    }
}

fn refusal(message: &str) -> Refusal {
    Refusal { message: message.to_owned(), cure: String::new() }
}

fn refused(message: &str) -> Reply {
    Reply::Error(refusal(message))
}

fn view(name: &str, guest: &Guest) -> VmView {
    let gib = guest.memory_bytes / GIB;
    let definition = format!(
        "name = \"{name}\"\nmemory = \"{gib} GiB\"\ncpus = {}\nmachine = \"pc-q35-10.0\"\n\n[[disk]]\n\
         path = \"/srv/images/{name}.qcow2\"\nformat = \"qcow2\"\ncache = \"none\"\n\n[[nic]]\nbridge = \"br0\"\n",
        guest.cpus
    );
    let is_on = guest.state == VmState::Running;
    VmView {
        memory_bytes: guest.memory_bytes,
        cpus: guest.cpus,
        pid: is_on.then_some(4000 + number_of(name)),
        qemu: is_on.then(|| "10.0.2".to_owned()),
        machine: Some("pc-q35-10.0".into()),
        qmp: is_on.then(|| format!("/run/skein/vms/{name}/qmp").into()),
        console: is_on.then(|| format!("/run/skein/vms/{name}/console").into()),
        migration: guest.migration,
        definition: Some(definition),
        note: guest.note.clone(),
        ..VmView::new(name, guest.state)
    }
}

#[cfg(test)]
mod tests {
    use skein_api::MigrateOptions;

    use super::*;

    fn migrate(host: &mut Host, vm: &str, to: &str, id: u64) -> Obeyed {
        let options = MigrateOptions::default();
        let request = Request::Migrate { vm: vm.into(), to: to.into(), options, detach: true };
        host.obey(10, Some(format!("op.{vm}.1")), request, MigrationId(id))
    }

    fn told(host: &mut Host) -> Vec<Peer> {
        let wishes = host.wishes().into_iter();
        wishes.filter_map(|wish| if let Wish::Tell(peer) = wish { Some(peer) } else { None }).collect()
    }

    fn exchange(one: &mut Host, two: &mut Host) {
        for _ in 0..4 {
            told(one).into_iter().for_each(|peer| two.hear(20, peer));
            told(two).into_iter().for_each(|peer| one.hear(20, peer));
        }
    }

    fn runs(host: &Host, vm: &str) -> bool {
        host.known(true).vms.get(vm).is_some_and(|of| of.state == VmState::Running)
    }

    #[test]
    fn a_guest_moves_and_runs_once() {
        let (mut one, mut two) = (Host::new(1, 2, 1_000_000_000, 1), Host::new(2, 2, 1_000_000_000, 1));
        let Obeyed::Reply(Reply::Migration(begun)) = migrate(&mut one, "v00001", "h0002", 7) else { panic!() };
        // Asked for again it is the same, whatever id is fresh.
        let again = migrate(&mut one, "v00001", "h0002", 8);
        assert!(matches!(again, Obeyed::Reply(Reply::Migration(of)) if of.id == begun.id));
        exchange(&mut one, &mut two);
        assert!(runs(&one, "v00001") && !runs(&two, "v00001"));
        let mut id = 7;
        while two.known(true).vms.get("v00001").is_some_and(|of| of.is_moving) {
            one.copied(MigrationId(id));
            exchange(&mut one, &mut two);
            if one.migrations[&MigrationId(id)].outcome == Some(Outcome::CalledOff) {
                // One of fifty fails by itself.
                id += 1;
                one.asked.clear();
                migrate(&mut one, "v00001", "h0002", id);
                exchange(&mut one, &mut two);
            }
        }
        assert!(!one.known(true).vms.contains_key("v00001") && runs(&two, "v00001"));
        let outcome = |host: &Host| host.migrations[&MigrationId(id)].outcome;
        assert_eq!((outcome(&one), outcome(&two)), (Some(Outcome::Moved), Some(Outcome::Moved)));
    }

    #[test]
    fn a_host_that_goes_down_ends_its_migrations() {
        let (mut one, mut two) = (Host::new(1, 2, 1_000_000_000, 1), Host::new(2, 2, 1_000_000_000, 1));
        migrate(&mut one, "v00001", "h0002", 7);
        exchange(&mut one, &mut two);
        two.suffer(Fault::Off);
        exchange(&mut one, &mut two);
        assert!(runs(&one, "v00001") && !two.known(true).vms.contains_key("v00001"));
        two.boot();
        assert_eq!(two.boot_id(), "h0002-boot-2");
        migrate(&mut one, "v00002", "h0002", 9);
        exchange(&mut one, &mut two);
        one.suffer(Fault::Off);
        exchange(&mut one, &mut two);
        assert!(!runs(&one, "v00002") && !two.known(true).vms.contains_key("v00002"));
    }

    #[test]
    fn a_start_is_done_once_or_never() {
        let mut host = Host::new(1, 1, 1_000_000_000, 1);
        let start = || Request::VmStart { from: VmOrigin::Name("v00001".into()), options: Default::default() };
        let ask = |host: &mut Host, name: &str| host.obey(1, Some(name.into()), start(), MigrationId(1));
        host.suffer(Fault::Off);
        host.boot();
        assert!(matches!(ask(&mut host, "a"), Obeyed::Starts { .. }));
        assert!(matches!(ask(&mut host, "a"), Obeyed::Reply(Reply::Error(_))));
        host.suffer(Fault::Off);
        host.boot();
        assert!(matches!(host.started("v00001", "a"), Reply::NotStarted(_)));
        assert!(matches!(ask(&mut host, "a"), Obeyed::Reply(Reply::NotStarted(_))));
        assert!(matches!(ask(&mut host, "b"), Obeyed::Starts { .. }));
        assert!(matches!(host.started("v00001", "b"), Reply::Vm(_)));
        assert!(matches!(ask(&mut host, "b"), Obeyed::Reply(Reply::Vm(_))));
    }
}
