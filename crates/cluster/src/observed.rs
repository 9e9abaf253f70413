//! What agents have said lately: nothing of this is in the store.

use std::collections::{BTreeMap, VecDeque};

use skein_api::{
    Hello, HostFacts, HostLoad, HostReport, Migration, MigrationId, NicRates, VmLoad, VmView, WatchdogState,
};

use crate::cpu_models::{HostCpuModels, cpu_models};
use crate::records::{CertificateValidity, HostRecord};

/// How many reports of a host wait at most to be acknowledged.
const REPORTS_MAX: usize = 16;

/// The time in which a host tells others that it has a leader, by what it has told this one, by the clock that never
/// jumps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attests {
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
}

/// Counts the connections of agents to a controller.
pub type SessionId = u64;

/// The most migrations that are remembered of a host.
const MIGRATIONS_MAX: usize = 200;

/// A certificate that an agent shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownCertificate {
    /// The SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// From when until when it is valid. `None`: not known.
    pub validity: Option<CertificateValidity>,
}

impl From<String> for ShownCertificate {
    fn from(sha256: String) -> ShownCertificate {
        ShownCertificate { sha256, validity: None }
    }
}

/// What a host's agent has said since it connected. What was said before a connection broke stays until the agent is
/// there again.
#[derive(Debug, Default)]
pub struct Observed {
    /// The connection; `None`: there is none.
    pub session: Option<SessionId>,
    /// The agent's first line.
    pub hello: Option<Hello>,
    /// The certificate that the agent showed.
    pub certificate: ShownCertificate,
    /// When the agent last said anything, by the clock that never jumps; `None`: not since this controller began to
    /// lead.
    pub heard_ms: Option<u64>,
    /// Whether the connection's first report has come: then what is here is whole.
    pub is_whole: bool,
    /// Whether a report has come since this controller began to lead.
    pub has_reported: bool,
    /// What the host is.
    pub facts: Option<HostFacts>,
    /// The CPU models of these facts, if they tell any.
    pub(crate) cpu_models: Option<HostCpuModels>,
    /// How busy the host is.
    pub load: Option<HostLoad>,
    /// How much passes each NIC.
    pub nics: Vec<NicRates>,
    /// The VMs.
    pub vms: BTreeMap<String, VmView>,
    /// How busy the guests are.
    pub vm_loads: BTreeMap<String, VmLoad>,
    /// The migrations.
    pub migrations: BTreeMap<MigrationId, Migration>,
    /// The connection's reports that were not acknowledged: their numbers, and when they came.
    pub(crate) reports: VecDeque<(u64, u64)>,
    /// The host's watchdog. `None`: the host is to have none.
    pub(crate) watchdog: Option<WatchdogState>,
    /// The number of the voters by which the agent says that it goes.
    pub(crate) voters: u64,
    /// Since when and until when the host surely tells others that it has a leader.
    pub(crate) attests: Option<Attests>,
}

impl Observed {
    /// Begins a connection: its first report says everything anew.
    pub(crate) fn begin(&mut self, session: SessionId, hello: Hello, certificate: ShownCertificate, now_ms: u64) {
        self.session = Some(session);
        self.hello = Some(hello);
        self.certificate = certificate;
        self.heard_ms = Some(now_ms);
        self.is_whole = false;
        self.reports.clear();
        self.voters = 0;
        self.watchdog = None;
        self.note_open();
    }

    /// Returns why the host takes no guest. `None`: it takes guests, as far as it tells.
    pub(crate) fn closed(&self) -> Option<&str> {
        self.facts.as_ref()?.closed.as_deref()
    }

    /// Notes that the host takes guests, until it says otherwise.
    pub(crate) fn note_open(&mut self) {
        if let Some(facts) = &mut self.facts {
            facts.closed = None;
        }
    }

    /// Returns whether a host's record has all that the agent said which is kept.
    pub(crate) fn is_as_in(&self, stored: &HostRecord) -> bool {
        let has_hello = |hello: &Hello| (&hello.addresses, &hello.boot_id) == (&stored.addresses, &stored.boot_id);
        let ShownCertificate { sha256, validity } = &self.certificate;
        stored.certificates.last() == Some(sha256)
            && stored.signed.as_ref() != Some(sha256)
            && validity.is_none_or(|validity| stored.validity == Some(validity))
            && self.hello.as_ref().is_none_or(has_hello)
            && self.cpu_models.as_ref().is_none_or(|models| *models == stored.cpu_models)
    }

    /// Takes a report over. Returns the names of VMs that have changed or are gone.
    pub(crate) fn report(&mut self, report: HostReport, now_ms: u64) -> Vec<String> {
        self.heard_ms = Some(now_ms);
        // One that is not kept is acknowledged with a later one.
        if self.reports.len() < REPORTS_MAX {
            self.reports.push_back((report.sequence, now_ms));
        }
        let mut changed: Vec<String> = Vec::new();
        if !self.is_whole {
            let is_gone = |name: &&String| !report.vms.iter().any(|vm| vm.name == **name);
            changed.extend(self.vms.keys().filter(is_gone).cloned());
            self.vms.clear();
            self.migrations.clear();
            self.watchdog = None;
            self.is_whole = true;
        }
        self.has_reported = true;
        for name in report.vms_gone {
            self.vms.remove(&name);
            self.vm_loads.remove(&name);
            changed.push(name);
        }
        for vm in report.vms {
            changed.push(vm.name.clone());
            self.vms.insert(vm.name.clone(), vm);
        }
        if let Some(facts) = report.facts {
            self.cpu_models = cpu_models(&facts).or(self.cpu_models.take());
            self.facts = Some(*facts);
        }
        self.watchdog = report.watchdog.or(self.watchdog.take());
        self.load = report.load.or(self.load);
        if !report.nics.is_empty() {
            self.nics = report.nics;
        }
        if !report.vm_loads.is_empty() {
            self.vm_loads = report.vm_loads;
        }
        for migration in report.migrations {
            self.migrations.insert(migration.id, migration);
        }
        self.forget_migrations();
        changed
    }

    /// Forgets the migrations that began first, of those that are over.
    fn forget_migrations(&mut self) {
        while self.migrations.len() > MIGRATIONS_MAX {
            let over = self.migrations.values().filter(|migration| migration.stage.is_none());
            let oldest = over.min_by(|a, b| (&a.begun, a.id).cmp(&(&b.begun, b.id))).map(|migration| migration.id);
            let id = oldest.or_else(|| self.migrations.keys().next().copied());
            let Some(id) = id else { break };
            self.migrations.remove(&id);
        }
    }
}
