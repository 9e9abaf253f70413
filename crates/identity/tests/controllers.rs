//! Tests a controller's identity beside hosts': neither is taken for the other, whoever dials. And requests for
//! certificates, and the first contact by a CA's fingerprint.

mod shake;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig};
use skein_identity::{
    CONTROLLER_ALPN, CaError, CaFingerprint, CertificateInfo, CipherPolicy, ClusterCa, ClusterPeer, ControllerIdentity,
    ControllerNames, Identity, IdentityError, IdentityRequest, PeerError, RequestError, SigningRequest, Validity,
    check_controller, check_peer, client_config, cluster_peer, controller_client_config, controller_name,
    controller_server_config, explain, explain_controller, member_name, pinned_ca, pinned_client_config, server_config,
};

use shake::{Outcome, shake};

fn ca(name: &str) -> ClusterCa {
    ClusterCa::create(name).unwrap()
}

fn host(ca: &ClusterCa, name: &str) -> Identity {
    ca.issue(name, Validity::days(1)).unwrap()
}

fn names() -> ControllerNames {
    ControllerNames::new("ctl1", ["ctl.example.org", "10.0.0.1", "fd00::1", "CTL1"]).unwrap()
}

fn controller(ca: &ClusterCa) -> ControllerIdentity {
    ca.issue_controller(&names(), Validity::days(1)).unwrap()
}

fn named(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).unwrap()
}

/// What an agent that dials a controller's port finds.
fn agent_dials(agent: &Identity, server: Arc<ServerConfig>) -> Outcome {
    shake(controller_client_config(agent).unwrap(), server, controller_name())
}

/// What an HTTPS client does that has the CA's certificate: curl, or a browser.
fn browser(ca: &ClusterCa) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(ca.certificate().clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// A host's ciphers hold for its connections to controllers, too: one end is enough.
#[test]
fn an_agents_ciphers_hold_for_controllers() {
    let ca = ca("lab");
    let agent = host(&ca, "hosta").with_ciphers(CipherPolicy::AesGcm).unwrap();
    let dials = controller_client_config(&agent).unwrap();
    let suites: Vec<_> = dials.crypto_provider().cipher_suites.iter().map(|suite| suite.suite()).collect();
    assert_eq!(suites, [CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_256_GCM_SHA384]);
    let done = agent_dials(&agent, controller_server_config(&controller(&ca)));
    assert_eq!((done.client_error, done.server_error), (None, None));
    // A host without a policy has more.
    let other = controller_client_config(&host(&ca, "hostb")).unwrap();
    assert_eq!(other.crypto_provider().cipher_suites.len(), 3);
}

#[test]
fn an_agent_and_a_controller_meet_and_know_each_other() {
    let ca = ca("lab");
    let done = agent_dials(&host(&ca, "hosta"), controller_server_config(&controller(&ca)));
    assert_eq!((&done.client_error, &done.server_error), (&None, &None));
    assert_eq!(check_controller(&done.client).unwrap(), "ctl1");
    assert_eq!(cluster_peer(done.client.peer_certificates().unwrap()), ClusterPeer::Controller("ctl1".into()));
    assert_eq!(cluster_peer(done.server.peer_certificates().unwrap()), ClusterPeer::Host("hosta".into()));
    assert_eq!(done.server.alpn_protocol(), Some(CONTROLLER_ALPN));
}

#[test]
fn a_host_is_no_controller_whatever_it_serves() {
    let ca = ca("lab");
    let (hosta, hostb) = (host(&ca, "hosta"), host(&ca, "hostb"));
    let mut config = ServerConfig::clone(&server_config(&hostb));
    config.alpn_protocols = vec![CONTROLLER_ALPN.to_vec()];
    let refused = agent_dials(&hosta, Arc::new(config.clone()));
    let text = explain_controller(&refused.client_error.unwrap());
    assert!(text.contains("no controller of this cluster"), "{text}");
    // Nor does the mark help a client that asks for the other name.
    let done = shake(controller_client_config(&hosta).unwrap(), Arc::new(config), member_name());
    assert!(matches!(check_controller(&done.client), Err(PeerError::NotController)));
}

/// A certificate with both marks, as a CA may have issued it that did not know the controllers' name.
#[test]
fn who_has_both_marks_is_neither() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params.distinguished_name.push(rcgen::DnType::CommonName, "old");
    let root = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(root.der(), &key).unwrap();
    for (names, common_name) in [
        (&["controller.skein.internal", "member.skein.internal"][..], "controller.skein.internal"),
        (&["controller.skein.internal", "member.skein.internal", "hostb"], "hostb"),
        (&["controller.skein.internal"], "controller.skein.internal"),
        (&["controller.skein.internal", "hostb"], "hosta"),
    ] {
        let mut params =
            rcgen::CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        let own = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&own, &issuer).unwrap().der().clone();
        let info = CertificateInfo::parse(&certificate).unwrap();
        assert_eq!((info.host(), info.controller()), (None, None), "{names:?}");
        assert_eq!(cluster_peer(&[certificate]), ClusterPeer::Nobody, "{names:?}");
    }
}

