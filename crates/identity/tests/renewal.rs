//! Tests certificates that are renewed while they are in use.

mod shake;

use std::io::{Read, Write};
use std::time::{Duration, SystemTime};

use skein_identity::{
    CertificateDer, ClusterCa, ControllerIdentity, ControllerNames, Identity, RenewalError, Validity, client_config,
    controller_client_config, controller_name, controller_server_config, member_name, server_config,
};

use shake::{feed, shake};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns a time in which a third is left in `left`.
fn validity(left: Duration) -> Validity {
    let now = SystemTime::now();
    Validity { not_before: now - 3 * left, not_after: now + left }
}

/// Returns a host's identity with its directory, whose certificate is to be renewed.
fn due(ca: &ClusterCa, host: &str) -> (tempfile::TempDir, Identity) {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("identity");
    ca.issue(host, validity(HOUR)).unwrap().save(&at).unwrap();
    (dir, Identity::load(&at).unwrap())
}

fn certificate_of(peer: Option<&[CertificateDer<'_>]>) -> CertificateDer<'static> {
    peer.unwrap()[0].clone().into_owned()
}

#[test]
fn new_connections_show_the_new_certificate_and_open_ones_go_on() {
    let ca = ClusterCa::create("lab").unwrap();
    let ((dir, a), b) = (due(&ca, "a"), ca.issue("b", Validity::days(9)).unwrap());
    // What was made of the identity before it was renewed shows the new certificate as well.
    let (client, server, copy) = (client_config(&a), server_config(&a), a.clone());
    let mut open = shake(client.clone(), server_config(&b), member_name());
    let old = a.chain()[0].clone();
    assert!(a.is_renewal_due(SystemTime::now()));

    let new = ca.renew(&old, Validity::days(30)).unwrap();
    copy.renew(new.clone()).unwrap();
    assert!(!a.is_renewal_due(SystemTime::now()) && a.info().days_left(SystemTime::now()) >= 29);
    assert_eq!((&a.chain()[0], a.host()), (&new, "a"));

    let dials = shake(client, server_config(&b), member_name());
    assert_eq!(certificate_of(dials.server.peer_certificates()), new);
    let accepts = shake(client_config(&b), server, member_name());
    assert_eq!(certificate_of(accepts.client.peer_certificates()), new);
    assert_eq!(certificate_of(open.server.peer_certificates()), old);
    open.client.writer().write_all(b"pages").unwrap();
    let mut wire = Vec::new();
    open.client.write_tls(&mut wire).unwrap();
    feed(&wire, &mut open.server, &mut open.server_error);
    let mut got = [0; 5];
    open.server.reader().read_exact(&mut got).unwrap();
    assert_eq!(&got, b"pages");

    // It is on the disk with the same key, and nothing else is there.
    let at = dir.path().join("identity");
    assert_eq!(Identity::load(&at).unwrap().chain()[0], new);
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 3);
}

#[test]
fn controllers_show_theirs_in_the_same_way() {
    let ca = ClusterCa::create("lab").unwrap();
    let names = ControllerNames::new("ctl1", ["10.0.0.1"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("controller");
    ca.issue_controller(&names, validity(HOUR)).unwrap().save(&at).unwrap();
    let controller = ControllerIdentity::load(&at).unwrap();
    assert!(controller.is_renewal_due(SystemTime::now()));
    let server = controller_server_config(&controller);
    let new = ca.renew(&controller.chain()[0], Validity::days(30)).unwrap();
    controller.renew(new.clone()).unwrap();
    let (_dir, host) = due(&ca, "a");
    let done = shake(controller_client_config(&host).unwrap(), server, controller_name());
    let shown = done.client.peer_certificates().unwrap();
    assert_eq!(shown[0], new);
    assert_eq!(&shown[1], ca.certificate(), "who knows the CA's fingerprint alone needs the CA's certificate");
    assert_eq!(ControllerIdentity::load(&at).unwrap().chain()[0], new);
}

#[test]
fn what_is_no_renewal_changes_nothing() {
    let (ca, other) = (ClusterCa::create("lab").unwrap(), ClusterCa::create("lab").unwrap());
    let (dir, a) = due(&ca, "a");
    let old = a.chain()[0].clone();
    let earlier = Validity { not_before: SystemTime::now() - HOUR, not_after: SystemTime::now() + HOUR / 2 };
    let days = Validity::days(30);
    let refused = [
        (ca.issue("a", days).unwrap().chain()[0].clone(), "not the key"),
        (ca.issue("b", days).unwrap().chain()[0].clone(), "b's"),
        (other.issue("a", days).unwrap().chain()[0].clone(), "is of no use"),
        (ca.renew(&old, earlier).unwrap(), "no later"),
        (ca.renew(&old, Validity { not_before: SystemTime::now() + HOUR, ..days }).unwrap(), "is of no use"),
        (CertificateDer::from(vec![1, 2, 3]), "is of no use"),
    ];
    for (new, why) in refused {
        let error = a.renew(new).unwrap_err();
        let words = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(words.contains(why) || words.contains("of no use"), "{why}: {words}");
        assert_eq!(a.chain()[0], old);
    }
    // What cannot be kept is not shown.
    std::fs::remove_dir_all(dir.path().join("identity")).unwrap();
    std::fs::write(dir.path().join("identity"), "").unwrap();
    assert!(matches!(a.renew(ca.renew(&old, days).unwrap()), Err(RenewalError::Write(_))));
    assert_eq!(a.chain()[0], old);
}

#[test]
fn a_certificate_is_due_when_a_third_is_left_unless_it_ends_with_its_ca() {
    let ca = ClusterCa::create("lab").unwrap();
    let identity = ca.issue("a", Validity::lasting(30 * HOUR)).unwrap();
    let at = |hours: u32| SystemTime::now() + HOUR * hours;
    assert_eq!([0, 19, 21, 29, 31].map(|hours| identity.is_renewal_due(at(hours))), [false, false, true, true, true]);
    let whole = ca.issue("a", Validity::days(20_000)).unwrap();
    assert!(!whole.is_renewal_due(at(80_000)), "it would get no longer");
}
