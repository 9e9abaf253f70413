//! A host, and a controller's process: what they are.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::{
    FailureReason, HostFacts, Migration, MigrationId, MigrationSlots, Refusal, Reply, Term, UpdateHow, VmLoad, VmState,
    VmView,
};
use skein_cluster::{Controller, Settings};
use skein_store::election::HeldLease;

use super::timer::Watchdog;

/// Milliseconds since the run began.
pub type Ms = u64;

/// The migrations at once that an agent allows, each way.
pub const SLOTS: u32 = 2;
/// Returns an agent's refusal.
pub fn refused(message: &str) -> Reply {
    Reply::Error(Refusal { message: message.to_owned(), cure: String::new() })
}

/// A guest.
#[derive(Clone, Debug, PartialEq)]
pub struct Guest {
    pub ram_mb: u64,
    pub runs: bool,
    pub migration: Option<u64>,
}

/// What an agent has written down of a start that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    Begun,
    Started,
    NotStarted,
}

/// A migration under way.
#[derive(Clone, Debug)]
pub struct Flight {
    /// The name of the request, with the operation in front.
    pub name: String,
    pub vm: String,
    pub from: usize,
    pub to: usize,
    pub called_off: Option<FailureReason>,
    /// It waits at its source, and the target has not heard of it.
    pub is_queued: bool,
}

/// What a person wants.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A start. `is_here`: the host has the VM.
    Start { is_here: bool },
    /// A migration with this id.
    Move { to: String, id: u64 },
}

/// A question about what a person wants, whose answer an agent waits for.
#[derive(Clone, Debug)]
pub struct Question {
    pub vm: String,
    pub wanted: Wanted,
    pub until: Ms,
    /// Whether an answer came that may pass.
    pub is_put_off: bool,
    /// Whether it is about to be done.
    pub is_allowed: bool,
}

/// What an agent has sent in a session.
#[derive(Debug, Default)]
pub struct Sent {
    pub sequence: u64,
    pub vms: BTreeMap<String, VmView>,
    pub migrations: BTreeMap<u64, Migration>,
    /// When reports were sent that were not acknowledged.
    pub times: BTreeMap<u64, Ms>,
    /// The term in which the controller leads, as it last said.
    pub led: Option<Term>,
}

/// A host.
#[derive(Debug)]
pub struct Agent {
    pub name: String,
    pub life: u64,
    /// Whether the host is on.
    pub is_on: bool,
    /// Since when the host is on.
    pub on_since: Ms,
    /// Whether the agent's process runs.
    pub is_up: bool,
    pub boot: u64,
    /// Until when the host takes no guests, as its agent has on its disk.
    pub closed_until: Ms,
    pub ram_mb: u64,
    pub guests: BTreeMap<String, Guest>,
    /// Guests on their way here: how much memory each takes.
    pub incoming: BTreeMap<String, u64>,
    /// VMs that are off and on their way here, with their reservations.
    pub reserved: BTreeMap<String, String>,
    /// What came of requests to give a VM up.
    pub left: BTreeMap<String, bool>,
    /// Guests that are being started, and how much memory each takes.
    pub starting: BTreeMap<String, u64>,
    /// What the agent asks controllers of what people want.
    pub questions: BTreeMap<u64, Question>,
    /// What the agent has on its disk: requests that it knows, migrations, the highest term.
    pub requests: BTreeMap<String, u64>,
    /// The names under which no migration is begun any more.
    pub withdrawn: BTreeSet<String>,
    /// What came of named starts.
    pub starts: BTreeMap<String, Start>,
    pub migrations: BTreeMap<u64, Migration>,
    pub highest: Term,
    /// The number of its certificate, which it shows on new connections.
    pub certificate: u64,
    /// How many certificates were signed for the host.
    pub signed: u64,
    /// Guests that the host cannot run.
    pub refuses: BTreeSet<String>,
    /// The last order to update the host, as its agent has on its disk: its id, how, the boot in which it came, and
    /// whether its command has succeeded, once it is over.
    pub update: Option<(String, UpdateHow, u64, Option<bool>)>,
    /// The session with each controller.
    pub sessions: BTreeMap<usize, u64>,
    pub sent: BTreeMap<u64, Sent>,
    /// In some runs.
    pub watchdog: Option<Watchdog>,
}

impl Agent {
    pub fn new(name: &str, ram_mb: u64) -> Agent {
        Agent {
            name: name.to_owned(),
            life: 1,
            is_on: true,
            on_since: 0,
            is_up: true,
            boot: 1,
            closed_until: 0,
            ram_mb,
            guests: BTreeMap::new(),
            incoming: BTreeMap::new(),
            reserved: BTreeMap::new(),
            left: BTreeMap::new(),
            starting: BTreeMap::new(),
            questions: BTreeMap::new(),
            requests: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            starts: BTreeMap::new(),
            migrations: BTreeMap::new(),
            highest: Term(0),
            certificate: 1,
            signed: 1,
            refuses: BTreeSet::new(),
            update: None,
            sessions: BTreeMap::new(),
            sent: BTreeMap::new(),
            watchdog: None,
        }
    }

    /// Returns whether a VM is here and off, and is not being started.
    pub fn is_off(&self, vm: &str) -> bool {
        let is_off = self.guests.get(vm).is_some_and(|guest| !guest.runs);
        is_off && !self.starting.contains_key(vm) && !self.is_asked(vm)
    }

