//! Tests whole handshakes between two ends in memory: who gets in, and what each end is told when not.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, ServerConfig, ServerConnection};
use skein_identity::{ClusterCa, Identity, Validity, check_peer, client_config, explain, member_name, server_config};

fn ca(name: &str) -> ClusterCa {
    ClusterCa::create(name).unwrap()
}

fn issue(ca: &ClusterCa, host: &str) -> Identity {
    ca.issue(host, Validity::days(1)).unwrap()
}

/// The first error that each end meets, if any, after all bytes have gone both ways.
struct Outcome {
    client: ClientConnection,
    server: ServerConnection,
    client_error: Option<rustls::Error>,
    server_error: Option<rustls::Error>,
}

impl Outcome {
    /// What a person at each end reads.
    #[track_caller]
    fn errors_at_both_ends(&self) -> (String, String) {
        let text = |error: &Option<rustls::Error>| explain(error.as_ref().expect("this end must have failed"));
        (text(&self.client_error), text(&self.server_error))
    }
}

fn shake(client: Arc<ClientConfig>, server: Arc<ServerConfig>, name: ServerName<'static>) -> Outcome {
    let mut client = ClientConnection::new(client, name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    let (mut client_error, mut server_error) = (None, None);
    // A full handshake takes two round trips; twice as many would be a loop.
    for _ in 0..4 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        feed(&wire, &mut server, &mut server_error);
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        feed(&wire, &mut client, &mut client_error);
    }
    assert!(!client.wants_write() && !server.wants_write());
    Outcome { client, server, client_error, server_error }
}

/// Gives bytes to one end. An end that failed keeps its first error, and takes no more.
fn feed<Data>(
    mut wire: &[u8],
    end: &mut impl std::ops::DerefMut<Target = rustls::ConnectionCommon<Data>>,
    error: &mut Option<rustls::Error>,
) {
    while !wire.is_empty() && error.is_none() {
        end.read_tls(&mut wire).unwrap();
        *error = end.process_new_packets().err();
    }
}

fn between(client: &Identity, server: &Identity) -> Outcome {
    shake(client_config(client), server_config(server), member_name())
}

#[test]
fn members_meet_and_know_each_other() {
    let ca = ca("lab");
    let mut done = between(&issue(&ca, "alpha"), &issue(&ca, "beta.example.org"));
    assert_eq!((&done.client_error, &done.server_error), (&None, &None));
    assert_eq!(check_peer(&done.client).unwrap(), "beta.example.org");
    assert_eq!(check_peer(&done.server).unwrap(), "alpha");
    assert_eq!(done.client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(done.client.negotiated_cipher_suite().unwrap().suite(), rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    assert_eq!(done.client.alpn_protocol(), Some(skein_identity::ALPN));

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
    bare.alpn_protocols = vec![skein_identity::ALPN.to_vec()];
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
