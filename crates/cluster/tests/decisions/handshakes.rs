//! Hosts that answer, though no connection with their agents comes about, as a clock is wrong.

use std::net::{IpAddr, SocketAddr};

use skein_api::cluster::{Contact, DrainRequest, FenceRequest, MigrateRequest, UnixMs};
use skein_api::{Hello, Term};
use skein_cluster::{Answer, Ask, CertificateValidity, HandshakeFailure, Input};

use crate::bench::{Bench, address_of};

fn fence(host: &str, is_off: bool) -> Ask {
    Ask::Fence { host: host.into(), request: FenceRequest { is_off } }
}

fn ip(host: &str) -> IpAddr {
    address_of(host).parse::<SocketAddr>().unwrap().ip()
}

/// Has a handshake come to nothing: at the host's address, and with a certificate that names a host or none.
fn fail(bench: &mut Bench, at: &str, named: Option<&str>, failure: &HandshakeFailure) {
    let (address, host, failure) = (ip(at), named.map(str::to_owned), failure.clone());
    bench.input(Input::HandshakeFailed { address, host, failure });
}

fn attention(bench: &Bench, words: &str) -> Vec<String> {
    bench.controller.attention().into_iter().filter(|told| told.contains(words)).collect()
}

/// Five hours after the clock of the bench.
fn later(bench: &Bench) -> HandshakeFailure {
    HandshakeFailure::NotValidYet { begins: UnixMs(bench.now.wall.0 + 5 * 3_600_000) }
}

#[test]
fn a_host_whose_certificate_is_refused_answers_and_nobody_is_told_to_say_that_it_is_off() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let failure = later(&bench);
    bench.disconnect("alpha");
    bench.wait_s(11);
    assert_eq!(bench.host("alpha").contact, Contact::Lost);
    assert_eq!(attention(&bench, "--is-off").len(), 1, "{:?}", bench.controller.attention());

    fail(&mut bench, "alpha", Some("alpha"), &failure);
    assert!(attention(&bench, "--is-off").is_empty(), "{:?}", bench.controller.attention());
    let told = attention(&bench, "host 'alpha' does not report, and is not off: it answers");
    // The clock of the bench is at 2026-02-02 02:40 UTC and some seconds.
    let times = ["begins 2026-02-02 07:40 UTC", "this controller's clock says 2026-02-02 02:40 UTC", "set the clock"];
    assert!(times.iter().all(|words| told[0].contains(words)), "{told:?}");
    let note = bench.host("alpha").note;
    assert!(note.contains("refused as not valid yet") && note.contains(&ip("alpha").to_string()), "{note}");
    let refused = bench.refused(fence("alpha", true));
    assert!(refused.message.contains("'alpha' is not off: 0 s ago"), "{refused:?}");

    // It is nothing but words: the host is lost as before, and its guest stays its own.
    let before = bench.controller.tables().hosts["alpha"].value.clone();
    bench.wait_s(20);
    fail(&mut bench, "alpha", None, &HandshakeFailure::Broken);
    assert_eq!(bench.controller.tables().hosts["alpha"].value, before);
    assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("alpha"));
    assert!(bench.sent.is_empty() && bench.powers.is_empty());
    // A handshake that just broke does not hide the reason, and counts.
    bench.wait_s(20);
    assert!(bench.host("alpha").note.contains("refused as not valid yet"));
    bench.wait_s(11);
    assert!(bench.host("alpha").note.contains("does not report"), "{}", bench.host("alpha").note);
    assert_eq!(attention(&bench, "--is-off").len(), 1);
    assert!(matches!(bench.ask(fence("alpha", true)), Answer::Done | Answer::Operation(_)));
    assert_eq!(bench.host("alpha").contact, Contact::Off);
}

#[test]
fn advice_to_say_that_a_host_is_off_is_withheld_while_it_answers() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(11);
    let asks = || {
        [
            Ask::Drain { host: "alpha".into(), request: DrainRequest::default() },
            Ask::Migrate { vm: "web".into(), request: MigrateRequest::default(), breaks: Vec::new() },
            Ask::RemoveHost { host: "alpha".into(), force: false },
            fence("alpha", false),
        ]
    };
    for ask in asks() {
        let refused = bench.refused(ask);
        assert!(refused.cure.contains("skein host fence alpha --is-off"), "{refused:?}");
    }
    fail(&mut bench, "alpha", None, &HandshakeFailure::AgentRefusesDates { own: None });
    for ask in asks() {
        let refused = bench.refused(ask);
        assert!(!refused.cure.contains("--is-off") && refused.cure.contains("'alpha' answers"), "{refused:?}");
    }
}

