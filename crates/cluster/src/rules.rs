//! Rules: what is stored of them, and what placement makes of them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use skein_placement_model::cluster::model::{Cluster, Guest, Host, HostState};
use skein_placement_model::cluster::printable;
use skein_placement_model::cluster::rule::{self, Guests, HOST_LEVEL, Hosts};
use thiserror::Error;

use crate::skeleton::NO_AREA;

/// Why a value is no rule.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum BadRule {
    #[error("a rule is an object with its kind as the only key, as {{\"apart\": {{\"of\": {{\"tag\": \"db\"}}}}}}")]
    Shape,
    #[error("the rule is called '{own}' inside, and '{name}' outside: call it the same, or leave the name inside out")]
    Name { own: String, name: String },
    #[error("that is no rule")]
    Rule(#[source] serde_json::Error),
}

/// Reads a rule, which gets its name from outside.
pub(crate) fn read(name: &str, value: &Value) -> Result<rule::Rule, BadRule> {
    let object = value.as_object().filter(|object| object.len() == 1).ok_or(BadRule::Shape)?;
    let (kind, body) = object.iter().next().ok_or(BadRule::Shape)?;
    let mut body = body.as_object().ok_or(BadRule::Shape)?.clone();
    match body.get("name").and_then(Value::as_str) {
        Some(own) if own != name => return Err(BadRule::Name { own: own.to_owned(), name: name.to_owned() }),
        _ => drop(body.insert("name".into(), name.into())),
    }
    let mut named = Map::new();
    named.insert(kind.clone(), body.into());
    serde_json::from_value(named.into()).map_err(BadRule::Rule)
}

/// Returns the field of a rule that names something by an empty name, which nothing can ever have.
pub(crate) fn nameless(rule: &Value) -> Option<&str> {
    const NAMES: [&str; 8] = ["guests", "hosts", "group", "tag", "set", "tenant", "level", "property"];
    let is_empty = |value: &Value| value.as_str().is_some_and(str::is_empty);
    match rule {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let has_empty = is_empty(value) || value.as_array().is_some_and(|names| names.iter().any(is_empty));
            if NAMES.contains(&key.as_str()) && has_empty { Some(key.as_str()) } else { nameless(value) }
        }),
        Value::Array(items) => items.iter().find_map(nameless),
        _ => None,
    }
}

/// What the cluster has that a rule may name.
pub(crate) struct Known<'a> {
    pub(crate) vms: BTreeSet<&'a str>,
    pub(crate) hosts: BTreeSet<&'a str>,
    pub(crate) groups: BTreeSet<&'a str>,
    pub(crate) tags: BTreeSet<&'a str>,
    pub(crate) sets: BTreeSet<&'a str>,
    pub(crate) tenants: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    /// Returns what a cluster has.
    pub(crate) fn of(cluster: &'a Cluster) -> Known<'a> {
        let (guests, hosts) = (&cluster.guests, &cluster.hosts);
        Known {
            vms: guests.iter().map(|guest| guest.name.as_str()).collect(),
            hosts: hosts.iter().map(|host| host.name.as_str()).collect(),
            groups: hosts.iter().filter_map(|host| host.group.as_deref()).collect(),
            tags: guests.iter().flat_map(|guest| guest.tags.iter().map(String::as_str)).collect(),
            sets: guests.iter().filter_map(|guest| guest.availability_set.as_deref()).collect(),
            tenants: guests.iter().filter_map(|guest| guest.tenant.as_deref()).collect(),
        }
    }
}

/// Says what a rule names that the cluster does not have. It may come later: then the rule holds for it.
pub(crate) fn unknown(rule: &Value, known: &Known<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let Some(object) = rule.as_object() else {
        return rule.as_array().into_iter().flatten().flat_map(|of| unknown(of, known)).collect();
    };
    for (key, value) in object {
        let (what, names) = match key.as_str() {
            "guests" => ("VM", &known.vms),
            "hosts" => ("host", &known.hosts),
            "group" => ("host of the group", &known.groups),
            "tag" => ("VM with the tag", &known.tags),
            "set" => ("VM of the availability set", &known.sets),
            "tenant" => ("VM of the tenant", &known.tenants),
            _ => {
                found.extend(unknown(value, known));
                continue;
            }
        };
        let named = value.as_str().into_iter().chain(value.as_array().into_iter().flatten().filter_map(Value::as_str));
        let missing = named.filter(|name| !names.contains(name));
        found.extend(missing.map(|name| format!("there is no {what} '{name}': the rule holds for it once there is")));
    }
    found
}

