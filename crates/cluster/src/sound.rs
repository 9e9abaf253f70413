//! What placement cannot use is left out of a cluster, so that the rest is planned: no failover waits for a slip in a
//! rule. What can be used is said by the model itself.

use skein_placement_model::cluster::model::{Cluster, Host};
use skein_placement_model::cluster::{CompileError, Compiled, Mistake, ObjectKind, compile};

use crate::skeleton::complete_areas;

/// Something that placement leaves out, since it cannot use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The rule's name; `None`: it is a setting of a host or a VM.
    pub rule: Option<String>,
    /// What is wrong. The text names what it is in.
    pub what: String,
    /// What to do.
    pub todo: String,
}

impl LeftOut {
    pub(crate) fn rule(name: &str, what: String) -> LeftOut {
        let todo = format!("change it, or remove it: skein rule remove {name}");
        LeftOut { rule: Some(name.to_owned()), what, todo }
    }

    fn setting(what: String, command: &str) -> LeftOut {
        LeftOut { rule: None, what, todo: format!("change it: {command}") }
    }
}

/// Compiles a cluster. Takes out of it what it cannot be compiled with: rules, areas, and what is set of hosts and VMs.
///
/// # Errors
///
/// What is wrong is none of these.
pub(crate) fn compile_sound(cluster: &mut Cluster) -> Result<(Compiled, Vec<LeftOut>), CompileError> {
    let mut left_out = Vec::new();
    loop {
        let error = match compile(cluster) {
            Ok(compiled) => return Ok((compiled, left_out)),
            Err(error) => error,
        };
        let found = match &error {
            CompileError::Mistake(mistake) => leave_out(cluster, mistake),
            CompileError::Flaw(flaw) => leave_out_rule_too_many(cluster, &flaw.to_string()),
        };
        left_out.push(found.ok_or(error)?);
    }
}

/// Takes out of a cluster what a mistake is in. `None`: it cannot be taken out.
fn leave_out(cluster: &mut Cluster, mistake: &Mistake) -> Option<LeftOut> {
    let (index, what) = (mistake.object.index, mistake.what.clone());
    match mistake.object.kind {
        ObjectKind::Rule(_) => {
            let rule = cluster.rules.remove(index);
            Some(LeftOut::rule(rule.name(), what))
        }
        ObjectKind::Host => {
            let host = &mut cluster.hosts[index];
            let command = format!("skein property set host {}", host.name);
            if let [field, level] = &mistake.part[..]
                && field == "areas"
                && host.areas.contains_key(level)
            {
                let command = format!("{command} area.{level}=");
                cluster.hosts.iter_mut().for_each(|host| drop(host.areas.remove(level)));
                return Some(LeftOut::setting(what, &command));
            }
            let bare =
                Host { state: host.state, storage: host.storage, ..Host::new(&host.name, host.capacity.clone()) };
            let has_settings = host.group.is_some() || !host.areas.is_empty() || !host.properties.is_empty();
            *host = bare;
            complete_areas(cluster);
            has_settings.then(|| LeftOut::setting(what, &command))
        }
        ObjectKind::Guest => {
            let guest = &mut cluster.guests[index];
            let labels = guest.tags.len() + guest.properties.len();
            let has_labels = labels > 0 || guest.tenant.is_some() || guest.availability_set.is_some();
            let command = format!("skein property set vm {}", guest.name);
            (guest.tenant, guest.availability_set) = (None, None);
            guest.tags.clear();
            guest.properties.clear();
            has_labels.then(|| LeftOut::setting(what, &command))
        }
        _ => None,
    }
}

/// Takes the first rule out of a cluster with which, and with those before it, the sums become too large.
fn leave_out_rule_too_many(cluster: &mut Cluster, flaw: &str) -> Option<LeftOut> {
    let all = std::mem::take(&mut cluster.rules);
    let mut fails = |count: usize| {
        cluster.rules = all[..count].to_vec();
        compile(cluster).is_err()
    };
    // It fails with `most` of the rules, and not with `least`.
    let (mut least, mut most) = (0, all.len());
    if most == 0 || fails(0) {
        cluster.rules = all;
        return None;
    }
    while most - least > 1 {
        let middle = least.midpoint(most);
        if fails(middle) { most = middle } else { least = middle }
    }
    cluster.rules = all;
    let rule = cluster.rules.remove(least);
    Some(LeftOut::rule(rule.name(), format!("rule '{}': with it, {flaw}", rule.name())))
}