#[test]
fn a_controller_is_no_host_whoever_dials() {
    let ca = ca("lab");
    let (hosta, ctl) = (host(&ca, "hosta"), controller(&ca));
    // An agent that dials it as a host.
    let mut config = ServerConfig::clone(&controller_server_config(&ctl));
    config.alpn_protocols = vec![skein_identity::ALPN.to_vec()];
    let refused = shake(client_config(&hosta), Arc::new(config), member_name());
    let text = explain(&refused.client_error.unwrap());
    assert!(text.contains("not a skein identity"), "{text}");

    // The controller dials an agent: TLS takes the certificate, which is the CA's, and the check after that does not.
    let dir = tempfile::tempdir().unwrap();
    ctl.save(dir.path()).unwrap();
    let key = rustls::pki_types::pem::PemObject::from_pem_file(dir.path().join("controller.key")).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(ca.certificate().clone()).unwrap();
    let mut dials = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(ctl.chain().to_vec(), key)
        .unwrap();
    dials.alpn_protocols = vec![skein_identity::ALPN.to_vec()];
    let done = shake(Arc::new(dials), server_config(&hosta), member_name());
    assert_eq!(done.server_error, None);
    assert!(matches!(check_peer(&done.server), Err(PeerError::Controller)));

    // Its files are no host's identity, nor a host's files a controller's.
    for (from, to) in [("controller.pem", "host.pem"), ("controller.key", "host.key")] {
        std::fs::copy(dir.path().join(from), dir.path().join(to)).unwrap();
    }
    assert!(matches!(Identity::load(dir.path()), Err(IdentityError::NotIdentity { .. })));
    let other = tempfile::tempdir().unwrap();
    hosta.save(other.path()).unwrap();
    assert!(matches!(ControllerIdentity::load(other.path()), Err(IdentityError::NoController { .. })));
    for (from, to) in [("host.pem", "controller.pem"), ("host.key", "controller.key")] {
        std::fs::copy(other.path().join(from), other.path().join(to)).unwrap();
    }
    let error = ControllerIdentity::load(other.path()).unwrap_err();
    assert!(matches!(error, IdentityError::NotController { .. }), "{error}");
}

#[test]
fn controllers_of_other_clusters_and_expired_ones_stay_out() {
    let (ours, theirs) = (ca("ours"), ca("ours"));
    let hosta = host(&ours, "hosta");
    let refused = agent_dials(&hosta, controller_server_config(&controller(&theirs)));
    let text = explain_controller(&refused.client_error.unwrap());
    assert!(text.contains("not of this cluster"), "{text}");
    // A host of another cluster is refused by the controller, though nobody has to show a certificate.
    let (server, agent) = (controller_server_config(&controller(&ours)), host(&theirs, "hosta"));
    let trusting = ClientConfig::clone(&controller_client_config(&agent).unwrap());
    let refused = shake(Arc::new(trusting), server.clone(), controller_name());
    let (agents, controllers) = refused.errors_at_both_ends();
    assert!(
        agents.contains("not of this cluster") && controllers.contains("not of this cluster"),
        "{agents} {controllers}"
    );

    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let past = Validity { not_before: now - 9 * hour, not_after: now - hour };
    let expired = ours.issue_controller(&names(), past).unwrap();
    let refused = agent_dials(&hosta, controller_server_config(&expired));
    let text = explain_controller(&refused.client_error.unwrap());
    let ended = expired.info().not_after.strftime("it ended on %F %H:%M UTC").to_string();
    assert!(text.contains("has expired") && text.contains(&ended), "{text}");
    let dir = tempfile::tempdir().unwrap();
    expired.save(dir.path()).unwrap();
    assert!(matches!(ControllerIdentity::load(dir.path()), Err(IdentityError::ControllerExpired { .. })));
    let renewed = ours.renew(&expired.chain()[0], Validity::days(9)).unwrap();
    ControllerIdentity::save_certificate(dir.path(), &renewed).unwrap();
    let again = ControllerIdentity::load(dir.path()).unwrap();
    assert_eq!((again.name(), &again.info().names), ("ctl1", &expired.info().names));
    assert_eq!(again.info().addresses, expired.info().addresses);
    assert!(!format!("{again:?}").contains("PRIVATE"));
}

