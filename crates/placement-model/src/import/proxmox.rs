//! Imports from Proxmox VE: `pvesh get /cluster/resources --output-format json`; `/etc/pve/ha/rules.cfg` (from 9 on),
//! `groups.cfg` and `resources.cfg`, or JSON of `/cluster/ha/rules` and so on; and the tags by which ProxLB balances a
//! cluster.
//!
//! The meaning of rules is in pve-ha-manager's `PVE::HA::Rules::NodeAffinity` and `ResourceAffinity`, that of groups in
//! `PVE::HA::Groups`, and that of tags in ProxLB's `models/tags.py`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::sections::{self, Form, Section};
use super::{Draft, Guest, Host, ImportError, Imported, Kind, Rule, quoted};

/// The texts of the files that are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    /// The JSON of `/cluster/resources`.
    pub resources: &'a str,
    /// The text of `ha/rules.cfg`, or JSON of `/cluster/ha/rules`.
    pub ha_rules: Option<&'a str>,
    /// The text of `ha/groups.cfg`, or JSON of `/cluster/ha/groups`.
    pub ha_groups: Option<&'a str>,
    /// The text of `ha/resources.cfg`, which says which guest is in which group, or JSON of `/cluster/ha/resources`.
    pub ha_resources: Option<&'a str>,
}

/// An error, and the file that it is about.
pub type Wrong = (&'static str, ImportError);

/// One of the cluster's resources.
#[derive(Debug, Deserialize)]
struct Resource {
    #[serde(rename = "type")]
    kind: String,
    node: Option<String>,
    vmid: Option<u64>,
    name: Option<String>,
    status: Option<String>,
    maxcpu: Option<f64>,
    maxmem: Option<u64>,
    cpu: Option<f64>,
    template: Option<serde_json::Value>,
    tags: Option<String>,
    pool: Option<String>,
}

/// The resources, as `pvesh` prints them or as the API answers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Resources {
    Plain(Vec<Resource>),
    Answer { data: Vec<Resource> },
}

const MIB: u64 = 1 << 20;

/// Reads the files.
///
/// # Errors
///
/// The file and an [`ImportError`] if a text is not of its format, or the cluster cannot be placed.
pub fn read(files: Files) -> Result<Imported, Wrong> {
    let of_resources = |error| ("resources", error);
    let resources = match serde_json::from_str(files.resources) {
        Ok(Resources::Plain(all) | Resources::Answer { data: all }) => all,
        Err(error) => {
            let what = format!("it is not what `pvesh get /cluster/resources --output-format json` writes: {error}");
            return Err(of_resources(ImportError::Json(what)));
        }
    };
    let mut draft = Draft::default();
    let sids = cluster(&mut draft, &resources).map_err(of_resources)?;
    tags(&mut draft);
    if let Some(text) = files.ha_rules {
        let sections = sections::read(Form::Rules, text).map_err(|error| ("HA rules", error))?;
        sections.iter().for_each(|section| ha_rule(&mut draft, &sids, section));
    }
    let read = |form: Form, text: Option<&str>| text.map_or(Ok(Vec::new()), |text| sections::read(form, text));
    let groups = read(Form::Groups, files.ha_groups).map_err(|error| ("HA groups", error))?;
    let of = read(Form::Resources, files.ha_resources).map_err(|error| ("HA resources", error))?;
    ha_groups(&mut draft, &sids, files.ha_groups.and(Some(&groups)), &of);
    draft.finish().map_err(of_resources)
}

/// The names of guests by `vm:ID` and `ct:ID`. `None`: the guest is left out.
type Sids = BTreeMap<String, Option<String>>;

