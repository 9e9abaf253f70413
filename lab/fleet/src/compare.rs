//! What the controller shows, against what agents know.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::VmState;
use skein_api::cluster::{Contact, Host, Vm, VmRunState};

use crate::processes::Look;
use crate::words::Known;

/// Returns what the controller shows otherwise than the agents know, who were asked before and after.
pub(crate) fn oddities(hosts: &[Host], vms: &[Vm], before: &Look, after: &Look) -> Vec<String> {
    let mut odd = Vec::new();
    let looks = || [before, after].into_iter().flat_map(|look| look.hosts.values());
    let gone: BTreeSet<&str> = looks().filter(|known| !known.is_there).map(|known| known.host.as_str()).collect();
    let shown: BTreeMap<&str, &Host> = hosts.iter().map(|host| (host.name.as_str(), host)).collect();
    for name in before.hosts.keys().filter(|name| !gone.contains(name.as_str())) {
        match shown.get(name.as_str()).map(|host| host.contact) {
            Some(Contact::Online) => {}
            contact => odd.push(format!("{name} reports, and is {contact:?}")),
        }
    }
    let mut places: BTreeMap<&str, Vec<(&str, VmState)>> = BTreeMap::new();
    let mut moving: BTreeSet<&str> = BTreeSet::new();
    for known in looks() {
        for (name, vm) in &known.vms {
            places.entry(name).or_default().push((&known.host, vm.state));
            if vm.is_moving || vm.state == VmState::Starting {
                moving.insert(name);
            }
        }
    }
    for vm in vms {
        let host = vm.host.as_deref().unwrap_or_default();
        let at = places.remove(vm.name.as_str()).unwrap_or_default();
        let is_there = at.iter().any(|(of, state)| *of == host && is_same(vm.state, *state));
        let excused = moving.contains(vm.name.as_str()) && at.iter().any(|(of, _)| *of == host);
        // Of hosts that are cut off or off nobody knows.
        if !is_there && !excused && !gone.contains(host) && !at.iter().any(|(of, _)| gone.contains(of)) {
            odd.push(format!("{} is {:?} on '{host}', and by agents {at:?}", vm.name, vm.state));
        }
    }
    let unknown = places.iter().filter(|(_, at)| !at.iter().any(|(of, _)| gone.contains(of)));
    odd.extend(unknown.map(|(name, at)| format!("{name} is not shown, and by agents {at:?}")));
    odd
}

fn is_same(shown: VmRunState, known: VmState) -> bool {
    matches!(
        (shown, known),
        (VmRunState::Running, VmState::Running)
            | (VmRunState::Stopped, VmState::Stopped)
            | (VmRunState::Starting, VmState::Starting)
    )
}

/// Returns the guests that run on two hosts, and are on their way to neither.
pub(crate) fn run_twice(look: &Look) -> BTreeSet<String> {
    let mut once: BTreeSet<&str> = BTreeSet::new();
    let runs = |known: &Known| {
        let calm = known.vms.iter().filter(|(_, vm)| vm.state == VmState::Running && !vm.is_moving);
        calm.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let all: Vec<String> = look.hosts.values().flat_map(runs).collect();
    all.iter().filter(|name| !once.insert(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use skein_api::cluster::UnixMs;

    use super::*;
    use crate::words::KnownVm;

    fn known(host: &str, is_there: bool, vms: &[(&str, VmState, bool)]) -> (String, Known) {
        let of = |(name, state, is_moving): &(&str, VmState, bool)| {
            ((*name).to_owned(), KnownVm { state: *state, is_moving: *is_moving })
        };
        (host.to_owned(), Known { host: host.into(), is_there, vms: vms.iter().map(of).collect() })
    }

    fn host(name: &str, contact: Contact) -> Host {
        Host {
            name: name.into(),
            contact,
            contact_since: UnixMs(0),
            mode: Default::default(),
            drain: None,
            settings: Default::default(),
            addresses: Vec::new(),
            release: None,
            certificate_ends: None,
            cpus: None,
            ram_bytes: None,
            load: None,
            nics: Vec::new(),
            last_load: None,
            vms_running: 0,
            incoming: 0,
            outgoing: 0,
            migrations: Vec::new(),
            note: String::new(),
            power: None,
            watchdog: None,
            version: 1,
        }
    }

    fn vm(name: &str, host: &str, state: VmRunState) -> Vm {
        Vm {
            name: name.into(),
            state,
            host: Some(host.into()),
            since: UnixMs(0),
            ram_bytes: 1,
            cpus: 1,
            load: None,
            operation: None,
            migration: None,
            settings: Default::default(),
            adopted: false,
            note: String::new(),
            version: 1,
        }
    }

    #[test]
    fn what_differs_is_told_and_what_changes_meanwhile_is_not() {
        use VmState::{Running, Stopped};
        let before = [
            known("h1", true, &[("a", Running, false), ("b", Running, true), ("c", Running, false)]),
            known("h2", false, &[("d", Stopped, false)]),
            known("h3", true, &[("e", Running, false)]),
        ];
        let after = [
            known("h1", true, &[("a", Running, false), ("b", Running, true), ("c", Stopped, false)]),
            known("h2", false, &[("d", Stopped, false)]),
            known("h3", true, &[("e", Running, false)]),
        ];
        let (before, after) = (
            Look { reports: 0, hosts: before.into_iter().collect() },
            Look { reports: 0, hosts: after.into_iter().collect() },
        );
        let hosts = [host("h1", Contact::Online), host("h2", Contact::Lost), host("h3", Contact::Online)];
        let mut vms = vec![
            vm("a", "h1", VmRunState::Running),
            vm("b", "h1", VmRunState::Handover),
            vm("c", "h1", VmRunState::Stopped),
            vm("d", "h2", VmRunState::Lost),
            vm("e", "h3", VmRunState::Running),
        ];
        assert_eq!(oddities(&hosts, &vms, &before, &after), [""; 0]);
        vms[0].host = Some("h3".into());
        let lost = [host("h1", Contact::Lost), hosts[1].clone(), hosts[2].clone()];
        let odd = oddities(&lost, &vms[..4], &before, &after);
        assert!(odd.len() == 3 && odd[0].contains("h1 reports, and is Some(Lost)"), "{odd:?}");
        assert!(odd[1].starts_with("a is Running on 'h3'") && odd[2].starts_with("e is not shown"), "{odd:?}");
    }

    #[test]
    fn a_guest_that_runs_twice_is_seen() {
        use VmState::Running;
        let one = known("h1", true, &[("a", Running, false), ("b", Running, true)]);
        let two = known("h2", true, &[("a", Running, false), ("b", Running, false)]);
        let look = Look { reports: 0, hosts: [one, two].into() };
        assert_eq!(run_twice(&look), BTreeSet::from(["a".to_owned()]));
    }
}
