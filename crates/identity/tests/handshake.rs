//! Tests whole handshakes between two ends in memory: who gets in, and what each end is told when not.

mod shake;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::ServerName;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, ServerConfig, ServerConnection,
};
use skein_identity::{
    ALPN, ALPN_AEGIS, CipherPolicy, CipherSpeeds, ClusterCa, Identity, RecordCipher, Validity, check_peer,
    client_config, explain, member_name, record_cipher, server_config,
};

use shake::{Outcome, feed, shake};

fn ca(name: &str) -> ClusterCa {
    ClusterCa::create(name).unwrap()
}

fn issue(ca: &ClusterCa, host: &str) -> Identity {
    ca.issue(host, Validity::days(1)).unwrap()
}

fn between(client: &Identity, server: &Identity) -> Outcome {
    shake(client_config(client), server_config(server), member_name())
}

#[test]
fn members_meet_and_know_each_other() {
    let ca = ca("lab");
    let [alpha, beta] =
        ["alpha", "beta.example.org"].map(|host| issue(&ca, host).with_ciphers(CipherPolicy::AesGcm).unwrap());
    let mut done = between(&alpha, &beta);
    assert_eq!((&done.client_error, &done.server_error), (&None, &None));
    assert_eq!(check_peer(&done.client).unwrap(), "beta.example.org");
    assert_eq!(check_peer(&done.server).unwrap(), "alpha");
    assert_eq!(done.client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(done.client.negotiated_cipher_suite().unwrap().suite(), CipherSuite::TLS13_AES_128_GCM_SHA256);
    assert_eq!(done.client.alpn_protocol(), Some(ALPN));

    done.client.writer().write_all(b"pages").unwrap();
    let mut wire = Vec::new();
    done.client.write_tls(&mut wire).unwrap();
    assert!(!wire.windows(5).any(|w| w == b"pages"));
    feed(&wire, &mut done.server, &mut done.server_error);
    let mut got = [0; 5];
    done.server.reader().read_exact(&mut got).unwrap();
    assert_eq!(&got, b"pages");
}

#[test]
fn nothing_is_resumed() {
    let ca = ca("lab");
    let (client, server) = (issue(&ca, "a"), issue(&ca, "b"));
    for _ in 0..3 {
        let done = between(&client, &server);
        assert_eq!(done.server.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert_eq!(done.client.tls13_tickets_received(), 0);
    }
}

#[test]
fn an_identity_is_not_valid_for_a_stranger_name() {
    let ca = ca("lab");
    let (a, b) = (issue(&ca, "a"), issue(&ca, "b"));
    let named = |name: &str| ServerName::try_from(name.to_owned()).unwrap();
    assert_eq!(shake(client_config(&a), server_config(&b), named("b")).client_error, None);
    let (client, server) = shake(client_config(&a), server_config(&b), named("c")).errors_at_both_ends();
    assert!(client.contains("not a skein identity"), "{client}");
    assert!(server.contains("refused our certificate"), "{server}");
}

/// A client that knows the CA has no identity: this is TLS as a browser does it.
#[test]
fn without_a_certificate_nobody_gets_in() {
    let ca = ca("lab");
    let mut roots = RootCertStore::empty();
    roots.add(ca.certificate().clone()).unwrap();
    let mut bare = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    bare.alpn_protocols = vec![ALPN.to_vec()];
    let (client, server) = shake(Arc::new(bare), server_config(&issue(&ca, "b")), member_name()).errors_at_both_ends();
    assert!(client.contains("requires a certificate"), "{client}");
    assert!(server.contains("showed no certificate"), "{server}");
}

#[test]
fn other_clusters_stay_out() {
    let (ours, theirs) = (ca("ours"), ca("theirs"));
    let (client, server) = between(&issue(&ours, "a"), &issue(&theirs, "b")).errors_at_both_ends();
    assert!(client.contains("not of this cluster"), "{client}");
    assert!(server.contains("not of this cluster"), "{server}");

    // A CA of the same name is another CA all the same.
    let (client, server) = between(&issue(&ours, "a"), &issue(&ca("ours"), "b")).errors_at_both_ends();
    assert!(client.contains("not of this cluster"), "{client}");
    assert!(server.contains("not of this cluster"), "{server}");

    // The server trusts both, the client only its own: the server's verdict alone would let the client in.
    let outcome =
        shake(client_config(&issue(&ours, "a")), server_config(&trusting_both(&theirs, &ours)), member_name());
    assert!(explain(&outcome.client_error.unwrap()).contains("not of this cluster"));
}

fn trusting_both(signer: &ClusterCa, other: &ClusterCa) -> Identity {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("identity");
    signer.issue("b", Validity::days(1)).unwrap().save(&dir).unwrap();
    std::fs::write(dir.join("ca.pem"), signer.certificate_pem() + &other.certificate_pem()).unwrap();
    Identity::load(&dir).unwrap()
}

#[test]
fn expired_and_early_certificates_are_told_apart_from_foreign_ones() {
    let ca = ca("lab");
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let good = issue(&ca, "good");
    let expired = ca.issue("old", Validity { not_before: now - 9 * hour, not_after: now - hour }).unwrap();
    let early = ca.issue("new", Validity { not_before: now + hour, not_after: now + 9 * hour }).unwrap();

    let (client, server) = between(&expired, &good).errors_at_both_ends();
    assert!(client.contains("refused our certificate as expired") && client.contains("skein ca renew"), "{client}");
    assert!(server.contains("the peer's certificate has expired"), "{server}");
    let (client, server) = between(&good, &expired).errors_at_both_ends();
    assert!(client.contains("the peer's certificate has expired"), "{client}");
    assert!(server.contains("refused our certificate as expired"), "{server}");
    let (client, server) = between(&early, &good).errors_at_both_ends();
    assert!(client.contains("clock"), "{client}");
    assert!(server.contains("not valid yet") && server.contains("clock"), "{server}");
}

#[test]
fn other_protocols_over_the_same_ca_stay_out() {
    let ca = ca("lab");
    let (a, b) = (issue(&ca, "a"), issue(&ca, "b"));
    let mut other = ClientConfig::clone(&client_config(&a));
    other.alpn_protocols = vec![b"h2".to_vec()];
    let (client, server) = shake(Arc::new(other), server_config(&b), member_name()).errors_at_both_ends();
    assert!(client.contains("same major version"), "{client}");
    assert!(server.contains("same major version"), "{server}");

    // A client that names no protocol at all completes the handshake; check_peer refuses the client.
    let mut silent = ClientConfig::clone(&client_config(&a));
    silent.alpn_protocols.clear();
    let done = shake(Arc::new(silent), server_config(&b), member_name());
    assert_eq!(done.server_error, None);
    assert!(matches!(check_peer(&done.server), Err(skein_identity::PeerError::OtherProtocol)));
}

/// CPUs on which AEGIS is the fastest cipher, AES-GCM is, and ChaCha20 is, as there are no instructions for AES.
const CPUS: [CipherSpeeds; 3] = [cpu(5, 2, 14), cpu(9, 3, 9), cpu(1, 4, 1)];

const fn cpu(aes: u64, chacha: u64, aegis: u64) -> CipherSpeeds {
    const GIGA: u64 = 1_000_000_000;
    CipherSpeeds { aes_128_gcm: aes * GIGA, chacha20_poly1305: chacha * GIGA, aegis_128x2: aegis * GIGA }
}

/// Every policy on every CPU meets every other. Both ends agree on one cipher: AEGIS only where both allow it, and
/// AES-GCM where one end allows nothing else.
#[test]
fn two_ends_agree_on_a_cipher_that_both_allow() {
    use CipherPolicy::*;
    let ca = ca("lab");
    let (a, b) = (issue(&ca, "a"), issue(&ca, "b"));
    let all = || CPUS.iter().flat_map(|cpu| CipherPolicy::ALL.map(|policy| (policy, cpu)));
    let names_aegis = |policy, cpu: &CipherSpeeds| policy == Aegis || (policy == Auto && *cpu == CPUS[0]);
    let mut met = [0; 4];
    for ((here, cpu), (there, peers_cpu)) in all().flat_map(|one| all().map(move |other| (one, other))) {
        let client = a.clone().with_allowed(&here.allowed(cpu)).unwrap();
        let server = b.clone().with_allowed(&there.allowed(peers_cpu)).unwrap();
        let done = between(&client, &server);
        let which = format!("{here} on {cpu:?} dials {there} on {peers_cpu:?}");
        assert_eq!((&done.client_error, &done.server_error), (&None, &None), "{which}");
        assert_eq!((check_peer(&done.client).unwrap(), check_peer(&done.server).unwrap()), ("b".into(), "a".into()));
        let wanted = if names_aegis(here, cpu) && names_aegis(there, peers_cpu) {
            RecordCipher::Aegis128X2
        } else if here == AesGcm || there == AesGcm || *cpu != CPUS[2] {
            RecordCipher::OfSuite(CipherSuite::TLS13_AES_128_GCM_SHA256)
        } else {
            RecordCipher::OfSuite(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256)
        };
        assert_eq!(record_cipher(&done.client), Some(wanted), "{which}");
        assert_eq!(record_cipher(&done.server), Some(wanted), "{which}");
        let names = ["AEGIS-128X2", "AES-128-GCM", "ChaCha20-Poly1305", "AES-256-GCM"];
        met[names.iter().position(|name| *name == wanted.name()).unwrap()] += 1;
    }
    // Of 81 pairs AEGIS has those where both allow it (4 of 9 ends do); ChaCha20 those where the dialling CPU wants it,
    // and the other end allows it.
    assert_eq!(met, [16, 57, 8, 0]);
}

/// Returns the configurations of version 0.1.0, which has one protocol and the suites in this order.
fn of_version_0_1_0(identity: Identity) -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let identity = identity.with_allowed(&CipherPolicy::Auto.allowed(&CPUS[1])).unwrap();
    let mut client = ClientConfig::clone(&client_config(&identity));
    let mut server = ServerConfig::clone(&server_config(&identity));
    client.alpn_protocols = vec![b"skein/1".to_vec()];
    server.alpn_protocols = vec![b"skein/1".to_vec()];
    (Arc::new(client), Arc::new(server))
}

#[test]
fn an_old_peer_gets_a_suite_of_tls() {
    let ca = ca("lab");
    let (b, (old_client, old_server)) = (issue(&ca, "b"), of_version_0_1_0(issue(&ca, "a")));
    for policy in CipherPolicy::ALL {
        let new = b.clone().with_allowed(&policy.allowed(&CPUS[0])).unwrap();
        for done in [
            shake(old_client.clone(), server_config(&new), member_name()),
            shake(client_config(&new), old_server.clone(), member_name()),
        ] {
            assert_eq!((&done.client_error, &done.server_error), (&None, &None), "{policy}");
            for end in [&*done.client as &rustls::CommonState, &*done.server] {
                assert!(check_peer(end).is_ok(), "{policy}");
                let aes = RecordCipher::OfSuite(CipherSuite::TLS13_AES_128_GCM_SHA256);
                assert_eq!((end.alpn_protocol(), record_cipher(end)), (Some(ALPN), Some(aes)), "{policy}");
            }
        }
    }
}

/// What leaves a host that may use AES-GCM only names nothing else, and it refuses a peer that has nothing else.
#[test]
fn aes_gcm_alone_is_all_that_is_named() {
    let ca = ca("lab");
    let a = issue(&ca, "a");
    for cpu in &CPUS {
        let strict = a.clone().with_allowed(&CipherPolicy::AesGcm.allowed(cpu)).unwrap();
        let (client, server) = (client_config(&strict), server_config(&strict));
        for (provider, protocols) in
            [(client.crypto_provider(), &client.alpn_protocols), (server.crypto_provider(), &server.alpn_protocols)]
        {
            let suites: Vec<_> = provider.cipher_suites.iter().map(|suite| suite.suite()).collect();
            assert_eq!(suites, [CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_256_GCM_SHA384]);
            assert_eq!(*protocols, [ALPN]);
        }
        let mut hello = Vec::new();
        let mut client = ClientConnection::new(client, member_name()).unwrap();
        client.write_tls(&mut hello).unwrap();
        let names = |name: &[u8]| hello.windows(name.len()).any(|window| window == name);
        assert!(names(ALPN) && !names(&ALPN_AEGIS[ALPN.len()..]));

        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        let mut roots = RootCertStore::empty();
        roots.add(ca.certificate().clone()).unwrap();
        let mut other = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        other.alpn_protocols = vec![ALPN_AEGIS.to_vec(), ALPN.to_vec()];
        let refused = shake(Arc::new(other), server, member_name());
        let nothing = rustls::PeerIncompatible::NoCipherSuitesInCommon;
        assert_eq!(refused.server_error, Some(rustls::Error::PeerIncompatible(nothing)));
        assert!(refused.client_error.is_some());
        assert_eq!(record_cipher(&refused.server), None);
    }
}

/// Without a word about ciphers an identity has those that suit this CPU.
#[test]
fn the_default_is_auto() {
    let ca = ca("lab");
    let (a, b) = (issue(&ca, "a"), issue(&ca, "b"));
    let auto = a.clone().with_ciphers(CipherPolicy::default()).unwrap();
    assert_eq!(client_config(&a).alpn_protocols, client_config(&auto).alpn_protocols);
    let done = between(&a, &b);
    let first = CipherPolicy::Auto.allowed(CipherSpeeds::of_this_cpu()).first();
    assert_eq!(record_cipher(&done.client).unwrap().name(), first);
}

#[test]
fn what_is_not_tls_is_called_so() {
    let identity = issue(&ca("lab"), "a");
    for bytes in [
        b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n".as_slice(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"QEVM\0\0\0\x03",
        &[0; 64],
    ] {
        let mut client = ClientConnection::new(client_config(&identity), member_name()).unwrap();
        let mut error = None;
        feed(bytes, &mut client, &mut error);
        let text = explain(&error.expect("refused"));
        assert!(text.contains("does not speak TLS"), "{text} for {bytes:?}");
        let mut server = ServerConnection::new(server_config(&identity)).unwrap();
        let mut error = None;
        feed(bytes, &mut server, &mut error);
        let text = explain(&error.expect("refused"));
        assert!(text.contains("does not speak TLS"), "{text} for {bytes:?}");
    }
}
