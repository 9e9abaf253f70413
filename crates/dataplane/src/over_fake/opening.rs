//! Tests how sessions begin.

use skein_link::TrafficClass;
use skein_session::{ConnectionId, ConnectionKind, PathId, Role, SessionId, Settings};

use super::*;
use crate::StartError;
use crate::connection::AddError;
use crate::running_session::PathInfo;

#[test]
fn a_session_opens_over_one_path_and_over_two() {
    for caps in links() {
        for paths in [1, 2] {
            let joined = Joined::new(paths, caps);
            assert_eq!(joined.ends().map(|live| live.peer().to_owned()), ["b", "a"]);
            for live in joined.ends() {
                let mut names: Vec<String> = live.snapshot().paths.into_iter().map(|path| path.info.nic).collect();
                // A path that was dialled anew comes last.
                names.sort();
                let wanted: Vec<String> = (0..paths).map(|path| format!("eth{path}")).collect();
                assert_eq!(names, wanted);
                assert_eq!(live.snapshot().problems, []);
            }
        }
    }
}

/// Acknowledgements that wait behind others' traffic hold up the data.
#[test]
fn both_ends_of_control_and_data_connections_are_marked() {
    let joined = Joined::new(2, FAKE_CAPS);
    let marked = joined.hosts.network.marked();
    // A path that was dialled anew has more.
    assert!(marked.len() >= 2 * 2 * (1 + DATA_CONNECTIONS), "{marked:?}");
    assert!(marked.iter().all(|class| *class == TrafficClass::BULK), "{marked:?}");
}

#[test]
fn whoever_dials_another_host_than_the_named_one_is_told() {
    let joined = Joined::new(1, FAKE_CAPS);
    let link = Arc::new(joined.hosts.a.link(Security::Encrypted));
    let host = DialingHost { nics: joined.hosts.a.clone(), rails: None, control: link.clone(), data: link };
    let settings = DialerSettings {
        to: vec![joined.dialer.to()],
        host: Some("c".into()),
        addresses: Addresses::default(),
        connections: WantedConnections::Fixed(1),
        tells_queues: false,
        plain_data: false,
        outage: PATIENCE,
    };
    let error = Dialer::start_from(host.clone(), settings.clone()).err().unwrap();
    let StartError::Unreachable { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().starts_with("10.0.0.2:40000 is b, not c"), "{source}");
    // Nobody listens at this address.
    let settings = DialerSettings { to: vec![SocketAddr::new(ip(0, 2), 9)], ..settings };
    assert!(Dialer::start_from(host, settings).err().unwrap().is_refused());
}

/// What a session sends must arrive or fail, and must not pile up.
#[test]
fn a_link_that_promises_too_little_is_refused() {
    let network = FakeNetwork::new(FAKE_CAPS, 7);
    let (live, _streams) =
        RunningSession::start(Role::Dialer, Settings::default(), SessionId([7; 16]), "b".into(), Vec::new(), None)
            .unwrap();
    let unreliable = Caps { reliable: false, ..FAKE_CAPS };
    let unbounded = Caps { flow_controlled: false, ..FAKE_CAPS };
    for (caps, id) in [(unreliable, 0), (unbounded, 1), (FAKE_CAPS, 2)] {
        let (mut here, _there) = network.connect(ip(0, 1), ip(0, 2));
        here.caps = caps;
        let (local, remote) = (SocketAddr::new(ip(0, 1), 0), SocketAddr::new(ip(0, 2), 0));
        let info = PathInfo { nic: "eth0".into(), local, remote };
        let added = live.add_connection(ConnectionId(id), PathId(id), ConnectionKind::Control, info, None, here);
        match added {
            Err(AddError::Unsuitable(lacking)) => assert_eq!(lacking, caps),
            added => assert!(added.is_ok() && caps == FAKE_CAPS, "{added:?} {caps:?}"),
        }
    }
    live.close("the test is over");
}