/// Takes out of a rule what the cluster does not have: VMs that are off, and what is gone. Returns `None` if the rule
/// is then about no guest or no host.
pub(crate) fn among_known(rule: rule::Rule, known: &Known<'_>, cluster: &Cluster) -> Option<rule::Rule> {
    let of = |mut of: Guests| {
        let has = match &mut of {
            Guests::Guests(names) => {
                names.retain(|name| known.vms.contains(name.as_str()));
                !names.is_empty()
            }
            Guests::Tag(tag) => known.tags.contains(tag.as_str()),
            Guests::Set(set) => known.sets.contains(set.as_str()),
            Guests::Tenant(tenant) => known.tenants.contains(tenant.as_str()),
        };
        has.then_some(of)
    };
    let within = |mut within: Hosts| {
        if let Hosts::Hosts(names) = &mut within {
            names.retain(|name| known.hosts.contains(name.as_str()));
        }
        let has = match &within {
            Hosts::Hosts(names) => !names.is_empty(),
            Hosts::Group(group) => known.groups.contains(group.as_str()),
        };
        has.then_some(within)
    };
    let level = |level: &str| level == "host" || cluster.hosts.iter().all(|host| host.areas.contains_key(level));
    Some(match rule {
        rule::Rule::Apart(mut apart) => {
            apart.of = of(apart.of)?;
            if let Some(from) = apart.from {
                apart.from = Some(of(from)?);
            }
            apart.level.as_deref().is_none_or(level).then_some(rule::Rule::Apart(apart))?
        }
        rule::Rule::Together(mut together) => {
            together.of = of(together.of)?;
            rule::Rule::Together(together)
        }
        rule::Rule::Spread(mut spread) => {
            spread.of = of(spread.of)?;
            level(&spread.level).then_some(rule::Rule::Spread(spread))?
        }
        rule::Rule::Owners(mut owners) => {
            (owners.of, owners.within) = (of(owners.of)?, within(owners.within)?);
            rule::Rule::Owners(owners)
        }
        rule::Rule::Preferred(mut preferred) => {
            (preferred.of, preferred.within) = (of(preferred.of)?, within(preferred.within)?);
            rule::Rule::Preferred(preferred)
        }
        rule::Rule::Among(mut among) => {
            among.of = of(among.of)?;
            among.within = among.within.into_iter().filter_map(within).collect();
            (!among.within.is_empty()).then_some(rule::Rule::Among(among))?
        }
        rule::Rule::Needs(mut needs) => {
            (needs.of, needs.near) = (of(needs.of)?, of(needs.near)?);
            level(&needs.level).then_some(rule::Rule::Needs(needs))?
        }
        rule::Rule::Match(matching) => {
            let group = matching.group.as_ref();
            let has = group.is_none_or(|group| known.groups.contains(group.as_str()));
            has.then_some(rule::Rule::Match(matching))?
        }
    })
}

/// Adds to a cluster what a rule names and the cluster does not have, so that it is seen whether the rule can be used
/// once that is there.
pub(crate) fn add_named(rule: &rule::Rule, cluster: &mut Cluster) {
    let (guests, hosts, level): (Vec<&Guests>, Vec<&Hosts>, Option<&str>) = match rule {
        rule::Rule::Apart(of) => (std::iter::once(&of.of).chain(&of.from).collect(), Vec::new(), of.level.as_deref()),
        rule::Rule::Together(of) => (vec![&of.of], Vec::new(), None),
        rule::Rule::Spread(of) => (vec![&of.of], Vec::new(), Some(&of.level)),
        rule::Rule::Owners(of) | rule::Rule::Preferred(of) => (vec![&of.of], vec![&of.within], None),
        rule::Rule::Among(of) => (vec![&of.of], of.within.iter().collect(), None),
        rule::Rule::Needs(of) => (vec![&of.of, &of.near], Vec::new(), Some(&of.level)),
        rule::Rule::Match(_) => (Vec::new(), Vec::new(), None),
    };
    guests.into_iter().for_each(|of| add_guests(of, cluster));
    hosts.into_iter().for_each(|of| add_hosts(of, cluster));
    let Some(level) = level.filter(|level| *level != HOST_LEVEL && is_name(level)) else { return };
    if !cluster.hosts.iter().any(|host| host.areas.contains_key(level)) {
        cluster.hosts.iter_mut().for_each(|host| drop(host.areas.insert(level.to_owned(), NO_AREA.to_owned())));
    }
}

