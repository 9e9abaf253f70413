//! Certificates of hosts that are renewed: which are taken, whatever dies in between.

use skein_api::cluster::{Contact, UnixMs};
use skein_cluster::{Answer, Ask, CertificateValidity, RefusedKind};

use crate::bench::{Bench, is_off};

fn renew(host: &str, shown: &str, signed: &str) -> Ask {
    Ask::RenewCertificate { host: host.into(), shown_sha256: shown.into(), signed_sha256: signed.into() }
}

/// Returns which of a host's certificates are taken.
fn taken<const N: usize>(bench: &Bench, host: &str, certificates: [&str; N]) -> [bool; N] {
    certificates.map(|certificate| bench.controller.host_refusal(host, &certificate.to_owned().into()).is_none())
}

/// Has a host's agent show a certificate from now on.
fn show(bench: &mut Bench, host: &str, certificate: &str) {
    bench.certificates.insert(host.into(), certificate.into());
    bench.connect(host);
}

#[test]
fn both_certificates_are_taken_until_the_host_shows_the_new_one() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    assert_eq!(bench.ask(renew("alpha", "alpha 1", "alpha 2")), Answer::Done);
    assert_eq!(taken(&bench, "alpha", ["alpha 1", "alpha 2"]), [true, true]);
    // The answer was lost, or the agent died before it kept the certificate: it dials and asks as before.
    bench.connect("alpha");
    bench.wait_s(2);
    assert_eq!(bench.ask(renew("alpha", "alpha 1", "alpha 3")), Answer::Done);
    assert_eq!(taken(&bench, "alpha", ["alpha 1", "alpha 2", "alpha 3"]), [true, true, true]);
    show(&mut bench, "alpha", "alpha 3");
    assert_eq!(bench.host("alpha").contact, Contact::Online);
    assert_eq!(taken(&bench, "alpha", ["alpha 1", "alpha 2", "alpha 3"]), [false, false, true]);
    // Other hosts are none the wiser.
    assert_eq!(taken(&bench, "beta", ["beta 1"]), [true]);
    // Again and again, and an older one never comes back.
    for number in 4..40 {
        let (shown, new) = (format!("alpha {}", number - 1), format!("alpha {number}"));
        assert_eq!(bench.ask(renew("alpha", &shown, &new)), Answer::Done);
        show(&mut bench, "alpha", &new);
        assert_eq!(taken(&bench, "alpha", [&shown, &new]), [false, true]);
    }
    assert!(bench.refusals.is_empty());
}

#[test]
fn a_certificate_of_before_has_none_signed_and_lets_nobody_in() {
    let mut bench = Bench::new(&["alpha"]);
    bench.ask(renew("alpha", "alpha 1", "alpha 2"));
    show(&mut bench, "alpha", "alpha 2");
    let refused = bench.refused(renew("alpha", "alpha 1", "alpha 3"));
    assert_eq!(refused.kind, RefusedKind::Forbidden);
    assert!(refused.message.contains("replaced") && refused.cure.contains("--host alpha"), "{refused:?}");
    assert_eq!(taken(&bench, "alpha", ["alpha 1", "alpha 2"]), [false, true]);
    // As after a restore of the host's files from a backup.
    show(&mut bench, "alpha", "alpha 1");
    assert!(bench.refusals.last().unwrap().1.message.contains("replaced"));
}

#[test]
fn a_later_leader_knows_what_was_signed() {
    let mut bench = Bench::new(&["alpha"]);
    bench.ask(renew("alpha", "alpha 1", "alpha 2"));
    bench.change_leader();
    assert_eq!(taken(&bench, "alpha", ["alpha 1", "alpha 2"]), [true, true]);
    show(&mut bench, "alpha", "alpha 2");
    bench.change_leader();
    bench.connect("alpha");
    assert_eq!(taken(&bench, "alpha", ["alpha 1", "alpha 2"]), [false, true]);
    assert_eq!(bench.host("alpha").contact, Contact::Online);
}

#[test]
fn a_removed_host_has_nothing_signed_and_none_of_its_certificates_is_taken() {
    let mut bench = Bench::new(&["alpha"]);
    bench.ask(renew("alpha", "alpha 1", "alpha 2"));
    show(&mut bench, "alpha", "alpha 2");
    bench.ask(renew("alpha", "alpha 2", "alpha 3"));
    assert_eq!(bench.ask(Ask::RemoveHost { host: "alpha".into(), force: false }), Answer::Done);
    assert_eq!(bench.refused(renew("alpha", "alpha 2", "alpha 4")).kind, RefusedKind::Forbidden);
    // It joins anew, and what was signed and never shown is refused, too.
    join(&mut bench, "alpha", None, "alpha 5");
    assert_eq!(taken(&bench, "alpha", ["alpha 1", "alpha 2", "alpha 3", "alpha 5"]), [false, false, false, true]);
}