#[test]
fn https_clients_verify_a_controller_by_its_names_and_addresses() {
    let ca = ca("lab");
    let server = controller_server_config(&controller(&ca));
    for name in ["ctl1", "ctl.example.org", "10.0.0.1", "fd00::1"] {
        let done = shake(Arc::new(browser(&ca)), server.clone(), named(name));
        assert_eq!((&done.client_error, &done.server_error), (&None, &None), "{name}");
        assert_eq!(done.server.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(cluster_peer(done.server.peer_certificates().unwrap_or_default()), ClusterPeer::Nobody);
    }
    for name in ["ctl2", "10.0.0.2", "member.skein.internal"] {
        assert!(shake(Arc::new(browser(&ca)), server.clone(), named(name)).client_error.is_some(), "{name}");
    }
    let mut old = browser(&ca);
    old.alpn_protocols = vec![b"http/1.1".to_vec()];
    assert_eq!(shake(Arc::new(old), server.clone(), named("ctl1")).server.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut other = browser(&ca);
    other.alpn_protocols = vec![skein_identity::ALPN.to_vec()];
    assert!(shake(Arc::new(other), server, named("ctl1")).server_error.is_some());
}

/// An HTTP client is nobody's agent, even with a host's certificate.
#[test]
fn the_protocol_is_the_controllers() {
    let ca = ca("lab");
    let mut config = ClientConfig::clone(&controller_client_config(&host(&ca, "hosta")).unwrap());
    config.alpn_protocols = vec![b"h2".to_vec()];
    let done = shake(Arc::new(config), controller_server_config(&controller(&ca)), controller_name());
    assert!(matches!(check_controller(&done.client), Err(PeerError::OtherControllerProtocol)));
}

#[test]
fn names_of_a_controller_are_checked() {
    for (name, dialled) in [
        ("", "a"),
        ("10.0.0.1", "a"),
        ("ctl1", "*.example.org"),
        ("ctl1", "member.skein.internal"),
        ("ctl1", "controller.skein.internal"),
        ("controller.skein.internal", "a"),
        ("member.skein.internal", "a"),
        ("ctl1", "a b"),
    ] {
        assert!(ControllerNames::new(name, [dialled]).is_err(), "{name:?} {dialled:?}");
    }
    let many: Vec<String> = (0..32).map(|n| format!("10.0.0.{n}")).collect();
    assert!(ControllerNames::new("ctl1", many.iter().skip(1).map(String::as_str)).is_ok());
    assert!(ControllerNames::new("ctl1", many.iter().map(String::as_str)).unwrap_err().why.contains("32"));
}

mod requests {
    use super::*;

    fn parsed(request: &IdentityRequest) -> SigningRequest {
        SigningRequest::parse(request.pem().unwrap().as_bytes()).unwrap()
    }

    fn pem(certificate: &CertificateDer<'_>) -> String {
        pem::encode(&pem::Pem::new("CERTIFICATE", &certificate[..]))
    }

    #[test]
    fn a_key_never_leaves_its_host() {
        let (ca, dir) = (ca("lab"), tempfile::tempdir().unwrap());
        let dir = dir.path().join("identity");
        let request = IdentityRequest::new("HostA").unwrap();
        request.save_key(&dir).unwrap();
        assert!(request.save_key(&dir).is_err(), "a key is not replaced");
        let certificate = ca.sign_host(&parsed(&request), "hosta", Validity::days(1)).unwrap();
        // The host was restarted meanwhile.
        let request = IdentityRequest::with_key_of(&dir, "hosta").unwrap();
        let identity = request.identity(&ca.certificate_pem(), &pem(&certificate)).unwrap();
        identity.save_beside_key(&dir).unwrap();
        let loaded = Identity::load(&dir).unwrap();
        assert_eq!(
            (loaded.host(), &loaded.info().names),
            ("hosta", &vec!["hosta".into(), "member.skein.internal".into()])
        );
        let done = shake(client_config(&loaded), server_config(&host(&ca, "hostb")), member_name());
        assert_eq!(check_peer(&done.server).unwrap(), "hosta");
    }

    #[test]
    fn a_controllers_request_gets_the_names_that_the_caller_gives() {
        let ca = ca("lab");
        let request = IdentityRequest::new("ctl1").unwrap();
        let certificate = ca.sign_controller(&parsed(&request), &names(), Validity::days(1)).unwrap();
        let identity = request.controller_identity(&ca.certificate_pem(), &pem(&certificate)).unwrap();
        let done = agent_dials(&host(&ca, "hosta"), controller_server_config(&identity));
        assert_eq!(check_controller(&done.client).unwrap(), "ctl1");
        let other = IdentityRequest::new("ctl2").unwrap();
        let error = ca.sign_controller(&parsed(&other), &names(), Validity::days(1)).unwrap_err();
        assert!(matches!(error, CaError::OtherName { .. }));
    }

    #[test]
    fn only_the_allowed_name_is_signed() {
        let ca = ca("lab");
        let request = parsed(&IdentityRequest::new("hostb").unwrap());
        let error = ca.sign_host(&request, "hosta", Validity::days(1)).unwrap_err();
        assert!(error.to_string().contains("hostb") && error.to_string().contains("hosta"), "{error}");
        for odd in ["", "member.skein.internal", "controller.skein.internal", "10.0.0.1"] {
            assert!(matches!(ca.sign_host(&request, odd, Validity::days(1)), Err(CaError::BadHost { .. })), "{odd}");
            assert!(matches!(IdentityRequest::new(odd), Err(RequestError::BadName { .. })), "{odd}");
        }
    }

    #[test]
    fn an_answer_for_another_is_refused() {
        let ca = ca("lab");
        let [one, two] = ["hosta", "hostb"].map(|name| IdentityRequest::new(name).unwrap());
        let certificate = ca.sign_host(&parsed(&two), "hostb", Validity::days(1)).unwrap();
        let error = one.identity(&ca.certificate_pem(), &pem(&certificate)).unwrap_err();
        assert!(matches!(error, IdentityError::OtherName { .. }), "{error}");
        let same = IdentityRequest::new("hostb").unwrap();
        let error = same.identity(&ca.certificate_pem(), &pem(&certificate)).unwrap_err();
        assert!(matches!(error, IdentityError::KeyMismatch { .. }), "{error}");
        let error = two.identity(&super::ca("other").certificate_pem(), &pem(&certificate)).unwrap_err();
        assert!(matches!(error, IdentityError::OtherCa { .. }), "{error}");
    }

    #[test]
    fn what_asks_for_more_is_refused() {
        let key = rcgen::KeyPair::generate().unwrap();
        let text = |names: &[&str], key: &rcgen::KeyPair| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let mut params = rcgen::CertificateParams::new(names).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, "hosta");
            params.serialize_request(key).unwrap().pem().unwrap()
        };
        let parse = |text: &str| SigningRequest::parse(text.as_bytes());
        assert_eq!(parse(&text(&["hosta", "member.skein.internal"], &key)).unwrap().name(), "hosta");
        for odd in ["hostb", "controller.skein.internal", "10.0.0.1", "*.example.org"] {
            let refused = parse(&text(&["hosta", odd], &key));
            assert!(matches!(refused, Err(RequestError::MoreNames { .. })), "{odd}: {refused:?}");
        }
        for algorithm in [&rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let other = rcgen::KeyPair::generate_for(algorithm).unwrap();
            assert!(matches!(parse(&text(&[], &other)), Err(RequestError::OtherKey)));
        }
    }

    #[test]
    fn damage_is_an_error_and_no_certificate() {
        let good = IdentityRequest::new("hosta").unwrap().pem().unwrap();
        let parsed = SigningRequest::parse(good.as_bytes()).unwrap();
        let der = pem::parse(&good).unwrap().into_contents();
        let mut taken = 0;
        for at in 0..der.len() {
            for bits in [1, 0x80] {
                let mut der = der.clone();
                der[at] ^= bits;
                let text = pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", der));
                // What is around the signed part may be read as the same.
                if let Ok(read) = SigningRequest::parse(text.as_bytes()) {
                    assert_eq!(read, parsed, "byte {at}");
                    taken += 1;
                }
            }
        }
        assert!(taken < 10, "{taken} of {} are taken", 2 * der.len());
        for odd in ["", "garbage", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"] {
            assert!(matches!(SigningRequest::parse(odd.as_bytes()), Err(RequestError::NotARequest)), "{odd}");
        }
        let longer = pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", [&der[..], b"x"].concat()));
        assert!(matches!(SigningRequest::parse(longer.as_bytes()), Err(RequestError::NotARequest)));
        let certificate = ca("lab").certificate_pem();
        assert!(matches!(SigningRequest::parse(certificate.as_bytes()), Err(RequestError::NotARequest)));
        assert!(matches!(SigningRequest::parse(&vec![b'x'; 1 << 20]), Err(RequestError::TooLarge)));
    }
}

