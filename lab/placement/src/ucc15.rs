//! The plans of the experiments of Kherbache et al., "Scheduling live-migrations for fast, adaptable and
//! energy-efficient relocation operations" (UCC 2015), as BtrPlace writes them: JSON with where everything was, and
//! what was done when.
//!
//! The files leave some values open, which are set here. A link of B Mbit/s carries B / 9 MB of memory per second
//! (which the authors measured and plan with). Guests may stand still for 0.3 s (QEMU's default). There is no limit but
//! the links. Without a network view all nodes are linked to one switch that never blocks, each with as much as the
//! actions ever use there at once. What a power budget allows is not in the files (their energy view has no content).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use skein_placement::problem::{Guest, Host, HostId, HostMoves, NOWHERE, Problem, Resource, Weights};
use skein_placement::schedule::{
    Action, ConcurrencyLimits, Job, Network, Plan, Port, Power, Step, Switch, Traffic, Waits, waits,
};

/// The bytes per second of a Mbit/s: nine bits on the wire for each byte.
const MEGABIT: f64 = 1e6 / 9.0;
/// The bytes of what the files call MB.
const MEGABYTE: f64 = 1e6;
/// QEMU's default of `downtime-limit`, in seconds.
const DOWNTIME: f64 = 0.3;

/// Why a file is not of the format.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {what}")]
pub struct FileError {
    /// Line and column, or the path to what is wrong.
    pub place: String,
    /// What is wrong there.
    pub what: String,
}

impl FileError {
    fn new(place: impl Into<String>, what: impl Into<String>) -> FileError {
        FileError { place: place.into(), what: what.into() }
    }
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The job of the file's plan.
    pub job: Job,
    /// The file's plan. Each step waits for all steps on the same nodes that ended before.
    pub plan: Plan,
    /// The file's number of each host.
    nodes: Vec<u32>,
    /// The file's number of each guest.
    vms: Vec<u32>,
    origin: Value,
}

#[derive(Deserialize)]
struct File {
    origin: Origin,
    actions: Vec<FileAction>,
}

#[derive(Deserialize)]
struct Origin {
    mapping: Mapping,
    attributes: Attributes,
    views: Vec<View>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    #[serde(rename = "readyVMs")]
    ready_vms: Vec<u32>,
    online_nodes: BTreeMap<u32, OnlineNode>,
    offline_nodes: Vec<u32>,
}

#[derive(Deserialize)]
struct OnlineNode {
    #[serde(rename = "runningVMs")]
    running: Vec<u32>,
    #[serde(rename = "sleepingVMs")]
    sleeping: Vec<u32>,
}

#[derive(Deserialize)]
struct Attributes {
    nodes: BTreeMap<u32, NodeAttributes>,
    vms: BTreeMap<u32, VmAttributes>,
}