/// Reads hosts and guests.
fn cluster(draft: &mut Draft, resources: &[Resource]) -> Result<Sids, ImportError> {
    let mut left_out = LeftOut::default();
    let mut guests = Vec::new();
    for of in resources {
        match of.kind.as_str() {
            "node" => draft.hosts.push(host(of)?),
            "qemu" | "lxc" => guests.push(of),
            other => *left_out.others.entry(other).or_default() += 1,
        }
    }
    draft.hosts.sort_by(|a, b| a.name.cmp(&b.name));
    if draft.hosts.is_empty() {
        return Err(ImportError::Json("there is no resource of type 'node': take all types, not only guests".into()));
    }
    guests.sort_by_key(|of| of.vmid);
    let namesakes = namesakes(&guests)?;
    let mut sids = Sids::new();
    for of in guests {
        let sid = of.sid()?;
        let alias = of.name.clone().filter(|name| namesakes.contains_key(name.as_str()));
        let name = of.name.clone().filter(|name| alias.is_none() && !name.is_empty()).unwrap_or_else(|| sid.clone());
        if !of.runs() {
            left_out.stopped.push(name);
            sids.insert(sid, None);
            continue;
        }
        if of.kind == "lxc" {
            left_out.containers.push(name.clone());
        }
        left_out.pools.extend(of.pool.clone());
        draft.guests.push(guest(of, name.clone(), alias)?);
        sids.insert(sid, Some(name));
    }
    for (name, sids) in &namesakes {
        let many = sids.len();
        draft.word(format!("{many} guests are called '{name}': they have their IDs as names, {}", quoted(sids)));
    }
    left_out.report(draft);
    draft.word("of cores it is counted what guests use now (cpu x maxcpu), since none are reserved; of memory, maxmem");
    Ok(sids)
}

impl Resource {
    /// Returns the name by which HA rules call a guest.
    fn sid(&self) -> Result<String, ImportError> {
        let vmid = self.vmid.ok_or_else(|| lacks("vmid", "a guest"))?;
        Ok(format!("{}:{vmid}", if self.kind == "qemu" { "vm" } else { "ct" }))
    }

    /// Returns whether a guest runs. A template never does.
    fn runs(&self) -> bool {
        let is_template = self.template.as_ref().is_some_and(|of| !matches!(of.as_i64(), Some(0)) && of != false);
        !is_template && self.status.as_deref() == Some("running")
    }
}

fn lacks(what: &str, of: &str) -> ImportError {
    ImportError::Json(format!("{of} has no '{what}'"))
}

fn host(of: &Resource) -> Result<Host, ImportError> {
    let name = of.node.clone().ok_or_else(|| lacks("node", "a node"))?;
    let is_offline = of.status.as_deref() != Some("online");
    let (cores, memory) = (of.maxcpu.unwrap_or(0.0), of.maxmem.unwrap_or(0));
    if !is_offline && (cores <= 0.0 || memory == 0) {
        return Err(lacks("maxcpu or maxmem", &format!("node '{name}'")));
    }
    Ok(Host { name, cores, memory_mib: memory / MIB, is_offline, ..Host::default() })
}

fn guest(of: &Resource, name: String, alias: Option<String>) -> Result<Guest, ImportError> {
    let memory = of.maxmem.ok_or_else(|| lacks("maxmem", &format!("guest '{name}'")))?;
    let cores = of.cpu.unwrap_or(0.0).max(0.0) * of.maxcpu.unwrap_or(0.0).max(0.0);
    let all = of.tags.as_deref().unwrap_or("").split(|c: char| c == ';' || c == ',' || c.is_whitespace());
    let tags = all.filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
    let memory_mib = memory.div_ceil(MIB);
    Ok(Guest { name, alias, host: of.node.clone(), cores, memory_mib, tags, ..Guest::default() })
}

/// Returns the names that several guests have, and the IDs of these guests.
fn namesakes<'a>(guests: &[&'a Resource]) -> Result<BTreeMap<&'a str, Vec<String>>, ImportError> {
    let mut called: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for of in guests {
        if let Some(name) = of.name.as_deref().filter(|name| !name.is_empty()) {
            called.entry(name).or_default().push(of.sid()?);
        }
    }
    called.retain(|_, sids| sids.len() > 1);
    Ok(called)
}

/// What of the cluster is not taken over, or not as it is there.
#[derive(Default)]
struct LeftOut<'a> {
    /// The guests that do not run, and the templates.
    stopped: Vec<String>,
    containers: Vec<String>,
    pools: BTreeSet<String>,
    /// The number of other resources of each type.
    others: BTreeMap<&'a str, usize>,
}

