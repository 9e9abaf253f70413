//! The meaning of an instance: hosts and guests with their amounts, and what is done before and after guests move.

use std::collections::BTreeMap;

use super::action::{Action, What};
use super::error::FileError;
use super::file::{Seconds, View, parse_part};
use super::states::{Goal, Now, States};
use skein_placement::problem::{Group, Guest, GuestId, Host, HostId, HostMoves, NOWHERE, Problem, Resource, Weights};

/// The most resources. Each guest has an amount of each, so bounds on both keep a file from asking for much more memory
/// than its own size.
const RESOURCES_MAX: usize = 64;

/// The meaning of an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// The placement problem.
    pub problem: Problem,
    /// BtrPlace's number of each host.
    pub nodes: Vec<u32>,
    /// BtrPlace's number of each guest.
    pub vms: Vec<u32>,
    /// The name of each resource.
    pub resources: Vec<String>,
    /// How long it takes to bring each guest to a host, in seconds: to migrate it, or to boot or resume it if it is
    /// nowhere.
    pub seconds: Vec<u32>,
    /// For each group, whether its rule has to hold while guests move, too.
    pub continuous: Vec<bool>,
    /// The node where each guest sleeps that is to run.
    pub(super) sleeping: BTreeMap<GuestId, u32>,
    /// The amounts of resources that guests are to have, where they differ from what they have.
    pub(super) allocate: BTreeMap<(GuestId, usize), i64>,
    /// The actions before guests move. Their times count from the start.
    pub(super) before: Vec<Action>,
    /// The actions after all guests have moved. Their times count from then.
    pub(super) after: Vec<Action>,
}

impl Instance {
    /// Makes the hosts and guests, and where these are, without resources and rules.
    pub(super) fn new(states: &States) -> Instance {
        let nodes: Vec<u32> =
            states.nodes.iter().filter(|(_, node)| node.is_online() || node.ends_online()).map(|(id, _)| *id).collect();
        let vms: Vec<u32> = states.vms.iter().filter(|(_, vm)| vm.goal() == Goal::Running).map(|(id, _)| *id).collect();
        let hosts: BTreeMap<u32, HostId> = nodes.iter().copied().zip(0..).collect();
        let (mut initial, mut sleeping) = (Vec::with_capacity(vms.len()), BTreeMap::new());
        for (guest, vm) in (0..).zip(&vms) {
            initial.push(match states.vms[vm].now {
                Now::Running(node) => hosts[&node],
                Now::Sleeping(node) => {
                    sleeping.insert(guest, node);
                    NOWHERE
                }
                Now::Ready => NOWHERE,
            });
        }
        let host = Host { areas: Vec::new(), capacity: Vec::new(), safe: Vec::new() };
        let guest = Guest { demand: Vec::new(), groups: Vec::new(), move_cost: 1, owners: None, preference: None };
        let problem = Problem {
            resources: Vec::new(),
            levels: Vec::new(),
            hosts: vec![host; nodes.len()],
            groups: Vec::new(),
            guests: vec![guest; vms.len()],
            balances: Vec::new(),
            weights: Weights { guest_move: 1, ..Weights::default() },
            host_moves: HostMoves::Uniform(0),
            owners: Vec::new(),
            preferences: Vec::new(),
            initial,
        };
        Instance {
            problem,
            seconds: vec![0; vms.len()],
            nodes,
            vms,
            resources: Vec::new(),
            continuous: Vec::new(),
            sleeping,
            allocate: BTreeMap::new(),
            before: Vec::new(),
            after: Vec::new(),
        }
    }

    pub(super) fn read_views(&mut self, views: &[View], states: &States) -> Result<(), FileError> {
        for (at, view) in views.iter().enumerate() {
            let path = format!("model.views[{at}]");
            match &*view.id {
                "shareableResource" => self.read_resource(view, states, &path)?,
                // These views are names, and links between nodes. Neither says where a VM may run.
                "ns" | "net" => {}
                other => return Err(FileError::meaning(path, format!("views of the kind '{other}' are not known"))),
            }
        }
        Ok(())
    }

