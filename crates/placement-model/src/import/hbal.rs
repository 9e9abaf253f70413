//! Imports from Ganeti's htools: the text files that `hbal -t` reads and `hscan` writes.
//!
//! The file has five sections, separated by empty lines: node groups, nodes, instances, cluster tags, and policies
//! (which may be missing). Each line has fields separated by `|`. Which field is what is in
//! `Ganeti.HTools.Backend.Text`.

use std::collections::{BTreeMap, BTreeSet};

use super::ipolicy::{self, Policy, VCPU_RATIO};
use super::{Draft, Guest, Host, ImportError, Imported, Kind, Rule, quoted};

/// A line, and its number from 1 on.
type Line<'a> = (usize, &'a str);

/// Reads a file.
///
/// # Errors
///
/// [`ImportError`] if the text is not of the format, or the cluster cannot be placed.
pub fn read(text: &str) -> Result<Imported, ImportError> {
    let sections = sections(text);
    let (count, line) = (sections.len(), text.lines().count().max(1));
    if !(4..=5).contains(&count) {
        let what = format!("it has {count} sections, which empty lines divide, instead of 4 or 5");
        return Err(ImportError::Line { line, what });
    }
    let mut draft = Draft::default();
    let groups = groups(&mut draft, &sections[0])?;
    let node_tags = nodes(&mut draft, &groups, &sections[1])?;
    let tagged = instances(&mut draft, &sections[2])?;
    cluster_tags(&mut draft, &node_tags, &tagged, &sections[3]);
    policies(&mut draft, &groups, sections.get(4).map_or(&[], |lines| lines))?;
    within_groups(&mut draft);
    draft.word("N+1 redundancy is not asked for by this file itself: write 'survive: {failures: 1}' for it");
    draft.finish()
}

/// Splits a file into sections. Each empty line ends one, except for those at the end of the file.
fn sections(text: &str) -> Vec<Vec<Line<'_>>> {
    let mut sections: Vec<Vec<Line<'_>>> = vec![Vec::new()];
    for (n, line) in text.lines().enumerate() {
        match line.trim_end_matches('\r') {
            "" => sections.push(Vec::new()),
            line => sections.last_mut().expect("there is one").push((n + 1, line)),
        }
    }
    while sections.len() > 4 && sections.last().is_some_and(Vec::is_empty) {
        sections.pop();
    }
    sections
}

fn wrong(line: usize, what: impl Into<String>) -> ImportError {
    ImportError::Line { line, what: what.into() }
}

/// Returns the fields of a line, of which there have to be at least `least`.
fn fields<'a>(what: &str, least: usize, (line, text): Line<'a>) -> Result<Vec<&'a str>, ImportError> {
    let fields: Vec<&str> = text.split('|').collect();
    match fields.len() < least || fields[0].is_empty() {
        true => Err(wrong(line, format!("a {what} has a name and {least} fields at least, which '|' divides"))),
        false => Ok(fields),
    }
}

fn whole(line: usize, what: &str, field: &str) -> Result<u64, ImportError> {
    let most = |number: &u64| *number <= u64::from(u32::MAX);
    let number = field.parse().ok().filter(most);
    number.ok_or_else(|| wrong(line, format!("{what} is '{field}', which is no whole number")))
}

/// Returns the name of each group by its UUID.
fn groups<'a>(draft: &mut Draft, lines: &[Line<'a>]) -> Result<BTreeMap<&'a str, &'a str>, ImportError> {
    let mut groups = BTreeMap::new();
    for &line in lines {
        let fields = fields("group", 3, line)?;
        if fields[2] != "preferred" {
            draft.word(format!("group '{}' is '{}', which has no counterpart", fields[0], fields[2]));
        }
        if groups.insert(fields[1], fields[0]).is_some() {
            return Err(wrong(line.0, format!("there are two groups '{}'", fields[1])));
        }
    }
    Ok(groups)
}