impl LeftOut<'_> {
    fn report(self, draft: &mut Draft) {
        if !self.stopped.is_empty() {
            draft.word(format!("guests that do not run, and templates, are left out: {}", quoted(&self.stopped)));
        }
        if !self.containers.is_empty() {
            draft.word(format!(
                "containers are stopped to be moved, and count as if they were not: {}",
                quoted(&self.containers)
            ));
        }
        if !self.pools.is_empty() {
            draft.word(format!("pools have no counterpart: {}", quoted(&self.pools)));
        }
        for (kind, many) in self.others {
            draft.word(format!("resources of type '{kind}' have no counterpart: {many} of them are left out"));
        }
    }
}

/// Reads ProxLB's tags, in the order in which rules are made.
fn tags(draft: &mut Draft) {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let nodes: BTreeSet<String> = draft.hosts.iter().map(|host| host.name.clone()).collect();
    let mut words = Vec::new();
    for guest in &mut draft.guests {
        let mut pins = Vec::new();
        for tag in &guest.tags {
            if tag.starts_with("plb_affinity") || tag.starts_with("plb_anti_affinity") {
                groups.entry(tag.clone()).or_default().push(guest.name.clone());
            } else if tag.starts_with("plb_ignore") {
                guest.stays = true;
            } else if let Some(node) = tag.strip_prefix("plb_pin_") {
                match nodes.contains(node) {
                    true => pins.push(node.to_owned()),
                    false => words.push(format!("'{}' is pinned to '{node}', which is no node: left out", guest.name)),
                }
            } else if tag.starts_with("plb_") {
                words.push(format!("the tag '{tag}' of '{}' has no counterpart", guest.name));
            }
        }
        guest.owners = (!pins.is_empty()).then_some(pins);
    }
    draft.words.extend(words);
    for (name, guests) in groups {
        if guests.len() < 2 {
            draft.word(format!("only {} has the tag '{name}', which says nothing then", quoted(&guests)));
            continue;
        }
        // ProxLB only tries to obey these tags, and goes on where it cannot.
        let kind = match name.starts_with("plb_affinity") {
            true => Kind::Together { hard: false },
            false => Kind::Apart { hard: false },
        };
        draft.rules.push(Rule { name, guests, kind });
    }
}

/// Returns the guests of a section's `resources` that exist, and reports the others.
fn members(draft: &mut Draft, sids: &Sids, rule: &str, listed: &[&str]) -> Vec<String> {
    let (mut guests, mut left_out, mut unknown) = (BTreeSet::new(), Vec::new(), Vec::new());
    for sid in listed {
        match sids.get(*sid) {
            Some(Some(name)) => drop(guests.insert(name.clone())),
            Some(None) => left_out.push(sid),
            None => unknown.push(sid),
        }
    }
    if !left_out.is_empty() {
        draft.word(format!("HA rule '{rule}' is about guests that are left out: {}", quoted(&left_out)));
    }
    if !unknown.is_empty() {
        draft
            .word(format!("HA rule '{rule}' is about guests that are not in /cluster/resources: {}", quoted(&unknown)));
    }
    guests.into_iter().collect()
}

fn ha_rule(draft: &mut Draft, sids: &Sids, section: &Section) {
    let Section { kind, id, .. } = section;
    if section.is("disable") {
        draft.word(format!("HA rule '{id}' is disabled, and left out"));
        return;
    }
    if let Some(errors) = section.get("errors") {
        draft.word(format!(
            "Proxmox VE says that HA rule '{id}' is wrong, and does not keep to it: {errors}; it is taken over"
        ));
    }
    // The last three keys occur in JSON only.
    let known = ["resources", "nodes", "strict", "affinity", "disable", "comment", "digest", "order", "errors"];
    for (key, _) in section.values.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
        draft.word(format!("'{key}' of HA rule '{id}' has no counterpart"));
    }
    match kind.as_str() {
        "node-affinity" if section.get("affinity").is_none_or(|of| of == "positive") => {
            let guests = members(draft, sids, id, &section.list("resources"));
            node_affinity(draft, id, guests, &section.list("nodes"), section.is("strict"));
        }
        "resource-affinity" => {
            let kind = match section.get("affinity") {
                Some("positive") => Kind::Together { hard: true },
                Some("negative") => Kind::Apart { hard: true },
                _ => return draft.leave_out(format!("HA rule '{id}' has neither affinity 'positive' nor 'negative'")),
            };
            let guests = members(draft, sids, id, &section.list("resources"));
            match guests.len() {
                0 | 1 => draft.word(format!("HA rule '{id}' is about fewer than two guests that run: left out")),
                _ => draft.rules.push(Rule { name: id.clone(), guests, kind }),
            }
        }
        _ => draft.leave_out(format!("HA rule '{id}' is of a kind that is not understood ('{kind}')")),
    }
}

