//! Finds what a controller has not been told yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_api::{
    HostFacts, HostLoad, HostReport, Migration, MigrationId, MigrationSlots, NicRates, VmLoad, VmView, WatchdogState,
};

/// Says how long what changes all the time of a host's facts (its free memory and its room) may be old. The load says
/// the most important of it more often.
const VOLATILE_FACTS_AGE_MAX: Duration = Duration::from_secs(30);

/// A host at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HostSnapshot {
    pub(crate) facts: Option<Arc<HostFacts>>,
    pub(crate) load: HostLoad,
    pub(crate) nics: Vec<NicRates>,
    pub(crate) vms: BTreeMap<String, Arc<VmView>>,
    pub(crate) vm_loads: BTreeMap<String, VmLoad>,
    pub(crate) migrations: BTreeMap<MigrationId, Arc<Migration>>,
    pub(crate) contacts: BTreeMap<String, bool>,
    /// The VMs that a person had the host forget lately, and that it does not have.
    pub(crate) forgotten: BTreeSet<String>,
}

/// What one controller was told over one connection.
#[derive(Default)]
pub(crate) struct Told {
    sequence: u64,
    /// When the facts were told, and which.
    facts: Option<(Instant, Arc<HostFacts>)>,
    load: Option<HostLoad>,
    nics: Vec<NicRates>,
    vms: BTreeMap<String, Arc<VmView>>,
    vm_loads: BTreeMap<String, VmLoad>,
    migrations: BTreeMap<MigrationId, Arc<Migration>>,
    contacts: Option<BTreeMap<String, bool>>,
    forgotten: BTreeSet<String>,
    watchdog: Option<WatchdogState>,
}

impl Told {
    /// Returns the next report: what is new, of everything if it is the first. The controller is told it from now on.
    pub(crate) fn report(&mut self, host: &HostSnapshot, now: Instant) -> HostReport {
        self.sequence += 1;
        let report = HostReport {
            sequence: self.sequence,
            facts: self.new_facts(host, now).map(|facts| Box::new(HostFacts::clone(facts))),
            load: Some(host.load).filter(|load| self.load != Some(*load)),
            nics: Some(&host.nics).filter(|nics| self.nics != **nics).cloned().unwrap_or_default(),
            vms: changed(&self.vms, &host.vms).cloned().collect(),
            vms_gone: self.vms.keys().filter(|name| !host.vms.contains_key(*name)).cloned().collect(),
            vms_forgotten: host.forgotten.difference(&self.forgotten).cloned().collect(),
            vm_loads: Some(&host.vm_loads).filter(|loads| self.vm_loads != **loads).cloned().unwrap_or_default(),
            migrations: changed(&self.migrations, &host.migrations).cloned().collect(),
            contacts: Some(&host.contacts).filter(|contacts| self.contacts.as_ref() != Some(contacts)).cloned(),
            moves_asked: Vec::new(),
            led: None,
            heard: None,
            watchdog: None,
        };
        if report.facts.is_some() {
            self.facts = host.facts.clone().map(|facts| (now, facts));
        }
        self.load = Some(host.load);
        self.nics.clone_from(&host.nics);
        self.vms.clone_from(&host.vms);
        self.vm_loads.clone_from(&host.vm_loads);
        self.migrations.clone_from(&host.migrations);
        self.contacts = Some(host.contacts.clone());
        self.forgotten.clone_from(&host.forgotten);
        report
    }

    /// Returns what is new of the host's watchdog. The controller is told it from now on.
    pub(crate) fn new_watchdog(&mut self, now: Option<WatchdogState>) -> Option<WatchdogState> {
        let new = now.filter(|now| self.watchdog.as_ref() != Some(now))?;
        self.watchdog = Some(new.clone());
        Some(new)
    }

    fn new_facts<'a>(&self, host: &'a HostSnapshot, now: Instant) -> Option<&'a Arc<HostFacts>> {
        let new = host.facts.as_ref()?;
        let Some((told, last)) = &self.facts else { return Some(new) };
        let is_same = Arc::ptr_eq(last, new) || **last == **new;
        let is_due = now.duration_since(*told) >= VOLATILE_FACTS_AGE_MAX || steady(last) != steady(new);
        (!is_same && is_due).then_some(new)
    }
}

/// Returns what is not what it was, or was not there.
fn changed<'a, Key: Ord, Value: PartialEq>(
    told: &'a BTreeMap<Key, Arc<Value>>,
    now: &'a BTreeMap<Key, Arc<Value>>,
) -> impl Iterator<Item = &'a Value> {
    let is_told =
        |key: &Key, value: &Arc<Value>| told.get(key).is_some_and(|told| Arc::ptr_eq(told, value) || **told == **value);
    now.iter().filter(move |(key, value)| !is_told(key, value)).map(|(_, value)| &**value)
}

