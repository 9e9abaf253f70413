//! Tests that a host's certificate is renewed while it is in use: by connections to controllers, and by a session of
//! two agents.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant, SystemTime};

use skein_api::{Refusal, Reply, Term, ToAgent, ToController};
use skein_dataplane::{AcceptorSettings, Addresses};
use skein_fake_controller::{AgentConnection, COMMAND_TIME};
use skein_identity::{CertificateDer, ClusterCa, Identity, Validity, certificate_pem};
use skein_network::WantedConnections;

use super::tests::{TIMES, World, stop_request};
use crate::Allow;
use crate::peers::{CONTROL_VERSIONS, Peers, PeersSettings};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a time of which a third or less is left, so that a certificate of it is renewed at once.
fn due(left: Duration) -> Validity {
    let now = SystemTime::now();
    Validity { not_before: now - 2 * left, not_after: now + left }
}

/// Returns an identity that is in a directory.
fn saved(ca: &ClusterCa, dir: &Path, validity: Validity) -> Identity {
    let at = dir.join("identity");
    ca.issue("hosta", validity).unwrap().save(&at).unwrap();
    Identity::load(&at).unwrap()
}

/// Returns an agent's share in talking to others.
fn peers(dir: &Path, identity: &Identity) -> Peers {
    let settings = PeersSettings {
        acceptor: AcceptorSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            addresses: Addresses { nics: vec!["lo".into()], ..Addresses::default() },
            allow_plain_data: false,
            outage: Duration::from_secs(60),
        },
        allow: Allow::new(&["/nowhere/*"]).unwrap(),
        hosts_file: dir.join("hosts.toml"),
        migration_network: "/nowhere/migration-network.toml".into(),
        hosts_cache: None,
        connections: WantedConnections::Fixed(1),
        plain_data: false,
        versions: CONTROL_VERSIONS,
    };
    let (events, _) = sync_channel(64);
    Peers::start(settings, identity, Arc::new(|_, _| Err("nothing is asked here".into())), events).unwrap()
}

fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + COMMAND_TIME;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Takes lines until the agent asks for another certificate.
fn asked(agent: &mut AgentConnection<UnixStream>) {
    let end = Instant::now() + COMMAND_TIME;
    loop {
        match agent.next(COMMAND_TIME) {
            Some(ToController::Renew) => return,
            Some(_) => assert!(Instant::now() < end, "it does not ask"),
            None => panic!("it hung up"),
        }
    }
}

#[test]
fn a_certificate_is_renewed_again_and_again_while_a_session_is_open() {
    let (ca, dir) = (ClusterCa::create("lab").unwrap(), tempfile::tempdir().unwrap());
    // The agents meet, and the certificate is renewed for the first time, within this time on a busy machine, too.
    let first_ends = Instant::now() + 45 * SECOND;
    let identity = saved(&ca, dir.path(), due(45 * SECOND));
    let hostb = ca.issue("hostb", Validity::days(1)).unwrap();
    let (a, b) = (peers(dir.path(), &identity), peers(dir.path(), &hostb));
    let host = |name: &str, port: u16| format!("[[host]]\nname = '{name}'\naddress = ['127.0.0.1:{port}']\n");
    fs::write(dir.path().join("hosts.toml"), host("hosta", a.port()) + &host("hostb", b.port())).unwrap();
    a.reach("hostb");
    until("the agents meet", || a.contact("hostb") && b.contact("hosta"));
    let session = a.snapshots()[0].session.clone();

    let world = World::of(ca, identity.clone(), &["ctl1"], TIMES);
    let fake = world.fake("ctl1");
    let mut shown: Vec<CertificateDer<'static>> = vec![identity.chain()[0].clone()];
    for round in 1..=4 {
        let mut agent = world.connect("ctl1", &fake);
        assert_eq!(agent.certificate(), shown[shown.len() - 1], "round {round}");
        // Whoever does not lead is not asked.
        agent.send(&ToAgent::Leads { term: Term(round) }).unwrap();
        asked(&mut agent);
        // The first answer helps nothing, and it is asked again.
        if round == 1 {
            let refusal = Refusal { message: "not now".into(), cure: "later".into() };
            agent.send(&ToAgent::NotRenewed(refusal)).unwrap();
            asked(&mut agent);
            agent.send(&ToAgent::Renewed { certificate: "garbage".into() }).unwrap();
            asked(&mut agent);
        }
        let new =
            world.ca.renew(&agent.certificate(), due(60 * SECOND + u32::try_from(round).unwrap() * SECOND)).unwrap();
        agent.send(&ToAgent::Renewed { certificate: certificate_pem(&new) }).unwrap();
        until("it is shown", || identity.chain()[0] == new);
        assert_eq!(Identity::load(&dir.path().join("identity")).unwrap().chain()[0], new);
        until("they are in contact", || a.contact("hostb") && b.contact("hosta"));
        shown.push(new);
        // It dials by itself, and shows the new one.
        drop(agent);
    }
    std::thread::sleep(first_ends.saturating_duration_since(Instant::now()) + SECOND);
    // The certificate that the session began with has ended, and the session goes on.
    let sessions: Vec<String> = a.snapshots().into_iter().map(|session| session.session).collect();
    assert_eq!(sessions, [session]);
    until("they are in contact", || a.contact("hostb") && b.contact("hosta"));
    // New sessions are opened by both ends.
    a.leave("hostb");
    until("the session ends", || a.snapshots().is_empty());
    b.reach("hosta");
    until("the agents meet, as the other dials", || a.contact("hostb") && b.contact("hosta"));
    b.leave("hosta");
    until("that session ends", || b.snapshots().is_empty());
    a.reach("hostb");
    until("the agents meet again", || a.contact("hostb") && b.contact("hosta"));
}

#[test]
fn a_connection_waits_for_its_commands_before_it_shows_the_new_certificate() {
    let (ca, dir) = (ClusterCa::create("lab").unwrap(), tempfile::tempdir().unwrap());
    let identity = saved(&ca, dir.path(), due(3600 * SECOND));
    let world = World::of(ca, identity.clone(), &["ctl1", "ctl2"], TIMES);
    let (leader, follower) = (world.fake("ctl1"), world.fake("ctl2"));
    let mut other = world.connect("ctl2", &follower);
    let mut agent = world.connect("ctl1", &leader);
    other.send(&ToAgent::Leads { term: Term(1) }).unwrap();
    asked(&mut other);
    // A later leader is the one that is asked, though only after a while.
    agent.send(&ToAgent::Leads { term: Term(2) }).unwrap();
    world.host.halt(true);
    agent.command(1, Term(2), None, stop_request());
    until("the command is begun", || world.host.has_run("VmStop") == 1);
    let new = world.ca.renew(&other.certificate(), Validity::days(9)).unwrap();
    other.send(&ToAgent::Renewed { certificate: certificate_pem(&new) }).unwrap();
    // The other connection has nothing to wait for.
    assert_eq!(world.connect("ctl2", &follower).certificate(), new);
    world.host.halt(false);
    assert!(matches!(agent.reply(1), Ok(Reply::Done)));
    assert_eq!(world.connect("ctl1", &leader).certificate(), new);
}
