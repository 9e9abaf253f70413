//! A store is restored from a backup: what it says of hosts is of the time before.

use skein_api::cluster::{Contact, CreateVmRequest, OperationKind, StartVmRequest, StopVmRequest, VmRunState};
use skein_cluster::{Answer, Ask, CertificateValidity};

use crate::bench::{Bench, is_off};

const FILE: &str = "name = \"web\"\nmemory = \"1 GiB\"\n[[disk]]\npath = \"/srv/web.qcow2\"\nformat = \"qcow2\"\n";

fn start(vm: &str) -> Ask {
    Ask::StartVm { vm: vm.into(), request: StartVmRequest::default() }
}

fn create(start: bool) -> Ask {
    let request = CreateVmRequest { definition: FILE.into(), start, on: None, dry_run: false };
    Ask::CreateVm { request: Box::new(request) }
}

#[test]
fn a_vm_that_no_host_had_waits_for_hosts_that_are_silent_since() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    assert_eq!(bench.ask(create(false)), Answer::Done);
    let backup = bench.backup();
    bench.run_vm("gamma", "web");

    // Another leader has forgotten nothing, but each has to hear from all.
    for _ in 0..2 {
        bench.restore(backup.clone());
        bench.change_leader();
        ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
        bench.wait_s(12);
        let started = bench.begin(start("web"));
        bench.wait_s(30);
        assert!(bench.sent.is_empty(), "{:?}", bench.sent);
        let words = bench.now(&started).message;
        assert!(words.starts_with("starts wait: ") && words.contains("given to gamma since"), "{words}");
        assert!(bench.controller.attention().iter().any(|words| words.contains("gamma since")));
        bench.ask(Ask::Cancel { operation: started.id });
    }
    let started = bench.begin(start("web"));
    bench.connect("gamma");
    bench.wait_s(12);
    let ended = bench.now(&started);
    assert!(ended.state.is_over() && bench.sent.is_empty(), "{ended:?}");
    assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("gamma"));
    assert!(!bench.controller.attention().iter().any(|words| words.contains("backup")));
}

#[test]
fn a_new_vm_waits_too_and_is_started_once_all_have_reported() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    let backup = bench.backup();
    bench.restore(backup);
    bench.connect("alpha");
    bench.wait_s(12);
    let started = bench.begin(create(true));
    bench.wait_s(5);
    assert!(bench.sent.is_empty());
    bench.ask(is_off("beta"));
    bench.wait_s(12);
    assert_eq!(bench.sent.len(), 1, "{:?}", bench.now(&started));
}

#[test]
fn that_a_host_was_off_is_no_proof_after_a_restore() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(12);
    let failover = bench.begin(is_off("alpha"));
    assert!(matches!(failover.kind, OperationKind::Failover { .. }));
    // The host is off, and its guest was not started elsewhere yet.
    let backup = bench.backup();
    // The host boots, and has its guest again.
    bench.restore(backup);
    bench.sent.clear();
    ["beta", "gamma"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(60);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    assert_eq!(bench.host("alpha").contact, Contact::Lost);
    assert!(bench.now(&failover).state.is_over());
    // It was to be started on another host, which does not have it: its own host may.
    let started = bench.begin(start("web"));
    bench.wait_s(60);
    assert!(bench.sent.is_empty() && bench.now(&started).message.contains("given to alpha since"));
    // Proof that is given anew counts.
    bench.ask(is_off("alpha"));
    bench.wait_s(12);
    assert_eq!(bench.sent.len(), 1);
}

#[test]
fn a_host_that_joined_anew_after_the_backup_is_taken_and_others_are_told_of() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    assert_eq!(bench.ask(Ask::RemoveHost { host: "beta".into(), force: false }), Answer::Done);
    let backup = bench.backup();
    bench.wait_s(10);
    bench.restore(backup);
    bench.connect("alpha");
    // The host has no other certificate than before.
    bench.connect("beta");
    assert_eq!(bench.refusals.last().map(|(host, _)| host.as_str()), Some("beta"));
    let told = bench.controller.attention();
    assert!(told.iter().any(|words| words.starts_with("host 'beta' is refused")), "{told:?}");
    bench.wait_s(150);
    assert!(!bench.controller.attention().iter().any(|words| words.contains("is refused")));

    // The host shows one that was signed after the removal.
    let (begins, ends) = (bench.now.wall, skein_api::cluster::UnixMs(bench.now.wall.0 + 1_000_000));
    bench.validity = Some(CertificateValidity { begins, ends });
    bench.certificates.insert("beta".into(), "beta 2".into());
    bench.connect("beta");
    bench.run_vm("beta", "web");
    assert_eq!(bench.host("beta").contact, Contact::Online);
    let web = bench.controller.vm("web").unwrap();
    assert_eq!((web.host.as_deref(), web.state), (Some("beta"), VmRunState::Running));
}

#[test]
fn what_was_under_way_is_not_done_again() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let stop = bench.begin(Ask::StopVm { vm: "web".into(), request: StopVmRequest { timeout_s: 8, force: true } });
    let drain = bench.drain("beta");
    let ticket = Ask::NewTicket { id: "ticket".into(), host: None, expires_s: None, secret_sha256: "secret".into() };
    assert!(matches!(bench.ask(ticket), Answer::Ticket(_)));
    let backup = bench.backup();
    bench.restore(backup);
    bench.sent.clear();
    ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(60);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    for of in [stop, drain] {
        let of = bench.now(&of);
        assert!(of.state.is_over() && of.moves.iter().all(|of| of.state.is_over()), "{of:?}");
    }
    assert_eq!(bench.controller.vm("web").unwrap().state, VmRunState::Running);
    let join = Ask::Join {
        host: "gamma".into(),
        boot_id: None,
        ticket: "ticket".into(),
        secret_sha256: "secret".into(),
        certificate_sha256: "gamma 1".into(),
    };
    assert!(matches!(bench.ask(join), Answer::Refused(_)), "the ticket may have been used");
}