/// Reads the nodes, and returns their tags.
fn nodes<'a>(
    draft: &mut Draft,
    groups: &BTreeMap<&str, &str>,
    lines: &[Line<'a>],
) -> Result<Vec<&'a str>, ImportError> {
    let (mut tagged, mut all) = (Vec::new(), Vec::new());
    for &line in lines {
        let fields = fields("node", 9, line)?;
        let (n, name) = (line.0, fields[0]);
        let group = groups
            .get(fields[8])
            .ok_or_else(|| wrong(n, format!("node '{name}' is in group '{}', of which there is no line", fields[8])))?;
        let is_offline = fields[7] == "Y" || fields[1..7].contains(&"?");
        let mut host = Host { name: name.to_owned(), group: Some((*group).to_owned()), is_offline, ..Host::default() };
        if !is_offline {
            host.memory_mib = whole(n, "a node's memory", fields[1])?;
            host.reserve_mib = whole(n, "the memory of a node itself", fields[2])?.min(host.memory_mib);
            host.cores = whole(n, "a node's cores", fields[6])? as f64;
        }
        let tags = fields.get(10).map_or("", |tags| tags).split(',').filter(|tag| !tag.is_empty());
        let before = all.len();
        all.extend(tags);
        if all.len() > before {
            tagged.push(name);
        }
        draft.hosts.push(host);
    }
    if !tagged.is_empty() {
        draft.word(format!("tags of nodes have no counterpart: those of {}", quoted(tagged)));
    }
    draft.word("disks and spindles are not counted: they are where they are");
    Ok(all)
}

/// Reads the instances, and returns the guests with each tag.
fn instances<'a>(draft: &mut Draft, lines: &[Line<'a>]) -> Result<BTreeMap<&'a str, Vec<String>>, ImportError> {
    let nodes: BTreeSet<String> = draft.hosts.iter().map(|host| host.name.clone()).collect();
    let mut tagged: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let (mut stopped, mut mirrored, mut local, mut unbalanced) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for &line in lines {
        let fields = fields("instance", 10, line)?;
        let (n, name) = (line.0, fields[0].to_owned());
        let node = |of: &str| match nodes.contains(of) {
            true => Ok(of.to_owned()),
            false => Err(wrong(n, format!("instance '{name}' is on node '{of}', of which there is no line"))),
        };
        match fields[4] {
            "running" | "ERROR_up" | "ERROR_down" | "ERROR_nodedown" | "ERROR_nodeoffline" | "ERROR_wrongnode" => {}
            "ADMIN_down" | "ADMIN_offline" | "USER_down" => {
                stopped.push(name);
                continue;
            }
            other => return Err(wrong(n, format!("the status of instance '{name}' is '{other}', which there is not"))),
        }
        let primary = node(fields[6])?;
        let mut guest = Guest {
            host: Some(primary.clone()),
            memory_mib: whole(n, "an instance's memory", fields[1])?,
            cores: whole(n, "an instance's cores", fields[3])? as f64,
            tags: fields[9].split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
            ..Guest::default()
        };
        match fields[8] {
            "drbd" => {
                guest.owners = Some(vec![primary, node(fields[7])?]);
                mirrored.push(name.clone());
            }
            "plain" | "file" => {
                guest.stays = true;
                local.push(name.clone());
            }
            "diskless" | "sharedfile" | "blockdev" | "rbd" | "ext" | "gluster" => {}
            other => return Err(wrong(n, format!("the disks of instance '{name}' are '{other}', which there is not"))),
        }
        match fields[5] {
            "Y" => {}
            "N" => unbalanced.push(name.clone()),
            other => return Err(wrong(n, format!("auto_balance of instance '{name}' is '{other}', not Y or N"))),
        }
        for tag in fields[9].split(',').filter(|tag| !tag.is_empty()) {
            tagged.entry(tag).or_default().push(name.clone());
        }
        guest.name = name;
        draft.guests.push(guest);
    }
    for (names, what) in [
        (stopped, "instances that do not run are left out"),
        (
            mirrored,
            "instances on drbd stay on their two nodes: a new secondary, as hbal can make one, has no counterpart",
        ),
        (local, "instances with local disks stay where they are"),
        (unbalanced, "'auto_balance: N' has no counterpart"),
    ] {
        if !names.is_empty() {
            draft.word(format!("{what}: {}", quoted(names)));
        }
    }
    Ok(tagged)
}

