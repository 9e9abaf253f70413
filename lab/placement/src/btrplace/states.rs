//! The states of nodes and VMs: what they are now, and what constraints want them to be in the end.

use std::collections::BTreeMap;

use super::constraint::Rule;
use super::error::FileError;
use super::file::{Constraint, Mapping};

/// The state of a VM in the end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Running,
    Sleeping,
    Ready,
    Killed,
}

/// The state of a VM now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Now {
    Running(u32),
    Sleeping(u32),
    Ready,
}

/// The state of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeState {
    Online,
    Offline,
}

pub(super) struct Node {
    pub(super) now: NodeState,
    /// Whether constraints want the node online or offline in the end. `None`: no constraint does.
    goal: Option<NodeState>,
}

impl Node {
    /// Returns whether the node is online now.
    pub(super) fn is_online(&self) -> bool {
        self.now == NodeState::Online
    }

    /// Returns whether the node is online in the end. Unless a constraint wants something else, it stays as it is, as
    /// no one asked for it to be switched.
    pub(super) fn ends_online(&self) -> bool {
        self.goal.unwrap_or(self.now) == NodeState::Online
    }
}

pub(super) struct Vm {
    pub(super) now: Now,
    goal: Option<Goal>,
}

impl Vm {
    /// Returns the state of the VM in the end. Unless a constraint wants something else, it stays as it is.
    pub(super) fn goal(&self) -> Goal {
        self.goal.unwrap_or(match self.now {
            Now::Running(_) => Goal::Running,
            Now::Sleeping(_) => Goal::Sleeping,
            Now::Ready => Goal::Ready,
        })
    }
}

pub(super) struct States {
    pub(super) nodes: BTreeMap<u32, Node>,
    pub(super) vms: BTreeMap<u32, Vm>,
}

impl States {
    pub(super) fn new(mapping: &Mapping, constraints: &[Constraint]) -> Result<States, FileError> {
        let mut states = States { nodes: BTreeMap::new(), vms: BTreeMap::new() };
        for (id, on) in &mapping.online_nodes {
            states.add_node(*id, NodeState::Online)?;
            for vm in &on.running {
                states.add_vm(*vm, Now::Running(*id))?;
            }
            for vm in &on.sleeping {
                states.add_vm(*vm, Now::Sleeping(*id))?;
            }
        }
        for id in &mapping.offline_nodes {
            states.add_node(*id, NodeState::Offline)?;
        }
        for vm in &mapping.ready_vms {
            states.add_vm(*vm, Now::Ready)?;
        }
        for (at, of) in constraints.iter().enumerate() {
            states.demand(Rule { of, at })?;
        }
        states.check()?;
        Ok(states)
    }

    fn add_node(&mut self, id: u32, now: NodeState) -> Result<(), FileError> {
        match self.nodes.insert(id, Node { now, goal: None }) {
            None => Ok(()),
            Some(_) => Err(FileError::meaning("model.mapping", format!("node {id} is there twice"))),
        }
    }

    fn add_vm(&mut self, id: u32, now: Now) -> Result<(), FileError> {
        match self.vms.insert(id, Vm { now, goal: None }) {
            None => Ok(()),
            Some(_) => Err(FileError::meaning("model.mapping", format!("VM {id} is there twice"))),
        }
    }

    /// Reads what a constraint demands of a state, if anything.
    fn demand(&mut self, rule: Rule) -> Result<(), FileError> {
        match &*rule.of.id {
            "online" => self.demand_of_node(rule, NodeState::Online),
            "offline" => self.demand_of_node(rule, NodeState::Offline),
            "running" => self.demand_of_vm(rule, Goal::Running),
            "sleeping" => self.demand_of_vm(rule, Goal::Sleeping),
            "ready" => self.demand_of_vm(rule, Goal::Ready),
            "killed" => self.demand_of_vm(rule, Goal::Killed),
            _ => Ok(()),
        }
    }

    fn demand_of_node(&mut self, rule: Rule, goal: NodeState) -> Result<(), FileError> {
        let id = rule.node()?;
        let node = self.nodes.get_mut(&id).ok_or_else(|| rule.error(format!("there is no node {id}")))?;
        match node.goal.replace(goal) {
            Some(other) if other != goal => {
                Err(rule.error(format!("another constraint wants node {id} the other way")))
            }
            _ => Ok(()),
        }
    }

    fn demand_of_vm(&mut self, rule: Rule, goal: Goal) -> Result<(), FileError> {
        let id = rule.vm()?;
        let vm = self.vms.get_mut(&id).ok_or_else(|| rule.error(format!("there is no VM {id}")))?;
        match vm.goal.replace(goal) {
            Some(other) if other != goal => {
                Err(rule.error(format!("another constraint wants VM {id} to be otherwise")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that each VM can reach its state: BtrPlace has no action for other changes.
    fn check(&self) -> Result<(), FileError> {
        for (id, vm) in &self.vms {
            match (vm.now, vm.goal()) {
                (Now::Sleeping(node), Goal::Sleeping) if !self.nodes[&node].ends_online() => {
                    let what = format!("node {node} has to be offline, but VM {id} sleeps there");
                    return Err(FileError::meaning("constraints", what));
                }
                (Now::Sleeping(_), Goal::Ready) | (Now::Ready, Goal::Sleeping | Goal::Killed) => {
                    let what = format!("VM {id} cannot become what it has to without running first");
                    return Err(FileError::meaning("constraints", what));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