    fn read_resource(&mut self, view: &View, states: &States, path: &str) -> Result<(), FileError> {
        let missing = |what: &str| FileError::meaning(path, format!("`{what}` is missing"));
        let name = view.rc_id.as_ref().ok_or_else(|| missing("rcId"))?;
        if self.resources.contains(name) {
            return Err(FileError::meaning(path, format!("resource '{name}' is there twice")));
        }
        if self.resources.len() == RESOURCES_MAX {
            return Err(FileError::meaning(path, format!("there are more than {RESOURCES_MAX} resources")));
        }
        let amounts = |list: Option<_>, key: &str| -> Result<BTreeMap<u32, u32>, FileError> {
            parse_part(list.ok_or_else(|| missing(key))?, &format!("{path}.{key}"))
        };
        let capacities = amounts(view.nodes, "nodes")?;
        let demands = amounts(view.vms, "vms")?;
        if let Some(node) = capacities.keys().find(|node| !states.nodes.contains_key(node)) {
            return Err(FileError::meaning(format!("{path}.nodes"), format!("there is no node {node}")));
        }
        if let Some(vm) = demands.keys().find(|vm| !states.vms.contains_key(vm)) {
            return Err(FileError::meaning(format!("{path}.vms"), format!("there is no VM {vm}")));
        }
        let amount = |of: &BTreeMap<u32, u32>, id: &u32, default: Option<u32>, key: &str| {
            of.get(id).copied().or(default).map(i64::from).ok_or_else(|| missing(key))
        };
        for (node, host) in self.nodes.iter().zip(&mut self.problem.hosts) {
            let capacity = amount(&capacities, node, view.def_capacity, "defCapacity")?;
            host.capacity.push(capacity);
        }
        for (vm, guest) in self.vms.iter().zip(&mut self.problem.guests) {
            guest.demand.push(amount(&demands, vm, view.def_consumption, "defConsumption")?);
        }
        self.resources.push(name.clone());
        self.problem.resources.push(Resource { transient: false, load_weight: 0 });
        Ok(())
    }

    /// Reads what is done with nodes and with VMs that do not run in the end, and how long it takes to bring guests to
    /// hosts.
    pub(super) fn read_actions(
        &mut self,
        nodes: &BTreeMap<u32, Seconds>,
        vms: &BTreeMap<u32, Seconds>,
        states: &States,
    ) {
        let of = |all: &BTreeMap<u32, Seconds>, id: &u32| all.get(id).copied().unwrap_or_default();
        for (&node, state) in &states.nodes {
            let Seconds { boot, shutdown, .. } = of(nodes, &node);
            match (state.is_online(), state.ends_online()) {
                (false, true) => self.before.push(Action::new(What::BootNode { node }, 0, boot.into())),
                (true, false) => self.after.push(Action::new(What::ShutdownNode { node }, 0, shutdown.into())),
                _ => {}
            }
        }
        for (&vm, state) in &states.vms {
            let seconds = of(vms, &vm);
            let (what, end) = match (state.now, state.goal()) {
                (Now::Running(on), Goal::Ready) => (What::ShutdownVm { vm, on }, seconds.shutdown),
                (Now::Running(on) | Now::Sleeping(on), Goal::Killed) => (What::KillVm { vm, on }, seconds.kill),
                (Now::Running(on), Goal::Sleeping) => (What::SuspendVm { vm, from: on, to: on }, seconds.suspend),
                _ => continue,
            };
            self.before.push(Action::new(what, 0, end.into()));
        }
        for (seconds, vm) in self.seconds.iter_mut().zip(&self.vms) {
            let of = of(vms, vm);
            *seconds = match states.vms[vm].now {
                Now::Running(_) => of.migrate,
                Now::Sleeping(_) => of.resume,
                Now::Ready => of.boot,
            };
        }
    }

    /// Adds a rule about several guests.
    pub(super) fn add_group(&mut self, group: Group, members: &[GuestId], continuous: bool) {
        let id = self.problem.groups.len() as u32;
        members.iter().for_each(|guest| self.problem.guests[*guest as usize].groups.push(id));
        self.problem.groups.push(group);
        self.continuous.push(continuous);
    }
}
