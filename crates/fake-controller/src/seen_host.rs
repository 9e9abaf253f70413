//! Puts reports together.

use std::collections::BTreeMap;

use skein_api::{HostFacts, HostLoad, HostReport, Migration, MigrationId, VmLoad, VmView};

/// A host as its reports say.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct SeenHost {
    /// The number of the last report.
    pub sequence: u64,
    pub facts: Option<HostFacts>,
    pub load: Option<HostLoad>,
    pub vms: BTreeMap<String, VmView>,
    pub vm_loads: BTreeMap<String, VmLoad>,
    /// All migrations that were ever reported, as they were last reported.
    pub migrations: BTreeMap<MigrationId, Migration>,
    pub contacts: BTreeMap<String, bool>,
}

impl SeenHost {
    /// Takes the next report.
    ///
    /// # Panics
    ///
    /// The report is not the next one.
    pub fn take(&mut self, report: HostReport) {
        assert_eq!(report.sequence, self.sequence + 1, "a report is missing");
        self.sequence = report.sequence;
        if let Some(facts) = report.facts {
            self.facts = Some(*facts);
        }
        self.load = report.load.or(self.load);
        for name in report.vms_gone {
            assert!(self.vms.remove(&name).is_some(), "{name} is gone and was never there");
            self.vm_loads.remove(&name);
        }
        self.vms.extend(report.vms.into_iter().map(|vm| (vm.name.clone(), vm)));
        if !report.vm_loads.is_empty() {
            self.vm_loads = report.vm_loads;
        }
        self.migrations.extend(report.migrations.into_iter().map(|migration| (migration.id, migration)));
        if let Some(contacts) = report.contacts {
            self.contacts = contacts;
        }
    }
}