/// Asks that a host may join by a new ticket, for one name or any, and returns the answer.
fn try_join(bench: &mut Bench, host: &str, only: Option<&str>, certificate: &str) -> Answer {
    try_join_of(bench, host, only, certificate, "boot 1")
}

fn try_join_of(bench: &mut Bench, host: &str, only: Option<&str>, certificate: &str, boot: &str) -> Answer {
    let (id, secret_sha256) = (format!("ticket of {certificate}"), String::from("secret"));
    let only = only.map(str::to_owned);
    let new = Ask::NewTicket { id: id.clone(), host: only, expires_s: None, secret_sha256: secret_sha256.clone() };
    assert!(matches!(bench.ask(new), Answer::Ticket(_)));
    let certificate_sha256 = certificate.into();
    bench.ask(Ask::Join {
        host: host.into(),
        boot_id: Some(boot.into()),
        ticket: id,
        secret_sha256,
        certificate_sha256,
    })
}

fn join(bench: &mut Bench, host: &str, only: Option<&str>, certificate: &str) {
    assert_eq!(try_join(bench, host, only, certificate), Answer::Done);
}

#[test]
fn a_ticket_for_its_name_gives_a_host_another_certificate() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let mode = bench.host("alpha").mode;
    // Its agent is here, with a certificate that is taken: somebody else has the same name.
    let (id, host, secret_sha256) = ("ticket".into(), Some("alpha".into()), "secret".into());
    let refused = bench.refused(Ask::NewTicket { id, host, expires_s: None, secret_sha256 });
    assert!(refused.message.contains("its agent is here"), "{refused:?}");
    assert!(matches!(try_join(&mut bench, "alpha", None, "alpha 2"), Answer::Refused(_)));
    bench.disconnect("alpha");
    assert!(matches!(try_join(&mut bench, "alpha", None, "alpha 3"), Answer::Refused(_)));
    join(&mut bench, "alpha", Some("alpha"), "alpha 4");
    assert_eq!((bench.host("alpha").mode, bench.host("alpha").contact), (mode, Contact::Online));
    show(&mut bench, "alpha", "alpha 4");
    assert_eq!(taken(&bench, "alpha", ["alpha 1", "alpha 4"]), [false, true]);
    assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("alpha"));
}

#[test]
fn another_boot_takes_the_place_of_a_host_with_guests_only_once_that_is_off() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(20);
    // It may be another machine, while the first runs on.
    let Answer::Refused(refused) = try_join_of(&mut bench, "alpha", Some("alpha"), "alpha 2", "boot 2") else {
        panic!("it joined")
    };
    assert!(refused.message.starts_with("1 VM was on 'alpha'"), "{refused:?}");
    assert!(refused.cure.contains("skein host fence alpha --is-off"), "{refused:?}");
    bench.begin(is_off("alpha"));
    assert_eq!(try_join_of(&mut bench, "alpha", Some("alpha"), "alpha 3", "boot 2"), Answer::Done);
}

#[test]
fn the_end_of_a_certificate_is_shown_and_told_in_good_time() {
    const DAY_MS: u64 = 86_400_000;
    let mut bench = Bench::new(&["alpha"]);
    let now = bench.now.wall.0;
    let valid = |begins: u64, ends: u64| CertificateValidity { begins: UnixMs(begins), ends: UnixMs(ends) };
    let mut told = |validity| {
        bench.validity = Some(validity);
        bench.connect("alpha");
        assert_eq!(bench.host("alpha").certificate_ends, Some(validity.ends));
        bench.controller.attention()
    };
    assert!(told(valid(now - 200 * DAY_MS, now + 165 * DAY_MS)).is_empty());
    // The agent renews it by itself.
    assert!(told(valid(now - 250 * DAY_MS, now + 115 * DAY_MS)).is_empty());
    let late = told(valid(now - 300 * DAY_MS, now + 65 * DAY_MS));
    assert!(late.len() == 1 && late[0].contains("'alpha' ends in 65 days and was not renewed"), "{late:?}");
    assert!(late[0].contains("skein-controller ticket --host alpha"), "{late:?}");
    assert!(told(valid(now - 300 * DAY_MS, now + 65_000))[0].contains("within a day"));
    assert!(told(valid(now - 300 * DAY_MS, now))[0].contains("has ended"));
    // Then a ticket does, though the agent is connected.
    join(&mut bench, "alpha", Some("alpha"), "alpha 2");
}