mod first_contact {
    use super::*;

    fn dial(fingerprint: CaFingerprint, server: Arc<ServerConfig>) -> Outcome {
        let mut config = pinned_client_config(fingerprint);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        shake(Arc::new(config), server, named("10.9.9.9"))
    }

    #[test]
    fn a_controller_is_known_by_its_cas_fingerprint_alone() {
        let ca = ca("lab");
        let done = dial(ca.fingerprint(), controller_server_config(&controller(&ca)));
        assert_eq!((&done.client_error, &done.server_error), (&None, &None));
        let shown = done.client.peer_certificates().unwrap();
        assert_eq!(pinned_ca(shown, ca.fingerprint()), Some(ca.certificate()));
        assert_eq!(pinned_ca(shown, CaFingerprint::of(&shown[0])), Some(&shown[0]));
        assert_eq!(pinned_ca(&shown[..1], ca.fingerprint()), None);
    }

    #[test]
    fn anybody_else_is_refused_with_the_reason() {
        let (ours, theirs) = (ca("lab"), ca("lab"));
        let says = |done: Outcome| explain(&done.client_error.expect("it is refused"));
        let other = says(dial(ours.fingerprint(), controller_server_config(&controller(&theirs))));
        assert!(other.contains("of another cluster") && other.contains(&ours.fingerprint().to_string()), "{other}");

        // A host of the cluster shows the CA's certificate, too.
        let hostb = host(&ours, "hostb");
        let mut config = ServerConfig::clone(&controller_server_config(&controller(&ours)));
        config.cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified(&hostb, ours.certificate())));
        let host = says(dial(ours.fingerprint(), Arc::new(config.clone())));
        assert!(host.contains("no controller"), "{host}");

        // A certificate of another CA with the right CA's certificate beside it.
        let foreign = host_of(&theirs);
        config.cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified(&foreign, ours.certificate())));
        let beside = says(dial(ours.fingerprint(), Arc::new(config.clone())));
        assert!(beside.contains("another CA"), "{beside}");

        // The fingerprint of a certificate that is no CA's.
        let leaf = controller(&ours);
        config.cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified(&hostb, &leaf.chain()[0])));
        let no_ca = says(dial(CaFingerprint::of(&leaf.chain()[0]), Arc::new(config)));
        assert!(no_ca.contains("not the certificate of a CA"), "{no_ca}");
    }

    fn host_of(ca: &ClusterCa) -> Identity {
        host(ca, "hostb")
    }

    /// An identity's certificate and key with another certificate after it.
    fn certified(identity: &Identity, after: &CertificateDer<'static>) -> rustls::sign::CertifiedKey {
        let dir = tempfile::tempdir().unwrap();
        identity.save(&dir.path().join("i")).unwrap();
        let key = rustls::pki_types::pem::PemObject::from_pem_file(dir.path().join("i/host.key")).unwrap();
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
        rustls::sign::CertifiedKey::new(vec![identity.chain()[0].clone(), after.clone()], key)
    }

    #[test]
    fn fingerprints_are_read_as_they_are_written() {
        let ca = ca("lab");
        let known = ca.fingerprint();
        assert_eq!(known.to_string(), ca.info().fingerprint);
        for text in [known.to_string(), known.to_hex(), known.to_hex().to_uppercase(), known.to_string().to_lowercase()]
        {
            assert_eq!(text.parse::<CaFingerprint>().unwrap(), known, "{text}");
        }
        let hex = known.to_hex();
        for odd in
            ["", "ab", &hex[1..], &format!("{hex}0"), &format!("x{}", &hex[1..]), &"a:".repeat(47), &"é".repeat(32)]
        {
            assert!(odd.parse::<CaFingerprint>().is_err(), "{odd}");
        }
    }
}
