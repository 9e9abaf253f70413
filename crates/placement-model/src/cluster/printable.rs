//! Checks that names can be printed. Names are printed in lines as they are written, so a name with a line break could
//! pretend anything in the next line.

use std::collections::BTreeMap;

use super::mistake::{Mistake, Object, ObjectKind};
use super::model::Cluster;
use super::rule::{Guests, Hosts, Rule};

/// Checks that no name in a cluster has control characters.
pub(super) fn check(cluster: &Cluster) -> Result<(), Mistake> {
    for (n, resource) in cluster.resources.iter().enumerate() {
        of(ObjectKind::Resource, n, &resource.name, [&resource.unit])?;
    }
    for (n, host) in cluster.hosts.iter().enumerate() {
        let levels = host.levels.keys().chain(&host.group);
        of(ObjectKind::Host, n, &host.name, host.capacity.keys().chain(levels))?;
        of(ObjectKind::Host, n, &host.name, pairs(&host.areas).chain(pairs(&host.properties)))?;
    }
    for (n, template) in cluster.templates.iter().enumerate() {
        let labels = template.tags.iter().chain(&template.tenant);
        of(ObjectKind::Template, n, &template.name, pairs(&template.properties).chain(labels))?;
        of(ObjectKind::Template, n, &template.name, template.size.keys().chain(template.load.keys()))?;
    }
    for (n, guest) in cluster.guests.iter().enumerate() {
        let labels = guest.tags.iter().chain(&guest.tenant).chain(&guest.availability_set).chain(&guest.template);
        let labels = labels.chain(&guest.alias);
        let hosts = guest.owners.iter().flatten().chain(&guest.host).chain(&guest.preferred).chain(&guest.near);
        of(ObjectKind::Guest, n, &guest.name, pairs(&guest.properties).chain(labels).chain(hosts))?;
        of(ObjectKind::Guest, n, &guest.name, guest.size.keys().chain(guest.load.keys()))?;
    }
    for (n, rule) in cluster.rules.iter().enumerate() {
        of(ObjectKind::Rule(rule.kind()), n, rule.name(), in_rule(rule))?;
    }
    for (n, balance) in cluster.balances.iter().enumerate() {
        of(ObjectKind::Balance, n, &balance.per, [&balance.of])?;
    }
    Ok(())
}

/// Returns why one of these names cannot be printed.
pub fn why_not<'a>(names: impl IntoIterator<Item = &'a String>) -> Option<String> {
    let bad = names.into_iter().find(|name| name.contains(char::is_control))?;
    Some(format!("the name '{}' has a control character", bad.escape_debug()))
}

/// Checks a thing's own name, and the others that it has.
fn of<'a>(
    kind: ObjectKind,
    index: usize,
    name: &'a String,
    others: impl IntoIterator<Item = &'a String>,
) -> Result<(), Mistake> {
    match why_not(std::iter::once(name).chain(others)) {
        None => Ok(()),
        Some(why) => {
            let what = format!("{} '{}': {why}: remove it", kind.word(), name.escape_debug());
            let object = Object::new(kind, index, name);
            Err(Mistake { object, part: Vec::new(), what })
        }
    }
}

fn pairs(pairs: &BTreeMap<String, String>) -> impl Iterator<Item = &String> {
    pairs.iter().flat_map(|(key, value)| [key, value])
}

/// Returns the names that a rule refers to.
fn in_rule(rule: &Rule) -> Vec<&String> {
    match rule {
        Rule::Apart(rule) => guests(&rule.of).chain(rule.from.iter().flat_map(guests)).chain(&rule.level).collect(),
        Rule::Together(rule) => guests(&rule.of).collect(),
        Rule::Spread(rule) => guests(&rule.of).chain([&rule.level]).collect(),
        Rule::Owners(rule) | Rule::Preferred(rule) => guests(&rule.of).chain(hosts(&rule.within)).collect(),
        Rule::Among(rule) => guests(&rule.of).chain(rule.within.iter().flat_map(hosts)).collect(),
        Rule::Needs(rule) => guests(&rule.of).chain(guests(&rule.near)).chain([&rule.level]).collect(),
        Rule::Match(rule) => rule.group.iter().chain([&rule.property]).collect(),
    }
}

fn guests(guests: &Guests) -> std::slice::Iter<'_, String> {
    match guests {
        Guests::Guests(names) => names.iter(),
        Guests::Tag(name) | Guests::Set(name) | Guests::Tenant(name) => std::slice::from_ref(name).iter(),
    }
}

fn hosts(hosts: &Hosts) -> std::slice::Iter<'_, String> {
    match hosts {
        Hosts::Hosts(names) => names.iter(),
        Hosts::Group(name) => std::slice::from_ref(name).iter(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;

    /// A file with a name of each kind; a test puts `NAME` in one place.
    const FILE: &str = r#"
resources: [{name: RZ, unit: UU}]
hosts:
- {name: HH, group: HG, capacity: {HC: 1}, areas: {HL: HA}, properties: {HP: HV}, levels: {HR: {}}}
templates:
- {name: TZ, size: {TS: 1}, load: {TL: 1}, properties: {TP: TV}, tags: [TT], tenant: TN}
guests:
- {name: GG, host: GH, template: GT, size: {GS: 1}, load: {GL: 1}, properties: {GP: GV}, tags: [GA], tenant: GN,
   availability_set: GX, owners: [GO], preferred: [GR], near: [GE]}
rules:
- apart: {name: RA, of: {tag: RB}, from: {tag: XY}, level: XZ}
- together: {name: RC, of: {set: RD}}
- spread: {name: RE, of: {tenant: RF}, level: RG, areas_min: 2}
- owners: {name: RH, of: {guests: [RI]}, within: {group: RJ}}
- preferred: {name: RK, of: {guests: [RL]}, within: {hosts: [RM]}}
- among: {name: RN, of: {guests: [RO]}, within: [{hosts: [RP]}, {group: RQ}]}
- needs: {name: RR, of: {guests: [RS]}, near: {guests: [RT]}, level: RU}
- match: {name: RV, property: RW, relation: must, group: RX}
balances:
- {for: BF, of: BO, free: 1}
"#;

    #[test]
    fn no_name_ends_a_line_or_drives_a_terminal() {
        assert!(read(FILE).is_ok());
        let is_name = |word: &&str| word.len() == 2 && word.chars().all(char::is_uppercase);
        let names: Vec<&str> = FILE.split(|c: char| !c.is_alphabetic()).filter(is_name).collect();
        assert_eq!(names.len(), 58);
        for name in names {
            for (bad, shown) in [(r"a\nb", r"a\nb"), (r"a\eb", r"a\u{1b}b")] {
                let error = read(&FILE.replace(name, &format!("\"{bad}\""))).unwrap_err().to_string();
                assert!(error.starts_with("line "), "{error}");
                assert!(error.ends_with(&format!("the name '{shown}' has a control character: remove it")), "{error}");
            }
        }
        let error = read(&FILE.replace("GA", "\"\\n\"")).unwrap_err().to_string();
        assert_eq!(error, r"line 8: guest 'GG': the name '\n' has a control character: remove it");
    }
}