/// Returns facts without what changes all the time, or is told by a report's other fields.
fn steady(facts: &HostFacts) -> HostFacts {
    let idle = |slots: &MigrationSlots| MigrationSlots { used: 0, ..*slots };
    let mut steady = HostFacts {
        ram_available_bytes: 0,
        kept_ram_bytes: 0,
        room: None,
        vms: Vec::new(),
        incoming: idle(&facts.incoming),
        outgoing: idle(&facts.outgoing),
        taps_in_use: Default::default(),
        ..facts.clone()
    };
    steady.hugepages.iter_mut().for_each(|pool| pool.free = 0);
    steady
}

#[cfg(test)]
mod tests {
    use super::super::test_parts as parts;
    use super::*;

    #[test]
    fn the_first_report_has_everything_and_the_next_what_is_new() {
        let (mut told, now) = (Told::default(), Instant::now());
        let mut host = parts::snapshot();
        let first = told.report(&host, now);
        assert_eq!((first.sequence, first.vms.len(), first.vm_loads.len(), first.migrations.len()), (1, 2, 1, 1));
        assert!(first.facts.is_some() && first.load.is_some() && first.contacts.is_some());
        let nothing = HostReport { sequence: 2, ..HostReport::default() };
        assert_eq!(told.report(&host, now), nothing);

        // An equal value in another place is no news.
        host.vms = host.vms.iter().map(|(name, vm)| (name.clone(), Arc::new(VmView::clone(vm)))).collect();
        host.facts = Some(Arc::new(HostFacts::clone(host.facts.as_ref().unwrap())));
        assert_eq!(told.report(&host, now), HostReport { sequence: 3, ..HostReport::default() });

        host.vms.insert("web1".into(), Arc::new(parts::vm("web1", skein_api::VmState::Paused)));
        host.vms.remove("web2");
        host.vms.insert("web3".into(), Arc::new(parts::vm("web3", skein_api::VmState::Running)));
        let report = told.report(&host, now);
        let names: Vec<&str> = report.vms.iter().map(|vm| &*vm.name).collect();
        assert_eq!((names, &*report.vms_gone), (vec!["web1", "web3"], &["web2".to_owned()][..]));
        assert!(report.facts.is_none() && report.load.is_none() && report.migrations.is_empty());

        host.load.cpu_millicores += 1;
        host.vm_loads.insert("web3".into(), VmLoad { cpu_millicores: 5, ..VmLoad::default() });
        host.contacts.insert("hostb".into(), false);
        let report = told.report(&host, now);
        assert_eq!(report.vm_loads, host.vm_loads, "they come together");
        assert_eq!((report.load, report.contacts.unwrap().len()), (Some(host.load), 1));
        assert!(report.vms.is_empty());

        host.forgotten.insert("web2".into());
        assert_eq!(told.report(&host, now).vms_forgotten, ["web2"]);
        // A migration that is old is not told any more, and no news if it were.
        host.migrations.clear();
        assert_eq!(told.report(&host, now), HostReport { sequence: 7, ..HostReport::default() });
        // Another connection begins from the first.
        let first = Told::default().report(&host, now);
        assert_eq!((first.vms.len(), &*first.vms_forgotten), (2, &["web2".to_owned()][..]));
    }

    #[test]
    fn free_memory_alone_is_told_now_and_then() {
        let (mut told, now) = (Told::default(), Instant::now());
        let mut host = parts::snapshot();
        told.report(&host, now);
        let mut change = |change: &dyn Fn(&mut HostFacts), at: Instant| {
            let mut facts = HostFacts::clone(host.facts.as_ref().unwrap());
            change(&mut facts);
            host.facts = Some(Arc::new(facts));
            told.report(&host, at).facts.is_some()
        };
        assert!(!change(&|facts| facts.ram_available_bytes += 4096, now));
        assert!(!change(&|facts| facts.room = Some(skein_api::Room::default()), now));
        assert!(!change(&|facts| facts.incoming.used += 1, now));
        assert!(change(&|facts| facts.incoming.limit += 1, now), "the limit is no such number");
        assert!(change(&|facts| facts.closed = Some("it is to be booted".into()), now), "nobody waits for that");
        assert!(change(&|facts| facts.bridges = ["br0".to_owned()].into(), now));
        assert!(!change(&|facts| facts.ram_available_bytes += 4096, now + VOLATILE_FACTS_AGE_MAX / 2));
        assert!(change(&|_| (), now + VOLATILE_FACTS_AGE_MAX), "it differs from what was told");
        assert!(!change(&|_| (), now + 3 * VOLATILE_FACTS_AGE_MAX), "and now it does not");
    }
}
