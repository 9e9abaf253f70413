//! Rules and settings that placement cannot use: they are refused where they are set, by building the model with them,
//! and told if they are in the store all the same.

use skein_api::cluster::{HostSettings, VmSettings};
use skein_placement_model::cluster::compile;
use skein_placement_model::cluster::model::{Cluster, Host};
use skein_placement_model::cluster::rule::Rule;

use crate::records::{RuleRecord, VmRecord};
use crate::rules::{self, add_named};
use crate::skeleton::{complete_areas, empty_cluster, label};
use crate::sound::{LeftOut, compile_sound};
use crate::state::Controller;
use crate::tables::Stored;
use crate::words::error_chain;

/// Says why a change spoils a cluster that placement could use before. What is wrong already is none of the change's.
fn spoilt(mut before: Cluster, change: impl Fn(&mut Cluster)) -> Option<String> {
    let mut after = before.clone();
    change(&mut after);
    compile(&after).err()?;
    let _ = compile_sound(&mut before).ok()?;
    change(&mut before);
    compile(&before).err().map(|error| error_chain(&error))
}

impl Controller {
    /// Says why placement could not use a rule. What the rule names and the cluster does not have counts as if it were
    /// there.
    pub(crate) fn unsound_rule(&self, rule: &Rule) -> Option<String> {
        let mut cluster = self.placement();
        cluster.rules.retain(|of| of.name() != rule.name());
        let why = spoilt(cluster, |cluster| {
            add_named(rule, cluster);
            complete_areas(cluster);
            cluster.rules.push(rule.clone());
        })?;
        let name = format!("rule '{}'", rule.name());
        Some(if why.starts_with(&name) { why } else { format!("{name}: {why}") })
    }

    /// Says why placement could not use what is to be set of a host.
    pub(crate) fn unsound_host(&self, host: &str, settings: &HostSettings) -> Option<String> {
        spoilt(self.without_guests(), |cluster| {
            let found = cluster.hosts.iter_mut().find(|of| of.name == host);
            found.into_iter().for_each(|of| label(of, settings));
            name_all(cluster);
        })
    }

    /// Says why placement could not use what is to be set of a VM.
    pub(crate) fn unsound_vm(&self, vm: &str, record: &VmRecord, settings: &VmSettings) -> Option<String> {
        let record = VmRecord { settings: settings.clone(), ..record.clone() };
        spoilt(self.without_guests(), |cluster| {
            cluster.guests.retain(|guest| guest.name != vm);
            self.add_vm(cluster, vm, &record);
            name_all(cluster);
        })
    }

    /// Returns all hosts as they are set, all rules, and what these name. What is wrong here is wrong whatever runs.
    fn without_guests(&self) -> Cluster {
        let mut cluster = empty_cluster();
        for (name, stored) in &self.tables.hosts {
            let mut host = Host::new(name, Default::default());
            label(&mut host, &stored.value.settings);
            cluster.hosts.push(host);
        }
        let read = |(name, of): (&String, &Stored<RuleRecord>)| rules::read(name, &of.value.rule).ok();
        cluster.rules = self.tables.rules.iter().filter_map(read).collect();
        name_all(&mut cluster);
        cluster
    }

    /// Returns the rules that are in the store and cannot be read: a later release may have written them.
    pub fn unreadable_rules(&self) -> Vec<LeftOut> {
        let unread =
            self.tables.rules.iter().filter_map(|(name, of)| Some((name, rules::read(name, &of.value.rule).err()?)));
        unread.map(|(name, error)| LeftOut::rule(name, format!("rule '{name}': {}", error_chain(&error)))).collect()
    }

    /// Says what placement leaves out: what is wrong whatever runs, and what the last plan has found.
    pub(crate) fn left_out_attention(&self) -> Vec<String> {
        let mut found = self.unreadable_rules();
        let find = || compile_sound(&mut self.without_guests()).map(|(_, left_out)| left_out).unwrap_or_default();
        for more in self.tables.unusable(find).iter().chain(&self.left_out) {
            let is_told = |of: &LeftOut| of.what == more.what || more.rule.is_some() && of.rule == more.rule;
            if !found.iter().any(is_told) {
                found.push(more.clone());
            }
        }
        found
            .into_iter()
            .map(|of| format!("placement leaves out what it cannot use: {}; {}", of.what, of.todo))
            .collect()
    }
}

/// Adds what the rules of a cluster name and the cluster does not have.
fn name_all(cluster: &mut Cluster) {
    for rule in cluster.rules.clone() {
        add_named(&rule, cluster);
    }
    complete_areas(cluster);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use skein_placement_model::cluster::HOST_LEVEL;

    use super::*;
    use crate::skeleton::NO_AREA;

    fn cluster(rules: &[(&str, Value)]) -> Cluster {
        let mut cluster = empty_cluster();
        cluster.hosts = ["a", "b"].map(|name| Host::new(name, Default::default())).into();
        for (name, rule) in rules {
            let rule = rules::read(name, rule).unwrap();
            add_named(&rule, &mut cluster);
            cluster.rules.push(rule);
        }
        complete_areas(&mut cluster);
        cluster
    }

    #[test]
    fn all_that_cannot_be_used_is_left_out_and_the_rest_stays() {
        let pair = json!({"guests": ["v", "w"]});
        let mut cluster = cluster(&[
            ("apart", json!({"apart": {"of": pair, "force": "hard"}})),
            ("below", json!({"apart": {"of": pair, "weight": -1}})),
            ("hard", json!({"together": {"of": pair, "force": "hard", "weight": 3}})),
            ("match", json!({"match": {"property": "x", "relation": "should", "weight": 1e10}})),
            ("much", json!({"spread": {"of": pair, "level": "rack", "areas_min": 4_000_000_000u32}})),
            ("vague", json!({"spread": {"of": pair, "level": "host"}})),
            ("with", json!({"together": {"of": {"tag": "db"}}})),
        ]);
        cluster.hosts[1].areas.insert(HOST_LEVEL.into(), "x".into());
        let (_, left_out) = compile_sound(&mut cluster).unwrap();
        let names: Vec<Option<&str>> = left_out.iter().map(|of| of.rule.as_deref()).collect();
        assert_eq!(
            names,
            [None, Some("below"), Some("hard"), Some("match"), Some("vague"), Some("much")],
            "{left_out:?}"
        );
        assert!(left_out[0].what.starts_with("host 'b': the level 'host'"), "{left_out:?}");
        assert!(left_out[5].what.contains("can come to more than 2^53"), "{left_out:?}");
        let stay: Vec<&str> = cluster.rules.iter().map(|rule| rule.name().as_str()).collect();
        assert_eq!(stay, ["apart", "with"]);
        assert_eq!(cluster.hosts[0].areas["rack"], NO_AREA);
    }
}