#[derive(Deserialize)]
struct NodeAttributes {
    boot: Option<f64>,
    shutdown: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VmAttributes {
    mem_used: f64,
    dirty_rate: f64,
    max_dirty_size: f64,
    max_dirty_duration: f64,
}

#[derive(Deserialize)]
#[serde(tag = "id")]
enum View {
    #[serde(rename = "shareableResource")]
    Resource(ResourceView),
    #[serde(rename = "net")]
    Net(NetView),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceView {
    // The keys are text: within an internally tagged enum, serde reads no numbers from keys.
    nodes: BTreeMap<String, i64>,
    vms: BTreeMap<String, i64>,
    def_capacity: i64,
    def_consumption: i64,
}

#[derive(Deserialize)]
struct NetView {
    switches: Vec<NetSwitch>,
    links: Vec<NetLink>,
}

#[derive(Deserialize)]
struct NetSwitch {
    id: u32,
    capacity: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NetLink {
    capacity: f64,
    switch: u32,
    physical_element: Element,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Element {
    Node { id: u32 },
    Switch { id: u32 },
}

#[derive(Deserialize)]
#[serde(tag = "id")]
enum FileAction {
    #[serde(rename = "migrateVM")]
    Migrate { vm: u32, from: u32, to: u32, start: f64, end: f64, bw: f64 },
    #[serde(rename = "bootNode")]
    Boot { node: u32, start: f64, end: f64 },
    #[serde(rename = "shutdownNode")]
    Shutdown { node: u32, start: f64, end: f64 },
}

/// The numbers that a file uses as names, mapped to indices from 0 on.
struct Names(BTreeMap<u32, u32>);

impl Names {
    fn new(all: impl IntoIterator<Item = u32>) -> Names {
        let all: BTreeSet<u32> = all.into_iter().collect();
        Names(all.into_iter().zip(0..).collect())
    }

    fn find(&self, name: u32, what: &str, place: impl FnOnce() -> String) -> Result<u32, FileError> {
        let found = self.0.get(&name).copied();
        found.ok_or_else(|| FileError::new(place(), format!("there is no {what} {name} in origin.mapping")))
    }
}

/// Reads a file.
///
/// # Errors
///
/// [`FileError`] if the text is not of the format.
pub fn read(text: &str) -> Result<Case, FileError> {
    let broken =
        |e: serde_json::Error| FileError::new(format!("line {} column {}", e.line(), e.column()), e.to_string());
    let file: File = serde_json::from_str(text).map_err(broken)?;
    let mut whole: Value = serde_json::from_str(text).map_err(broken)?;
    let mapping = &file.origin.mapping;
    let nodes = Names::new(mapping.online_nodes.keys().chain(&mapping.offline_nodes).copied());
    let running = mapping.online_nodes.values().flat_map(|node| &node.running);
    let vms = Names::new(running.chain(&mapping.ready_vms).copied());
    let steps = steps(&file, &nodes, &vms)?;
    let job = job(&file, &nodes, &vms, &steps)?;
    job.check().map_err(|flaw| match flaw {
        skein_placement::schedule::JobFlaw::Problem(flaw) => FileError::new("origin", flaw.to_string()),
        flaw => FileError::new("origin and actions", flaw.to_string()),
    })?;
    let mut plan = Plan { steps, ..Plan::default() };
    let after = waits(&job, &plan.steps, Waits::Hosts);
    plan.steps.iter_mut().zip(after).for_each(|(step, waits)| step.waits = waits);
    let numbers = |names: Names| names.0.into_keys().collect();
    Ok(Case { job, plan, nodes: numbers(nodes), vms: numbers(vms), origin: whole["origin"].take() })
}

impl Case {
    /// Returns a plan for this case as a file. Times are whole seconds there, so each is rounded up.
    pub fn write(&self, plan: &Plan) -> String {
        let node = |host: HostId| self.nodes[host as usize];
        let actions = plan.steps.iter().map(|step| {
            let (start, end) = (step.start.ceil() as u64, step.end.ceil() as u64);
            let hooks = json!({ "pre": [], "post": [] });
            match step.action {
                Action::Migrate { guest, from, to } => json!({
                    "id": "migrateVM", "vm": self.vms[guest as usize], "from": node(from), "to": node(to),
                    "start": start, "end": end, "bw": (step.rate / MEGABIT).round() as u64, "hooks": hooks,
                }),
                Action::Boot { host } => {
                    json!({ "id": "bootNode", "node": node(host), "start": start, "end": end, "hooks": hooks })
                }
                Action::Shutdown { host } => {
                    json!({ "id": "shutdownNode", "node": node(host), "start": start, "end": end, "hooks": hooks })
                }
                // No file has guests that start or stop, so no plan for a file has such steps.
                Action::Start { .. } | Action::Stop { .. } => Value::Null,
            }
        });
        json!({ "origin": self.origin, "actions": actions.collect::<Vec<Value>>() }).to_string()
    }
}

/// Returns the actions as steps, sorted by their start.
fn steps(file: &File, nodes: &Names, vms: &Names) -> Result<Vec<Step>, FileError> {
    let mut steps = Vec::new();
    for (n, action) in file.actions.iter().enumerate() {
        let find = |name: u32, field: &str| nodes.find(name, "node", || format!("actions[{n}].{field}"));
        let (action, start, end, bw) = match *action {
            FileAction::Migrate { vm, from, to, start, end, bw } => {
                let guest = vms.find(vm, "VM", || format!("actions[{n}].vm"))?;
                let (from, to) = (find(from, "from")?, find(to, "to")?);
                if from == to {
                    return Err(FileError::new(format!("actions[{n}].to"), "the VM is there already"));
                }
                (Action::Migrate { guest, from, to }, start, end, bw)
            }
            FileAction::Boot { node, start, end } => (Action::Boot { host: find(node, "node")? }, start, end, 0.0),
            FileAction::Shutdown { node, start, end } => {
                (Action::Shutdown { host: find(node, "node")? }, start, end, 0.0)
            }
        };
        let place = |field: &str| format!("actions[{n}].{field}");
        if !(0.0..=1e9).contains(&start) || !(start..=1e9).contains(&end) {
            return Err(FileError::new(
                place("end"),
                "times have to be from 0 to 10^9 s, the end not before the start",
            ));
        }
        if !(0.0..=1e9).contains(&bw) {
            return Err(FileError::new(place("bw"), "the bandwidth has to be from 0 to 10^9 Mbit/s"));
        }
        // BtrPlace without a network writes 0: only the links limit these migrations.
        let rate = match action {
            Action::Migrate { .. } if bw == 0.0 => f64::INFINITY,
            _ => bw * MEGABIT,
        };
        steps.push(Step { action, start, end, rate, waits: Vec::new(), why: None, under_way: false });
    }
    steps.sort_by(|a, b| a.start.total_cmp(&b.start));
    Ok(steps)
}

fn job(file: &File, nodes: &Names, vms: &Names, steps: &[Step]) -> Result<Job, FileError> {
    let origin = &file.origin;
    let (initial, goal) = ends(origin, nodes, vms, steps)?;
    let resources: Vec<&ResourceView> = origin.views.iter().filter_map(View::resource).collect();
    let hosts = nodes.0.keys().map(|node| {
        let capacity = |view: &&ResourceView| view.nodes.get(&node.to_string()).copied().unwrap_or(view.def_capacity);
        let capacity: Vec<i64> = resources.iter().map(capacity).collect();
        Host { areas: Vec::new(), safe: capacity.clone(), capacity }
    });
    let guests = vms.0.keys().map(|vm| {
        let demand = |view: &&ResourceView| view.vms.get(&vm.to_string()).copied().unwrap_or(view.def_consumption);
        let demand = resources.iter().map(demand).collect();
        Guest { demand, groups: Vec::new(), move_cost: 0, owners: None, preference: None }
    });
    let problem = Problem {
        resources: vec![Resource { transient: false, load_weight: 0 }; resources.len()],
        levels: Vec::new(),
        hosts: hosts.collect(),
        groups: Vec::new(),
        guests: guests.collect(),
        balances: Vec::new(),
        weights: Weights::default(),
        host_moves: HostMoves::Uniform(0),
        owners: Vec::new(),
        preferences: Vec::new(),
        initial,
    };
    let traffic = vms.0.keys().zip(problem.initial.iter().zip(&goal)).map(|(vm, (from, to))| match from == to {
        true => Ok(Traffic::default()),
        false => traffic(origin, *vm),
    });
    Ok(Job {
        traffic: traffic.collect::<Result<_, _>>()?,
        start_seconds: vec![0.0; vms.0.len()],
        stop_seconds: vec![0.0; vms.0.len()],
        network: match origin.views.iter().find_map(View::net) {
            Some(net) => network(net, nodes)?,
            None => observed(nodes.0.len(), steps),
        },
        limits: vec![ConcurrencyLimits::NONE; nodes.0.len()],
        power: power(origin, nodes, steps)?,
        running: Vec::new(),
        problem,
        goal,
    })
}

impl View {
    fn resource(&self) -> Option<&ResourceView> {
        if let View::Resource(view) = self { Some(view) } else { None }
    }

    fn net(&self) -> Option<&NetView> {
        if let View::Net(view) = self { Some(view) } else { None }
    }
}

fn traffic(origin: &Origin, vm: u32) -> Result<Traffic, FileError> {
    let place = || format!("origin.attributes.vms.{vm}");
    let of = origin.attributes.vms.get(&vm).ok_or_else(|| FileError::new(place(), "the VM moves, and has none"))?;
    Ok(Traffic {
        memory_bytes: of.mem_used * MEGABYTE,
        hot_bytes: of.max_dirty_size * MEGABYTE,
        hot_seconds: of.max_dirty_duration,
        dirty_rate: of.dirty_rate * MEGABYTE,
        downtime_seconds: DOWNTIME,
    })
}

/// Returns where all VMs are, and where the actions take them.
fn ends(origin: &Origin, nodes: &Names, vms: &Names, steps: &[Step]) -> Result<(Vec<HostId>, Vec<HostId>), FileError> {
    let mut at = vec![NOWHERE; vms.0.len()];
    for (name, node) in &origin.mapping.online_nodes {
        let place = || format!("origin.mapping.onlineNodes.{name}");
        if let Some(vm) = node.sleeping.first() {
            return Err(FileError::new(place(), format!("VM {vm} sleeps there, which is not supported")));
        }
        for vm in &node.running {
            let at = &mut at[vms.find(*vm, "VM", place)? as usize];
            if *at != NOWHERE {
                return Err(FileError::new(place(), format!("VM {vm} runs on another node, too")));
            }
            *at = nodes.find(*name, "node", place)?;
        }
    }
    if let Some(node) = origin.mapping.offline_nodes.iter().find(|n| origin.mapping.online_nodes.contains_key(n)) {
        return Err(FileError::new("origin.mapping.offlineNodes", format!("node {node} is online, too")));
    }
    let initial = at.clone();
    for step in steps {
        if let Action::Migrate { guest, from, to } = step.action {
            if at[guest as usize] != from {
                let what = format!("the action at {} s that would {} finds it elsewhere", step.start, step.action);
                return Err(FileError::new("actions", what));
            }
            at[guest as usize] = to;
        }
    }
    Ok((initial, at))
}

fn power(origin: &Origin, nodes: &Names, steps: &[Step]) -> Result<Vec<Power>, FileError> {
    let mut power: Vec<Power> = Vec::new();
    for node in nodes.0.keys() {
        let is_on = origin.mapping.online_nodes.contains_key(node);
        power.push(Power { on: is_on, on_at_end: is_on, ..Power::ALWAYS });
    }
    for step in steps {
        let (Action::Boot { host } | Action::Shutdown { host }) = step.action else { continue };
        let on = matches!(step.action, Action::Boot { .. });
        let (power, node) = (&mut power[host as usize], nodes.0.keys().nth(host as usize));
        if power.on == on || power.on_at_end == on {
            let what =
                format!("the action at {} s that would {} finds it so, or does so twice", step.start, step.action);
            return Err(FileError::new("actions", what));
        }
        let of = node.and_then(|node| origin.attributes.nodes.get(node));
        let takes = step.end - step.start;
        power.on_at_end = on;
        match on {
            true => power.boot_seconds = of.and_then(|of| of.boot).unwrap_or(takes),
            false => power.shutdown_seconds = of.and_then(|of| of.shutdown).unwrap_or(takes),
        }
    }
    Ok(power)
}

/// Makes a network of one switch that never blocks, and a port for each node with the most that the actions use there,
/// at once or by one action.
fn observed(hosts: usize, steps: &[Step]) -> Network {
    let mut most = vec![0f64; hosts];
    for step in steps.iter().filter(|step| step.rate.is_finite()) {
        // What is used grows only when something starts.
        let at_once = |pick: fn(Action) -> HostId, host: HostId| -> f64 {
            let others = steps.iter().filter(|of| of.start <= step.start && step.start < of.end);
            others.filter(|of| pick(of.action) == host && of.rate.is_finite()).map(|of| of.rate).sum()
        };
        let (from, to) = step.action.ends();
        for host in [from, to].into_iter().filter(|host| *host != NOWHERE) {
            let used = at_once(|action| action.ends().0, host).max(at_once(|action| action.ends().1, host));
            let most = &mut most[host as usize];
            *most = most.max(used).max(step.rate);
        }
    }
    let port = |most: f64| Port { outward: most, inward: most, switch: None };
    Network { ports: most.into_iter().map(port).collect(), switches: Vec::new() }
}

/// Makes a tree of the network view. Its root is the view's last switch, which is the one in the middle in all files.
fn network(net: &NetView, nodes: &Names) -> Result<Network, FileError> {
    let names = Names::new(net.switches.iter().map(|switch| switch.id));
    let place = |n: usize| format!("origin.views.net.links[{n}]");
    let mut ports = vec![None; nodes.0.len()];
    let mut cables: Vec<Vec<(u32, f64)>> = vec![Vec::new(); names.0.len()];
    for (n, link) in net.links.iter().enumerate() {
        let switch = |id: u32| {
            names.0.get(&id).copied().ok_or_else(|| FileError::new(place(n), format!("there is no switch {id}")))
        };
        let (near, rate) = (switch(link.switch)?, link.capacity * MEGABIT);
        if !(0.0..=1e18).contains(&rate) {
            return Err(FileError::new(place(n), "its capacity has to be 0 or more Mbit/s"));
        }
        match link.physical_element {
            Element::Node { id } => {
                let host = nodes.find(id, "node", || place(n))? as usize;
                if ports[host].replace((near, rate)).is_some() {
                    return Err(FileError::new(
                        place(n),
                        format!("node {id} has another link, which is not supported"),
                    ));
                }
            }
            Element::Switch { id } => {
                let far = switch(id)?;
                cables[near as usize].push((far, rate));
                cables[far as usize].push((near, rate));
            }
        }
    }
    // Parents get lower indices than their children.
    let mut number: Vec<Option<usize>> = vec![None; names.0.len()];
    let mut switches: Vec<Switch> = Vec::new();
    for root in (0..names.0.len()).rev() {
        let mut next = vec![(root as u32, None, 0.0)];
        while let Some((switch, parent, rate)) = next.pop() {
            if let Some(seen) = number[switch as usize] {
                // A root that was reached from an earlier root is in that tree.
                if parent.is_none() && switches[seen].parent.is_some() {
                    continue;
                }
                return Err(FileError::new(
                    "origin.views.net.links",
                    "switches are linked in a ring: only trees are supported",
                ));
            }
            let own = switches.len();
            number[switch as usize] = Some(own);
            let rate = parent.map(|_| rate);
            switches.push(Switch { parent, upward: rate, downward: rate, through: None });
            let mut others = cables[switch as usize].clone();
            if let Some(up) = parent
                && let Some(back) = others.iter().position(|(far, _)| number[*far as usize] == Some(up))
            {
                others.remove(back);
            }
            next.extend(others.into_iter().map(|(far, rate)| (far, Some(own), rate)));
        }
    }
    for switch in net.switches.iter().filter(|switch| switch.capacity >= 0.0) {
        let own = number[names.0[&switch.id] as usize].expect("each is in a tree");
        switches[own].through = Some(switch.capacity * MEGABIT);
    }
    // A node without a link sends and receives nothing.
    let ports = ports.into_iter().map(|port: Option<(u32, f64)>| match port {
        Some((switch, rate)) => Port { outward: rate, inward: rate, switch: number[switch as usize] },
        None => Port { outward: 0.0, inward: 0.0, switch: None },
    });
    Ok(Network { ports: ports.collect(), switches })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use skein_placement::schedule::plan;
    use skein_placement::schedule::simulate::{Start, simulate};

    /// Two nodes in each of two racks, one of them off. VM 7 goes to the other rack.
    const TEXT: &str = r#"{
        "origin": {
            "mapping": {"readyVMs": [], "onlineNodes": {"1": {"sleepingVMs": [], "runningVMs": [7]},
                "4": {"sleepingVMs": [], "runningVMs": [3]}}, "offlineNodes": [9]},
            "attributes": {"nodes": {"9": {"boot": 120}, "1": {"shutdown": 17}}, "vms": {
                "7": {"maxDirtySize": 96, "maxDirtyDuration": 2, "memUsed": 2000, "dirtyRate": 2.0}}},
            "views": [
                {"id": "shareableResource", "rcId": "mem", "defCapacity": 8, "defConsumption": 1, "nodes": {"9": 16},
                    "vms": {"7": 2}},
                {"id": "EnergyView"},
                {"id": "net", "routing": {"type": "default"}, "switches": [{"id": 0, "capacity": -1},
                    {"id": 5, "capacity": 800}], "links": [
                    {"id": 0, "capacity": 1000, "switch": 0, "physicalElement": {"type": "node", "id": 1}},
                    {"id": 1, "capacity": 1000, "switch": 5, "physicalElement": {"type": "node", "id": 9}},
                    {"id": 2, "capacity": 900, "switch": 5, "physicalElement": {"type": "switch", "id": 0}}]}]
        },
        "actions": [
            {"id": "shutdownNode", "node": 1, "start": 160, "end": 177},
            {"id": "migrateVM", "vm": 7, "from": 1, "to": 9, "start": 120, "end": 160, "bw": 800},
            {"id": "bootNode", "node": 9, "start": 0, "end": 120}]
    }"#;

    #[test]
    fn a_file_is_read() {
        let Case { job, plan, .. } = read(TEXT).unwrap();
        assert_eq!((&job.problem.initial[..], &job.goal[..]), (&[1, 0][..], &[1, 2][..]));
        assert_eq!(job.problem.hosts[2].capacity, [16]);
        assert_eq!(job.problem.guests[1].demand, [2]);
        assert_eq!(job.traffic[1].memory_bytes, 2e9);
        let capacities: Vec<_> = job.network.path(0, 2).iter().map(|c| job.network.capacity(*c).unwrap()).collect();
        assert_eq!(capacities, [1000.0, 900.0, 800.0, 1000.0].map(|rate| rate * MEGABIT));
        assert_eq!(plan.steps.iter().map(|step| step.waits.clone()).collect::<Vec<_>>(), [vec![], vec![0], vec![1]]);
        assert_eq!(simulate(&job, &plan, Start::Free).violations, []);
    }

    #[test]
    fn a_plan_is_written_as_a_file() {
        let case = read(TEXT).unwrap();
        let ours = plan(&case.job, 1, 10).unwrap();
        let again = read(&case.write(&ours)).unwrap();
        assert_eq!(again.job, case.job);
        let actions = |plan: &Plan| plan.steps.iter().map(|step| step.action).collect::<Vec<_>>();
        assert_eq!(actions(&again.plan), actions(&ours));
    }

    #[test]
    fn without_a_view_links_are_what_is_used_at_once() {
        let step = |to, start, end, megabits: f64| Step {
            action: Action::Migrate { guest: 0, from: 0, to },
            start,
            end,
            rate: megabits * MEGABIT,
            waits: vec![],
            why: None,
            under_way: false,
        };
        let steps = [step(1, 0.0, 9.0, 500.0), step(2, 5.0, 9.0, 500.0), step(2, 9.0, 20.0, 600.0)];
        let ports: Vec<f64> = observed(3, &steps).ports.iter().map(|port| (port.inward / MEGABIT).round()).collect();
        assert_eq!(ports, [1000.0, 500.0, 600.0]);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let told = |from: &str, to: &str| read(&TEXT.replacen(from, to, 1)).expect_err("it is spoilt").to_string();
        assert!(told("\"actions\": [", "\"actions\": [}").starts_with("line 17 column 21: "));
        assert!(told("migrateVM", "resumeVM").contains("unknown variant `resumeVM`"));
        assert_eq!(told("\"vm\": 7", "\"vm\": 8"), "actions[1].vm: there is no VM 8 in origin.mapping");
        assert_eq!(
            told("\"end\": 160", "\"end\": 16"),
            "actions[1].end: times have to be from 0 to 10^9 s, the end not before the start"
        );
        assert_eq!(told("\"7\": {\"max", "\"6\": {\"max"), "origin.attributes.vms.7: the VM moves, and has none");
        assert_eq!(
            told("\"id\": 1}}", "\"id\": 2}}"),
            "origin.views.net.links[0]: there is no node 2 in origin.mapping"
        );
        assert_eq!(
            told("\"id\": 0}}]", "\"id\": 5}}]"),
            "origin.views.net.links: switches are linked in a ring: only trees are supported"
        );
        assert!(told("\"from\": 1", "\"from\": 4").starts_with("actions: the action at 120 s that would migrate"));
    }

    proptest! {
        /// Checks that no change of a file makes it panic, and that whatever is read can be simulated.
        #[test]
        fn a_spoilt_file_is_told_or_read(
            at in 0usize..TEXT.len(),
            with in "[0-9eE.,:\\[\\]{}\"-]{0,3}",
            cut in 0usize..4,
        ) {
            let mut text = TEXT.to_string();
            text.replace_range(at..(at + cut).min(TEXT.len()), &with);
            if let Ok(case) = read(&text) {
                simulate(&case.job, &case.plan, Start::Free);
                simulate(&case.job, &plan(&case.job, 1, 1).unwrap(), Start::Free);
            }
        }
    }
}