#[test]
fn an_agent_that_refuses_the_controller_is_told_with_the_controllers_dates() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    let at = |days: u64| UnixMs(1_770_000_000_000 + days * 86_400_000);
    let own = Some(CertificateValidity { begins: at(0), ends: at(365) });
    for host in ["alpha", "beta", "gamma"] {
        bench.disconnect(host);
    }
    bench.wait_s(11);
    for host in ["alpha", "beta"] {
        fail(&mut bench, host, None, &HandshakeFailure::AgentRefusesDates { own });
    }
    // One sentence for all that have the same reason.
    let told = attention(&bench, "answer");
    assert_eq!(told.len(), 1, "{told:?}");
    let words = [
        "2 hosts do not report, and are not off",
        "'alpha', 'beta'",
        "valid from 2026-02-02 02:40 UTC to 2027-02-02 02:40 UTC",
        "this controller's clock says 2026-02-02 02:40 UTC",
    ];
    assert!(words.iter().all(|words| told[0].contains(words)), "{told:?}");
    assert_eq!(attention(&bench, "skein host fence gamma --is-off").len(), 1);
    // Whoever is connected again is told of no more.
    bench.connect("alpha");
    assert_eq!(bench.host("alpha").note, "");
    assert_eq!(attention(&bench, "answers").len(), 1, "{:?}", bench.controller.attention());
}

#[test]
fn an_address_that_is_no_hosts_says_nothing() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.disconnect("alpha");
    bench.wait_s(11);
    let failure = later(&bench);
    let stranger: IpAddr = "192.0.2.7".parse().unwrap();
    bench.input(Input::HandshakeFailed { address: stranger, host: None, failure: failure.clone() });
    assert_eq!(attention(&bench, "answer"), Vec::<String>::new());
    // Of whom a certificate of the cluster's CA is, is known wherever that is shown.
    bench.input(Input::HandshakeFailed { address: stranger, host: Some("alpha".into()), failure: failure.clone() });
    assert_eq!(attention(&bench, "host 'alpha' does not report, and is not off").len(), 1);
    // A host that never connected is named, too.
    bench.input(Input::HandshakeFailed { address: stranger, host: Some("new".into()), failure });
    assert_eq!(attention(&bench, "'alpha', 'new'").len(), 1, "{:?}", bench.controller.attention());
}

/// Returns two hosts: the second runs a guest, and shows another certificate than it did first.
fn renewed() -> Bench {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    let (shown_sha256, signed_sha256) = ("beta 1".to_owned(), "beta 2".to_owned());
    bench.ask(Ask::RenewCertificate { host: "beta".into(), shown_sha256, signed_sha256 });
    bench.disconnect("beta");
    bench.certificates.insert("beta".into(), "beta 2".into());
    bench.connect("beta");
    bench
}

#[test]
fn a_host_whose_agent_is_refused_answers_too() {
    let mut bench = renewed();
    bench.disconnect("beta");
    // Somebody has put the old certificate back.
    bench.certificates.insert("beta".into(), "beta 1".into());
    for _ in 0..12 {
        bench.connect("beta");
        bench.wait_s(1);
    }
    assert_eq!(bench.host("beta").contact, Contact::Lost);
    let told = bench.controller.attention();
    assert!(told.iter().all(|words| !words.contains("--is-off")), "{told:?}");
    assert_eq!(attention(&bench, "host 'beta' is refused").len(), 1, "{told:?}");
    assert!(bench.host("beta").note.contains("its agent is refused"), "{}", bench.host("beta").note);
    let refused = bench.refused(fence("beta", true));
    assert!(refused.message.contains("'beta' is not off: 1 s ago its agent tried to connect"), "{refused:?}");
    bench.wait_s(30);
    bench.begin(fence("beta", true));
}

#[test]
fn a_controller_that_has_just_begun_takes_nobodys_word() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    bench.disconnect("beta");
    bench.wait_s(11);
    bench.change_leader_after(0, |_| ());
    bench.connect("alpha");
    let refused = bench.refused(fence("beta", true));
    assert!(refused.message.contains("may be about to find it"), "{refused:?}");
    assert_eq!(refused.cure, "ask again in 20 s");
    bench.wait_s(20);
    bench.begin(fence("beta", true));
}

/// Its guest found no place, and it is on again with a wrong clock.
#[test]
fn a_second_word_is_not_taken_either_while_the_host_answers() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm_of("beta", "web", 60);
    bench.run_vm_of("alpha", "big", 60);
    bench.disconnect("beta");
    bench.wait_s(12);
    bench.begin(fence("beta", true));
    bench.wait_s(3);
    let failure = later(&bench);
    fail(&mut bench, "beta", Some("beta"), &failure);
    bench.end_vm("alpha", "big");
    assert!(bench.refused(fence("beta", true)).message.contains("is not off"));
    assert!(bench.sent.is_empty());
}

/// The host's machine was replaced, and the old one is still on.
#[test]
fn another_machine_of_the_name_does_not_speak_for_the_host() {
    let mut bench = renewed();
    let old = |bench: &mut Bench| {
        let hello = Hello {
            host: "beta".into(),
            release: "test".into(),
            api: 1,
            instance: 1,
            boot_id: None,
            addresses: Vec::new(),
            highest_term: Term(0),
            moves_off: true,
        };
        bench.sessions.insert(9999, "beta".into());
        bench.input(Input::AgentUp { session: 9999, hello, certificate: "beta 1".to_owned().into() });
    };
    for _ in 0..3 {
        old(&mut bench);
        bench.wait_s(10);
    }
    assert_eq!(attention(&bench, "host 'beta' is refused").len(), 1, "{:?}", bench.controller.attention());
    bench.disconnect("beta");
    for _ in 0..2 {
        bench.wait_s(10);
        old(&mut bench);
    }
    assert_eq!(attention(&bench, "--is-off").len(), 1, "{:?}", bench.controller.attention());
    bench.begin(fence("beta", true));
}
