//! Makes what the tests of this folder report.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skein_api::{
    HostFacts, HostLoad, Migration, MigrationId, MigrationPhase, MigrationSlots, Role, SourcePhase, VmLoad, VmState,
    VmView,
};

use super::leader_questions::{LeaderQuestions, QuestionTimes};
use super::report::HostSnapshot;

/// Returns questions to the controllers of `controllers.toml`, with waits that are long but for one that passes.
pub(super) fn questions(dir: &Path) -> Arc<LeaderQuestions> {
    // A busy machine has to ask once more within this time. One test waits to its end.
    let again = Duration::from_secs(10);
    let times = QuestionTimes { answer: Duration::from_secs(60), again, resend: Duration::from_millis(100) };
    LeaderQuestions::new(&dir.join("controllers.toml"), times)
}

pub(super) fn vm(name: &str, state: VmState) -> VmView {
    let definition = Some(format!("name = '{name}'\n"));
    VmView { memory_bytes: 64 << 20, definition, ..VmView::new(name, state) }
}

pub(super) fn migration(id: u64) -> Migration {
    Migration {
        stage: Some(MigrationPhase::Source(SourcePhase::Precopy)),
        begun: "2026-11-25T12:00:00.000Z".into(),
        elapsed_ms: 1,
        ..Migration::new(MigrationId(id), "web1", Role::Source, "hosta", "hostb")
    }
}

pub(super) fn facts() -> HostFacts {
    let slots = MigrationSlots { limit: 4, used: 0 };
    HostFacts {
        name: "hosta".into(),
        boot_id: None,
        ram_bytes: 1 << 30,
        ram_available_bytes: 1 << 29,
        kept_ram_bytes: 0,
        room: None,
        hugepages: vec![],
        cpus: 2,
        cpu_vendor: String::new(),
        cpu_flags: Default::default(),
        kvm: Ok(()),
        qemu: Err("none".into()),
        bridges: Default::default(),
        taps_in_use: Default::default(),
        vms: vec![],
        incoming: slots,
        outgoing: slots,
        journal: Ok(()),
        files: vec![],
        digests: Default::default(),
        nics: vec![],
        swtpm: None,
        closed: None,
    }
}

pub(super) fn snapshot() -> HostSnapshot {
    let vms = [vm("web1", VmState::Running), vm("web2", VmState::Stopped)];
    HostSnapshot {
        facts: Some(Arc::new(facts())),
        load: HostLoad { cpu_millicores: 1500, ..HostLoad::default() },
        nics: Vec::new(),
        vms: vms.into_iter().map(|vm| (vm.name.clone(), Arc::new(vm))).collect(),
        vm_loads: [("web1".to_owned(), VmLoad { cpu_millicores: 700, ..VmLoad::default() })].into(),
        migrations: [(MigrationId(1), Arc::new(migration(1)))].into(),
        contacts: [("hostb".to_owned(), true)].into(),
        forgotten: Default::default(),
    }
}