    /// Returns whether a VM has a guest here, or one is on its way or being started.
    pub fn is_there(&self, vm: &str) -> bool {
        let runs = self.guests.get(vm).is_some_and(|guest| guest.runs);
        runs || self.starting.contains_key(vm) || self.incoming.contains_key(vm)
    }

    /// Returns the migrations that the agent has asked for, and that may begin yet.
    pub fn moves_asked(&self) -> Vec<MigrationId> {
        let asked = self.questions.values().filter_map(|question| match question.wanted {
            Wanted::Move { id, .. } => Some(MigrationId(id)),
            Wanted::Start { .. } => None,
        });
        asked.collect()
    }

    /// Returns whether somebody is about to start or move a VM by hand.
    pub fn is_asked(&self, vm: &str) -> bool {
        self.questions.values().any(|question| question.vm == vm)
    }

    /// Returns whether an update is under way that boots the host.
    pub fn may_boot(&self) -> bool {
        let boots = |how: UpdateHow| matches!(how, UpdateHow::UpdateReboot | UpdateHow::Reboot);
        let is_open = |(_, how, boot, result): &(String, UpdateHow, u64, Option<bool>)| {
            boots(*how) && *boot == self.boot && *result != Some(false)
        };
        self.update.as_ref().is_some_and(is_open)
    }

    pub fn is_closed(&self, now: Ms) -> bool {
        self.closed_until > now || self.may_boot()
    }

    pub fn ram_used_mb(&self) -> u64 {
        let own = self.guests.values().filter(|guest| guest.runs).map(|guest| guest.ram_mb);
        own.sum::<u64>() + self.incoming.values().chain(self.starting.values()).sum::<u64>()
    }

    pub fn facts(&self) -> HostFacts {
        let slots = MigrationSlots { limit: SLOTS, used: 0 };
        HostFacts {
            name: self.name.clone(),
            boot_id: Some(format!("boot{}", self.boot)),
            ram_bytes: self.ram_mb << 20,
            ram_available_bytes: (self.ram_mb - self.ram_used_mb().min(self.ram_mb)) << 20,
            kept_ram_bytes: 0,
            room: None,
            hugepages: Vec::new(),
            cpus: 16,
            cpu_vendor: "AuthenticAMD".into(),
            cpu_flags: BTreeSet::new(),
            kvm: Ok(()),
            qemu: Err("none".into()),
            bridges: BTreeSet::new(),
            taps_in_use: BTreeSet::new(),
            vms: Vec::new(),
            incoming: slots,
            outgoing: slots,
            journal: Ok(()),
            files: Vec::new(),
            digests: BTreeMap::new(),
            nics: Vec::new(),
            swtpm: None,
            closed: None,
        }
    }

    /// Returns what each guest uses: the same all the time, and more than there is if they meet.
    pub fn loads(&self) -> BTreeMap<String, VmLoad> {
        let own = self.guests.iter().filter(|(_, guest)| guest.runs);
        let load = |guest: &Guest| VmLoad { cpu_millicores: guest.ram_mb * 3, ..VmLoad::default() };
        own.map(|(name, guest)| (name.clone(), load(guest))).collect()
    }

    pub fn views(&self) -> BTreeMap<String, VmView> {
        let own = self.guests.iter().map(|(name, guest)| {
            let state = if guest.runs { VmState::Running } else { VmState::Stopped };
            (name.clone(), view(name, guest.ram_mb, state, guest.migration))
        });
        let comes =
            self.incoming.iter().map(|(name, ram_mb)| (name.clone(), view(name, *ram_mb, VmState::Incoming, None)));
        let starts =
            self.starting.iter().map(|(name, ram_mb)| (name.clone(), view(name, *ram_mb, VmState::Starting, None)));
        let reserved = self.reserved.iter().map(|(name, reservation)| {
            let view = view(name, 512, VmState::Stopped, None);
            (name.clone(), VmView { reserved: Some(reservation.clone()), ..view })
        });
        reserved.chain(comes).chain(own).chain(starts).collect()
    }
}

fn view(name: &str, ram_mb: u64, state: VmState, migration: Option<u64>) -> VmView {
    VmView {
        memory_bytes: ram_mb << 20,
        migration: migration.map(MigrationId),
        definition: Some(format!("name = '{name}'\nmemory = '{ram_mb} MiB'\n")),
        ..VmView::new(name, state)
    }
}

/// A fencing device.
#[derive(Debug, Default)]
pub struct Bmc {
    /// Until when it answers nobody.
    pub silent_until: Ms,
    /// Until when it says that the host is off, whatever the host is.
    pub says_off_until: Ms,
    /// Until when it says that the host is on, whatever the host is.
    pub says_on_until: Ms,
    /// Whether it was ever told to switch the host off.
    pub is_ordered: bool,
}

/// A controller's process.
pub struct Node {
    pub life: u64,
    pub is_alive: bool,
    /// Until when the process does nothing, as if stopped.
    pub paused_until: Ms,
    pub controller: Controller,
    pub lease: Option<HeldLease>,
    pub term: Option<skein_store::election::Term>,
    pub kept_ms: Ms,
    pub is_asking: bool,
    pub settings: Settings,
}

impl Node {
    pub fn new(settings: Settings) -> Node {
        Node {
            life: 0,
            is_alive: true,
            paused_until: 0,
            controller: Controller::new(settings.clone()),
            lease: None,
            term: None,
            kept_ms: 0,
            is_asking: false,
            settings,
        }
    }

    /// Returns the term in which the process believes that it leads.
    pub fn term(&self) -> Option<Term> {
        self.controller.term()
    }
}
