//! A VM starts with the best CPU model that all hosts of a group have.

use std::path::PathBuf;

use skein_api::cluster::{CreateVmRequest, HostSettings, StartVmRequest, VmRunState};
use skein_api::{Accel, AccelFacts, CpuModel, HostReport, QemuFacts, QemuVersion, Request, VmOrigin, VmState};
use skein_cluster::Ask;

use crate::bench::{Bench, facts, is_off};

const FILE: &str = "name = 'web'\nmemory = '1 GiB'\ncpus = 2\ncpu = 'baseline,-svm'\n";
const OLD: &[(&str, u32)] = &[("Nehalem-v1", 40), ("Haswell-v4", 70)];
const NEW: &[(&str, u32)] = &[("Nehalem-v1", 40), ("Haswell-v4", 71), ("Skylake-Server-v4", 90)];

/// Has a host tell which CPU models it can give whole under an accelerator.
fn tell_models(bench: &mut Bench, host: &str, accel: Accel, models: &[(&str, u32)]) {
    let whole = models.iter().map(|(name, features)| (*name, vec![], Some(*features)));
    // What a host lacks of a model, and what was not counted, does not count.
    let others = [("EPYC-v4", vec!["sse4a".to_owned()], Some(95)), ("host", vec![], None)];
    let model = |(name, missing, feature_count): (&str, _, _)| CpuModel { name: name.into(), missing, feature_count };
    let cpu_models = whole.chain(others).map(model).collect();
    let qemu = QemuFacts {
        program: PathBuf::from("/usr/bin/qemu-system-x86_64"),
        version: QemuVersion { major: 10, minor: 0, micro: 0 },
        machines: vec![],
        accels: vec![AccelFacts { accel, cpu_models, features: None }],
    };
    let facts = Some(Box::new(skein_api::HostFacts { qemu: Ok(qemu), ..facts(host) }));
    bench.tell(host, HostReport { sequence: 2, facts, ..HostReport::default() });
}

fn set_group(bench: &mut Bench, host: &str, group: &str) {
    bench.set_host(host, HostSettings { group: Some(group.into()), ..HostSettings::default() });
}

fn create(on: Option<&str>, dry_run: bool) -> Ask {
    let on = on.map(str::to_owned);
    Ask::CreateVm { request: Box::new(CreateVmRequest { definition: FILE.into(), start: true, on, dry_run }) }
}

/// Returns the CPU model of the last start that was asked for.
fn started_with(bench: &Bench) -> Option<String> {
    let Request::VmStart { options, .. } = &bench.sent.last().expect("a start").request else { panic!("no start") };
    options.cpu_model.clone()
}

#[test]
fn the_group_of_the_host_says_which_model() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    for (host, models) in [("alpha", NEW), ("beta", OLD), ("gamma", NEW)] {
        tell_models(&mut bench, host, Accel::Kvm, models);
    }
    let would = bench.shown(create(Some("alpha"), true));
    let words = "its CPU model is Haswell-v4, the best that all 3 hosts without a group have";
    assert!(would.moves[0].reason.contains(words), "{would:?}");

    set_group(&mut bench, "alpha", "web");
    set_group(&mut bench, "gamma", "web");
    let begun = bench.begin(create(Some("alpha"), false));
    assert_eq!(started_with(&bench).as_deref(), Some("Skylake-Server-v4"));
    let words = "its CPU model is Skylake-Server-v4, the best that all 2 hosts of the group web have";
    assert!(begun.moves[0].reason.contains(words), "{begun:?}");

    // A VM that is off on its host gets what the group has by then.
    bench.obey_all();
    bench.set_vm_file("alpha", "web", VmState::Stopped, FILE);
    set_group(&mut bench, "beta", "web");
    bench.begin(Ask::StartVm { vm: "web".into(), request: StartVmRequest::default() });
    let Request::VmStart { from: VmOrigin::Name(_), .. } = &bench.sent[0].request else { panic!() };
    assert_eq!(started_with(&bench).as_deref(), Some("Haswell-v4"));
}

#[test]
fn what_a_host_told_counts_while_the_host_is_away_and_what_was_never_told_does_not() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    tell_models(&mut bench, "alpha", Accel::Kvm, NEW);
    tell_models(&mut bench, "beta", Accel::Kvm, OLD);
    bench.disconnect("beta");
    bench.wait_s(30);
    bench.change_leader();
    bench.connect("alpha");
    bench.connect("gamma");
    let would = bench.shown(create(Some("alpha"), true));
    let words = "Haswell-v4, the best that all 2 hosts without a group have (not counted: gamma)";
    assert!(would.moves[0].reason.contains(words), "{would:?}");
    let why = bench.refused(create(Some("gamma"), true)).message;
    assert!(why.contains("which CPU models it has is not known"), "{why}");
}

#[test]
fn hosts_with_nothing_in_common_take_no_such_guest() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    tell_models(&mut bench, "alpha", Accel::Tcg, &[("Westmere-v1", 50)]);
    tell_models(&mut bench, "beta", Accel::Tcg, &[("Opteron_G2-v1", 40)]);
    let would = bench.shown(create(None, true));
    assert_eq!(would.moves[0].to, None);
    assert!(would.moves[0].reason.contains("the 2 hosts without a group have no CPU model in common"), "{would:?}");
}

#[test]
fn a_guest_of_a_dead_host_starts_with_a_model_too() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    tell_models(&mut bench, "alpha", Accel::Kvm, OLD);
    tell_models(&mut bench, "beta", Accel::Kvm, NEW);
    bench.set_vm_file("alpha", "web", VmState::Running, FILE);
    bench.disconnect("alpha");
    bench.wait_s(15);
    bench.ask(is_off("alpha"));
    bench.wait_s(1);
    assert_eq!((bench.sent[0].host.as_str(), started_with(&bench).as_deref()), ("beta", Some("Haswell-v4")));
    bench.obey_all();
    assert_eq!(bench.controller.vm("web").map(|vm| vm.state), Some(VmRunState::Running));
}