/// Returns whether a name can be printed. One that cannot be is a mistake of the rule that has it.
fn is_name(name: &str) -> bool {
    printable::why_not([&name.to_owned()]).is_none()
}

fn add_guests(of: &Guests, cluster: &mut Cluster) {
    let guests = &mut cluster.guests;
    let new = |name: &str| Guest::new(name, Default::default());
    match of {
        Guests::Guests(names) => {
            for name in names.iter().filter(|name| is_name(name)) {
                if !guests.iter().any(|guest| guest.name == *name) {
                    guests.push(new(name));
                }
            }
        }
        Guests::Tag(tag) if is_name(tag) && !guests.iter().any(|guest| guest.tags.contains(tag)) => {
            guests.push(Guest { tags: vec![tag.clone()], ..new(&format!("(tag {tag})")) });
        }
        Guests::Set(set)
            if is_name(set) && !guests.iter().any(|guest| guest.availability_set.as_ref() == Some(set)) =>
        {
            guests.push(Guest { availability_set: Some(set.clone()), ..new(&format!("(set {set})")) });
        }
        Guests::Tenant(tenant)
            if is_name(tenant) && !guests.iter().any(|guest| guest.tenant.as_ref() == Some(tenant)) =>
        {
            guests.push(Guest { tenant: Some(tenant.clone()), ..new(&format!("(tenant {tenant})")) });
        }
        Guests::Tag(_) | Guests::Set(_) | Guests::Tenant(_) => {}
    }
}

fn add_hosts(of: &Hosts, cluster: &mut Cluster) {
    let hosts = &mut cluster.hosts;
    let new = |name: &str| Host { state: HostState::Offline, ..Host::new(name, Default::default()) };
    match of {
        Hosts::Hosts(names) => {
            for name in names.iter().filter(|name| is_name(name)) {
                if !hosts.iter().any(|host| host.name == *name) {
                    hosts.push(new(name));
                }
            }
        }
        Hosts::Group(group) if is_name(group) && !hosts.iter().any(|host| host.group.as_ref() == Some(group)) => {
            hosts.push(Host { group: Some(group.clone()), ..new(&format!("(group {group})")) });
        }
        Hosts::Group(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_known_is_told() {
        let known = Known {
            vms: ["web"].into(),
            hosts: ["alpha"].into(),
            groups: ["rack"].into(),
            tags: ["db"].into(),
            sets: BTreeSet::new(),
            tenants: BTreeSet::new(),
        };
        let all = json!({"among": {"of": {"guests": ["web"]}, "within": [{"hosts": ["alpha"]}, {"group": "rack"}]}});
        assert_eq!(unknown(&all, &known), Vec::<String>::new());
        let rule =
            json!({"among": {"of": {"guests": ["web", "wbe"]}, "within": [{"hosts": ["delta"]}, {"group": "rak"}]}});
        let found = unknown(&rule, &known).join("; ");
        for says in ["no VM 'wbe'", "no host 'delta'", "no host of the group 'rak'"] {
            assert!(found.contains(says), "{found}");
        }
        assert_eq!(unknown(&json!({"apart": {"of": {"tag": "bd"}}}), &known).len(), 1);
    }

    #[test]
    fn a_rule_gets_its_name_from_outside() {
        let rule = read("db", &json!({"apart": {"of": {"tag": "db"}, "force": "hard"}})).unwrap();
        assert_eq!((rule.name().as_str(), rule.kind()), ("db", "apart"));
        assert!(read("db", &json!({"apart": {"name": "db", "of": {"tag": "db"}}})).is_ok());
        for bad in [
            json!("apart"),
            json!({}),
            json!({"apart": []}),
            json!({"apart": {"of": {"tag": "x"}}, "together": {"of": {"tag": "x"}}}),
            json!({"apart": {"name": "web", "of": {"tag": "db"}}}),
            json!({"apart": {"of": {"tag": "db"}, "forze": "hard"}}),
            json!({"beside": {"of": {"tag": "db"}}}),
        ] {
            assert!(read("db", &bad).is_err(), "{bad}");
        }
    }
}