/// Reads exclusion tags (`htools:iextags:PREFIX`): guests with the same tag of such a prefix are apart.
///
/// Migration tags (`htools:migration:PREFIX`) have no counterpart, though hbal always obeys them: an instance goes only
/// to a node that has all tags of that prefix which its own node has.
fn cluster_tags(draft: &mut Draft, nodes: &[&str], tagged: &BTreeMap<&str, Vec<String>>, lines: &[Line]) {
    let is_of = |tag: &str, prefix: &str| tag.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(':'));
    for (_, line) in lines {
        let restricts = |prefix: &str| nodes.iter().any(|tag| is_of(tag, prefix));
        if line.strip_prefix("htools:migration:").is_some_and(restricts) {
            draft.leave_out(format!(
                "the cluster's tag '{line}': from node to node instances migrate as the tags of nodes allow; \
                 write 'owners' for them"
            ));
            continue;
        }
        let Some(prefix) = line.strip_prefix("htools:iextags:") else {
            draft.word(format!("the cluster's tag '{line}' has no counterpart"));
            continue;
        };
        for (tag, guests) in tagged.iter().filter(|(_, guests)| guests.len() > 1) {
            if is_of(tag, prefix) {
                let kind = Kind::Apart { hard: true };
                draft.rules.push(Rule { name: (*tag).to_owned(), guests: guests.clone(), kind });
            }
        }
    }
}

/// Reads how many vCPUs a core carries. The limits of single instances are not read, since they are for new ones.
///
/// Each node has the ratio of its group (`setNodePolicy` of `Ganeti.HTools.Loader`). A cluster file has one
/// `overcommit` for all nodes. Where groups differ, it is the least of their ratios, and the nodes of other groups have
/// more cores instead.
fn policies(draft: &mut Draft, groups: &BTreeMap<&str, &str>, lines: &[Line]) -> Result<(), ImportError> {
    let (mut cluster, mut own) = (VCPU_RATIO, BTreeMap::new());
    for &(line, text) in lines {
        let Policy { owner, vcpu_ratio } = ipolicy::read(line, text)?;
        if owner.is_empty() {
            cluster = vcpu_ratio;
        } else if !groups.values().any(|group| *group == owner) {
            return Err(wrong(line, format!("a policy is of group '{owner}', of which there is no line")));
        } else {
            own.insert(owner, vcpu_ratio);
        }
    }
    let ratio = |host: &Host| host.group.as_deref().and_then(|group| own.get(group)).copied().unwrap_or(cluster);
    let least = draft.hosts.iter().map(ratio).min_by(f64::total_cmp).unwrap_or(cluster).max(1.0);
    draft.overcommit = Some(least);
    let mut words = BTreeSet::new();
    for host in &mut draft.hosts {
        let ratio = ratio(host);
        if ratio.total_cmp(&least).is_ne() {
            host.cores *= ratio / least;
            let group = host.group.as_deref().unwrap_or_default();
            words.insert(format!(
                "the vCPU ratio of group '{group}' is {ratio}, and 'overcommit' is {least} for all: its nodes have \
                 {ratio}/{least} of their cores instead"
            ));
        }
    }
    words.into_iter().for_each(|word| draft.word(word));
    if !lines.is_empty() {
        draft.word("of policies only the vCPU ratio has a counterpart");
    }
    Ok(())
}

/// Keeps each instance in its own group if there are several.
fn within_groups(draft: &mut Draft) {
    let mut hosts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for host in &draft.hosts {
        hosts.entry(host.group.clone().unwrap_or_default()).or_default().push(host.name.clone());
    }
    if hosts.len() < 2 {
        return;
    }
    for (group, hosts) in hosts {
        let is_in = |guest: &&Guest| guest.host.as_ref().is_some_and(|host| hosts.contains(host));
        let guests: Vec<String> = draft.guests.iter().filter(is_in).map(|guest| guest.name.clone()).collect();
        if !guests.is_empty() {
            draft.rules.push(Rule { name: format!("group-{group}"), guests, kind: Kind::Owners { hosts } });
        }
    }
}
