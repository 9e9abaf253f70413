//! What a controller was told of a host over one connection: the next report has what is new.

use std::collections::BTreeMap;

use skein_api::{HostFacts, HostLoad, HostReport, Migration, MigrationId, VmLoad, VmView};

use crate::host::Snapshot;

/// How old facts may be that change all the time, in milliseconds: as agents tell them.
const FACTS_MS: u64 = 30_000;

/// What was told.
#[derive(Default)]
pub(crate) struct Told {
    sequence: u64,
    facts_ms: u64,
    load: Option<HostLoad>,
    vms: BTreeMap<String, VmView>,
    loads: BTreeMap<String, VmLoad>,
    migrations: BTreeMap<MigrationId, Migration>,
}

impl Told {
    /// Returns the next report. The controller is told it from now on.
    pub(crate) fn report(&mut self, now_ms: u64, of: Snapshot, facts: impl FnOnce() -> HostFacts) -> HostReport {
        self.sequence += 1;
        let is_due = self.sequence == 1 || now_ms >= self.facts_ms + FACTS_MS;
        if is_due {
            self.facts_ms = now_ms;
        }
        let Snapshot { load, vms, loads, migrations } = of;
        let report = HostReport {
            sequence: self.sequence,
            facts: is_due.then(|| Box::new(facts())),
            load: (self.load != Some(load)).then_some(load),
            nics: Vec::new(),
            vms: changed(&self.vms, &vms),
            vms_gone: self.vms.keys().filter(|name| !vms.contains_key(*name)).cloned().collect(),
            vms_forgotten: Vec::new(),
            vm_loads: if self.loads == loads { BTreeMap::new() } else { loads.clone() },
            migrations: changed(&self.migrations, &migrations),
            contacts: (self.sequence == 1).then(BTreeMap::new),
            moves_asked: Vec::new(),
            led: None,
            // Simulated hosts have no watchdog.
            heard: None,
            watchdog: None,
        };
        (self.load, self.vms, self.loads, self.migrations) = (Some(load), vms, loads, migrations);
        report
    }
}

fn changed<K: Ord, V: Clone + PartialEq>(told: &BTreeMap<K, V>, now: &BTreeMap<K, V>) -> Vec<V> {
    now.iter().filter(|(key, value)| told.get(*key) != Some(*value)).map(|(_, value)| value.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::loads::Loads;

    #[test]
    fn the_first_report_has_everything_and_the_next_what_is_new() {
        let (mut host, loads, mut told) =
            (Host::new(1, 3, 1_000_000_000, 1), Loads::new(None, 1).unwrap(), Told::default());
        let mut report = |host: &Host, ms| told.report(ms, host.snapshot(ms, &loads), || host.facts());
        let first = report(&host, 1000);
        assert_eq!((first.sequence, first.vms.len(), first.vm_loads.len()), (1, 3, 3));
        assert!(first.facts.is_some() && first.load.is_some());
        assert_eq!(report(&host, 1000), HostReport { sequence: 2, ..HostReport::default() });
        assert!(host.mark("mark 1".into()));
        let marked = report(&host, 2000);
        assert_eq!((marked.vms.len(), marked.vms[0].note.as_str(), marked.vm_loads.len()), (1, "mark 1", 3));
        assert!(marked.facts.is_none() && report(&host, 31_000).facts.is_some());
    }
}