/// Adds the rule that guests are on nodes, those with the highest priority first.
fn node_affinity(draft: &mut Draft, id: &str, guests: Vec<String>, listed: &[&str], is_strict: bool) {
    let mut nodes: Vec<(i64, String)> = Vec::new();
    for entry in listed {
        let (node, priority) = entry.split_once(':').unwrap_or((entry, "0"));
        let is_node = draft.hosts.iter().any(|host| host.name == node);
        match priority.parse::<u32>().map(i64::from) {
            Ok(priority) if is_node => nodes.push((-priority, node.to_owned())),
            _ => draft.word(format!("HA rule '{id}' names '{entry}', which is no node of this cluster: left out")),
        }
    }
    match (guests.is_empty(), nodes.is_empty()) {
        (false, false) => {}
        (false, true) if is_strict => return draft.leave_out(format!("HA rule '{id}' is strict and about no node")),
        _ => return draft.word(format!("HA rule '{id}' is about no guest that runs, or no node: left out")),
    }
    nodes.sort();
    let priorities: BTreeSet<i64> = nodes.iter().map(|(priority, _)| *priority).collect();
    let hosts: Vec<String> = nodes.into_iter().map(|(_, node)| node).collect();
    if is_strict {
        let kind = Kind::Owners { hosts: hosts.clone() };
        draft.rules.push(Rule { name: id.to_owned(), guests: guests.clone(), kind });
    }
    if !is_strict || priorities.len() > 1 {
        if priorities.len() < hosts.len() {
            let what = "preferred hosts are in an order, by priority and then by name";
            draft.word(format!("HA rule '{id}' has nodes of the same priority: {what}"));
        }
        let name = if is_strict { format!("{id}-preferred") } else { id.to_owned() };
        draft.rules.push(Rule { name, guests, kind: Kind::Preferred { hosts } });
    }
}

/// Adds the rules of groups, as Proxmox VE 9 makes rules of them. Which guest is in which group is in `resources.cfg`.
/// `groups` is `None` if the groups were not read.
fn ha_groups(draft: &mut Draft, sids: &Sids, groups: Option<&Vec<Section>>, resources: &[Section]) {
    let mut of_group: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for resource in resources {
        let sid = format!("{}:{}", resource.kind, resource.id);
        if let Some(group) = resource.get("group") {
            of_group.entry(group).or_default().push(sid);
        }
        for key in ["max_restart", "max_relocate", "failback"].iter().filter(|key| resource.get(key).is_some()) {
            draft.word(format!("'{key}' of HA resource '{}:{}' has no counterpart", resource.kind, resource.id));
        }
    }
    for group in groups.into_iter().flatten() {
        if group.kind != "group" {
            draft.leave_out(format!("'{}: {}' is no HA group", group.kind, group.id));
            continue;
        }
        let listed: Vec<String> = of_group.remove(group.id.as_str()).unwrap_or_default();
        if group.is("nofailback") {
            draft.word(format!("'nofailback' of HA group '{}' has no counterpart", group.id));
        }
        let id = format!("ha-group-{}", group.id);
        let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
        let guests = members(draft, sids, &id, &listed);
        node_affinity(draft, &id, guests, &group.list("nodes"), group.is("restricted"));
    }
    for (group, of) in of_group {
        match groups {
            // Proxmox VE skips these guests, too.
            Some(_) => {
                draft.word(format!("HA resources are in group '{group}', of which there is none: {}", quoted(&of)))
            }
            None => draft.leave_out(format!("HA group '{group}' of {}: give --ha-groups", quoted(&of))),
        }
    }
}
