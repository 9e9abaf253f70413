//! A host is taken out of the cluster, and joins anew.

use skein_api::cluster::{Contact, HostMode, Role};
use skein_api::{MigrationId, VmState};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, is_off};

fn by_hand(host: &str, to: &str) -> Ask {
    let migration = Some(MigrationId(7));
    Ask::MoveByHand { host: host.into(), vm: "web".into(), to: to.into(), migration }
}

fn remove(host: &str, force: bool) -> Ask {
    Ask::RemoveHost { host: host.into(), force }
}

/// Lets a host join by a ticket, with a certificate.
fn join(bench: &mut Bench, host: &str, certificate: &str) {
    let (id, secret_sha256) = (format!("ticket of {certificate}"), String::from("secret"));
    let new = Ask::NewTicket { id: id.clone(), host: None, expires_s: None, secret_sha256: secret_sha256.clone() };
    assert!(matches!(bench.ask(new), Answer::Ticket(_)));
    let certificate_sha256 = certificate.into();
    let join = Ask::Join { host: host.into(), boot_id: None, ticket: id, secret_sha256, certificate_sha256 };
    assert_eq!(bench.ask(join), Answer::Done);
}

fn is_refused(bench: &mut Bench, host: &str) -> bool {
    let before = bench.refusals.len();
    bench.connect(host);
    let refused = &bench.refusals[before..];
    assert!(refused.iter().all(|(_, refusal)| {
        refusal.message.contains("was removed from the cluster") && refusal.cure.contains("skein-controller ticket")
    }));
    !refused.is_empty()
}

#[test]
fn a_host_that_was_removed_is_refused_until_it_joins_anew() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    assert_eq!(bench.ask(remove("alpha", false)), Answer::Done);
    // Its agent runs on, is told, and dials again.
    assert_eq!(bench.refusals.len(), 1);
    assert!(is_refused(&mut bench, "alpha"));
    assert!(bench.controller.host("alpha").is_none());

    join(&mut bench, "alpha", "alpha 2");
    // The certificate of before lets nobody in.
    assert!(is_refused(&mut bench, "alpha"));
    assert!(bench.controller.host_refusal("alpha", &"alpha 1".to_owned().into()).is_some());
    assert_eq!(bench.host("alpha").contact, Contact::Joined);
    bench.certificates.insert("alpha".into(), "alpha 2".into());
    let is_told = |bench: &Bench| bench.controller.attention().iter().any(|words| words.contains("is refused"));
    assert!(is_told(&bench));
    assert!(!is_refused(&mut bench, "alpha"));
    assert!(!is_told(&bench), "it is taken again");
    assert_eq!((bench.host("alpha").contact, bench.host("alpha").mode), (Contact::Online, HostMode::Active));

    // A second life ends as the first.
    bench.ask(remove("alpha", false));
    join(&mut bench, "alpha", "alpha 3");
    for old in ["alpha 1", "alpha 2"] {
        assert!(bench.controller.host_refusal("alpha", &old.to_owned().into()).is_some(), "{old}");
    }
    assert!(bench.controller.host_refusal("alpha", &"alpha 3".to_owned().into()).is_none());
}

#[test]
fn what_a_removed_host_says_is_not_heard() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.ask(remove("alpha", false));
    bench.run_vm("alpha", "web");
    bench.connect("alpha");
    assert!(bench.controller.vm("web").is_none());
    // A controller that takes the lead reads who was removed.
    assert!(bench.controller.tables().removed.contains_key("alpha"));
}

#[test]
fn what_keeps_a_host_is_told() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.set_vm("alpha", "old", VmState::Stopped);
    for force in [false, true] {
        let refused = bench.refused(remove("alpha", force));
        assert!(refused.message.contains("'alpha' has VMs that run: web"), "{refused:?}");
        assert!(refused.cure.contains("skein host drain alpha"), "{refused:?}");
    }
    bench.end_vm("alpha", "web");
    bench.wait_s(70);
    let refused = bench.refused(remove("alpha", false));
    assert!(refused.message.contains("'alpha' has VMs that are off: old"), "{refused:?}");
    assert!(refused.cure.contains("skein vm forget old") && refused.cure.contains("--force"), "{refused:?}");
    assert_eq!(bench.ask(remove("alpha", true)), Answer::Done);
    assert!(bench.controller.vm("old").is_none());
}

#[test]
fn a_guest_that_runs_twice_keeps_both_its_hosts() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.run_vm("beta", "web");
    for host in ["alpha", "beta"] {
        assert!(bench.refused(remove(host, true)).message.contains("web"));
    }
}

#[test]
fn a_host_that_is_lost_may_have_guests_that_run() {
    let mut bench = Bench::new(&["alpha"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(12);
    let refused = bench.refused(remove("alpha", true));
    assert!(refused.message.contains("'alpha' has VMs that may run: web"), "{refused:?}");
    assert!(refused.cure.contains("skein host fence alpha --is-off"), "{refused:?}");
    bench.ask(is_off("alpha"));
    bench.wait_s(1);
    // Nobody else takes it: it is forgotten with its host only by force.
    assert!(matches!(bench.ask(remove("alpha", false)), Answer::Refused(_)));
    assert_eq!(bench.ask(remove("alpha", true)), Answer::Done);
}

#[test]
fn the_last_token_of_an_admin_stays() {
    let mut bench = Bench::new(&["alpha"]);
    let token = |name: &str, role, expires_s| {
        let secret_sha256 = name.to_owned();
        Ask::NewToken { name: name.into(), role, expires_s, secret_sha256 }
    };
    let removal = |name: &str| Ask::RemoveToken { name: name.into() };
    for (name, role, expires_s) in
        [("first", Role::Admin, None), ("old", Role::Admin, Some(60)), ("anna", Role::Operator, None)]
    {
        assert!(matches!(bench.ask(token(name, role, expires_s)), Answer::Token(_)), "{name}");
    }
    bench.wait_s(61);
    let refused = bench.refused(removal("first"));
    assert!(refused.message.contains("last token of an admin"), "{refused:?}");
    assert!(matches!(bench.ask(token("second", Role::Admin, None)), Answer::Token(_)));
    for name in ["first", "old", "anna"] {
        assert_eq!(bench.ask(removal(name)), Answer::Done, "{name}");
    }
    bench.refused(removal("second"));
}

#[test]
fn a_dead_host_whose_guests_found_no_place_is_not_removed_without_a_word_about_them() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm_of("beta", "web", 60);
    bench.run_vm_of("alpha", "big", 60);
    bench.disconnect("beta");
    bench.wait_s(12);
    bench.begin(is_off("beta"));
    bench.wait_s(3);
    let refused = bench.refused(remove("beta", false));
    assert!(refused.message.contains("ended with it and run nowhere: web"), "{refused:?}");
    assert!(refused.cure.contains("skein vm start web") && refused.cure.contains("with their definitions"));
    assert_eq!(bench.ask(remove("beta", true)), Answer::Done);
}

#[test]
fn a_dead_host_is_not_removed_while_its_guests_are_being_started() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    assert_eq!(bench.ask(by_hand("beta", "gamma")), Answer::Done);
    bench.disconnect("beta");
    bench.disconnect("gamma");
    bench.wait_s(12);
    bench.begin(is_off("beta"));
    let refused = bench.refused(remove("beta", true));
    assert!(
        refused.message.contains("run nowhere: web") || refused.message.contains("may be on 'gamma'"),
        "{refused:?}"
    );
}
