//! Tests what measures paths.

use std::time::Instant;

use skein_session::Width;

use super::*;
use crate::{FlowInput, PathSurvey, ResetCode};

/// Sends so many bytes over a flow, and returns how many came out and what came then.
fn send(joined: &Joined, width: Width, pieces: usize) -> (usize, FlowInput) {
    const PIECE_BYTES: usize = 128 << 10;
    let [a, b] = joined.ends();
    let near = a.open_flow("there", width).unwrap();
    let incoming = joined.streams[1].lock().unwrap().recv_timeout(PATIENCE).unwrap();
    assert!(a.leads_to(|destination| destination == "there") && b.leads_to(|destination| destination == "there"));
    let far = b.take_flow(incoming.stream, Width::All);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..pieces {
                assert!(near.send(vec![7; PIECE_BYTES].into(), Instant::now() + PATIENCE));
            }
            near.finish();
        });
        let mut bytes = 0;
        while let FlowInput::Bytes(more) = far.receive(PATIENCE) {
            bytes += more.len();
        }
        far.refuse(ResetCode::Busy, "that was enough");
        assert_eq!(bytes, pieces * PIECE_BYTES);
        (bytes, near.receive(PATIENCE))
    })
}

#[test]
fn a_flow_goes_over_its_path_and_tells_why_it_ends() {
    for caps in links() {
        let joined = Joined::new(2, caps);
        let path = joined.dialer.paths().iter().find(|path| path.local.ip == ip(1, 1)).unwrap().path;
        let before = joined.sent_bytes();
        let (bytes, end) = send(&joined, Width::Only(path), 40);
        assert_eq!(end, FlowInput::Reset("that was enough".into()));
        let after = joined.sent_bytes();
        let sent = |path: u8| after[&ip(path, 1)] - before[&ip(path, 1)];
        assert!(sent(1) >= bytes as u64 && sent(0) < bytes as u64 / 100, "{} and {}", sent(0), sent(1));
        wait_until("nothing is left", || joined.ends().iter().all(|live| !live.leads_to(|_| true)));
    }
}

#[test]
fn a_flow_whose_path_is_gone_ends_by_its_deadline() {
    let joined = Joined::new(2, FAKE_CAPS);
    let path = joined.dialer.paths().iter().find(|path| path.local.ip == ip(1, 1)).unwrap().path;
    let near = joined.ends()[0].open_flow("there", Width::Only(path)).unwrap();
    joined.hosts.stall(1);
    let end = Instant::now() + Duration::from_millis(300);
    while near.send(vec![7; 128 << 10].into(), end) {}
    assert!(Instant::now() >= end, "until then there may be room again");
    assert_eq!(near.receive(Duration::from_millis(1)), FlowInput::Nothing);
    near.refuse(ResetCode::Done, "it was measured");
    assert!(!near.send(vec![7; 1].into(), Instant::now() + PATIENCE));
}

#[test]
fn the_largest_packet_that_passes_is_found() {
    let joined = Joined::new(2, FAKE_CAPS);
    joined.hosts.network.lose_packets_above(ip(0, 1), ip(0, 2), Some(1432));
    let told = Mutex::new(Vec::new());
    let survey = |path: u8| {
        let paths = joined.dialer.paths();
        let path = paths.iter().find(|found| found.local.ip == ip(path, 1)).unwrap();
        joined.dialer.survey(path, &|passes, lost| told.lock().unwrap().push((passes, lost)))
    };
    let PathSurvey { round_trips, passes, lost } = survey(0);
    assert_eq!((passes, lost), (Some(1428), Some(1442)));
    assert!(round_trips.len() >= 5 && round_trips.is_sorted());
    assert_eq!(*told.lock().unwrap(), [(1400, 1500)]);
    let sound = survey(1);
    assert_eq!((sound.passes, sound.lost), (Some(1500), None));
    assert_eq!(told.lock().unwrap().len(), 1);
    joined.hosts.cut(1);
    assert_eq!(survey(1), PathSurvey::default());
}
