//! Tests which networks carry data.

use super::*;

const BYTES: usize = 6_000_000;
/// Bounds what hosts tell each other while so much data goes elsewhere: acknowledgements, credit, pings.
const SMALL: u64 = BYTES as u64 / 20;

fn begin(addresses: [Addresses; 2]) -> Joined {
    Joined::begin(3, FAKE_CAPS, Duration::from_secs(60), addresses)
}

/// Returns the data connections of a's paths, by path.
fn data_connections(joined: &Joined) -> Vec<usize> {
    let paths = joined.dialer.live().snapshot().paths;
    let of = |path| paths.iter().find(|up| up.info.local.ip() == ip(path, 1) && up.status.has_control_connection);
    (0..3).map(|path| of(path).map_or(usize::MAX, |up| up.status.data_connections)).collect()
}

/// Sends data both ways, and returns what each path of a carried meanwhile, both ends together.
fn carried(joined: &Joined) -> Vec<u64> {
    let sent = |path| {
        let of = |live: &RunningSession| {
            let paths = live.snapshot().paths.into_iter();
            let here = paths.filter(|up| [ip(path, 1), ip(path, 2)].contains(&up.info.local.ip()));
            here.map(|up| up.status.sent_bytes).sum::<u64>()
        };
        joined.ends().into_iter().map(|live| of(live)).sum::<u64>()
    };
    let before: Vec<u64> = (0..3).map(sent).collect();
    for from in [0, 1] {
        let [here, there] = joined.connect(from);
        let data = pattern(BYTES);
        let writing = write(&here, &data);
        assert!(read(&there) == data);
        writing.join().unwrap();
    }
    (0..3).map(sent).zip(before).map(|(now, before)| now.saturating_sub(before)).collect()
}

/// Tests that the wanted connections are there, and that data goes as it is to. There are several tries: a path that
/// stalls for a moment leaves its small frames to others, and a path that is dialled anew counts anew.
fn assert_carried(joined: &Joined, wanted: [usize; 3], is_so: impl Fn(&[u64]) -> bool) {
    let mut all = Vec::new();
    for _ in 0..5 {
        wait_until("data goes where it is to", || data_connections(joined) == wanted);
        let carried = carried(joined);
        if is_so(&carried) {
            return;
        }
        all.push(carried);
    }
    panic!("{all:?}");
}

/// Tests that it does not matter which end excludes a network, nor that the session began on it.
#[test]
fn an_excluded_network_carries_no_data() {
    let excluding = || Addresses { excluded: vec!["10.0.0.0/24".parse().unwrap()], ..Addresses::default() };
    for addresses in [[Addresses::default(), excluding()], [excluding(), Addresses::default()]] {
        let joined = begin(addresses);
        // How the two share the data depends on which threads a busy machine lets run.
        let is_shared = |of: &[u64]| of[0] < SMALL && of[1] + of[2] > 2 * BYTES as u64;
        assert_carried(&joined, [0, DATA_CONNECTIONS, DATA_CONNECTIONS], is_shared);
        wait_until("it is told why", || {
            let is_told = |up: &crate::PathSnapshot| up.info.local.ip() == ip(0, 1) && up.carries.contains("excluded");
            joined.dialer.live().snapshot().paths.iter().any(is_told)
        });
        // Not even when no other path is left.
        joined.hosts.cut(1);
        joined.hosts.cut(2);
        wait_until("the others are given up", || {
            joined.ends().iter().for_each(|live| live.skip(Duration::from_millis(100)));
            thread::sleep(Duration::from_millis(10));
            let usable = |up: &&crate::PathSnapshot| up.status.usable;
            joined.dialer.live().snapshot().paths.iter().filter(usable).all(|up| up.info.local.ip() == ip(0, 1))
        });
        thread::sleep(Duration::from_secs(1));
        // The path is there without connections for data, or was given up for a moment.
        assert!([0, usize::MAX].contains(&data_connections(&joined)[0]));
    }
}

/// Tests that a session ends whose data waits for networks that are all excluded, at whichever end data waits.
#[test]
fn data_that_no_network_may_carry_ends_the_session_after_the_outage() {
    let outage = Duration::from_secs(5);
    let excluding = || Addresses { excluded: vec!["10.0.0.0/16".parse().unwrap()], ..Addresses::default() };
    for (excludes, sends) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut addresses = [Addresses::default(), Addresses::default()];
        addresses[excludes] = excluding();
        let joined = Joined::begin(2, FAKE_CAPS, outage, addresses);
        let ends = joined.ends();
        wait_until("both ends know", || {
            let knows = |live: &RunningSession| {
                let paths = live.snapshot().paths;
                paths.len() == 2 && paths.iter().all(|path| path.excluded.any() && !path.carries_data())
            };
            ends.iter().all(|live| knows(live))
        });
        let sockets = joined.connect(sends);
        let writing = write_on(&sockets[sends]);
        let is_prompt = |live: &RunningSession| {
            let paths = live.snapshot().paths;
            live.ended().is_none() && paths.len() == 2 && paths.iter().all(|path| path.status.usable)
        };
        let waits = || {
            // Pings are answered in real time. While an answer is late, or a goodbye is on its way, time does not run
            // ahead.
            thread::sleep(Duration::from_millis(5));
            if ends.iter().all(|live| is_prompt(live)) {
                ends.iter().for_each(|live| live.skip(Duration::from_millis(50)));
            }
            ends.iter().all(|live| live.ended().is_some())
        };
        wait_until("the session is called off", waits);
        let why = joined.ends()[sends].ended().unwrap();
        let excluded = if excludes == 0 { "10.0.0.1, 10.0.1.1" } else { "10.0.0.2, 10.0.1.2" };
        assert!(matches!(&why, Ended::Barred { waited, .. } if *waited == outage), "{why}");
        assert!(why.to_string().starts_with(&format!("no path may carry data: {excluded} are excluded")), "{why}");
        let told = joined.ends()[1 - sends].ended().unwrap();
        assert!(matches!(&told, Ended::ClosedByPeer { reason, .. } if *reason == why.to_string()), "{told}");
        writing.join().unwrap();
    }
}

#[test]
fn a_preferred_network_carries_all_data_while_it_is_there() {
    let preferring = Addresses { preferred: vec!["10.0.1.0/24".parse().unwrap()], ..Addresses::default() };
    let joined = begin([preferring, Addresses::default()]);
    let preferred = [0, DATA_CONNECTIONS, 0];
    assert_carried(&joined, preferred, |of| of[0] < SMALL && of[1] > BYTES as u64 && of[2] < SMALL);
    // What goes over it when it is lost goes over the others.
    let [here, mut there] = joined.connect(0);
    let data = pattern(BYTES);
    let writing = write(&here, &data);
    let mut received = vec![0; BYTES / 4];
    there.read_exact(&mut received).unwrap();
    joined.hosts.cut(1);
    wait_until("the others carry data", || {
        joined.ends().iter().for_each(|live| live.skip(Duration::from_millis(100)));
        thread::sleep(Duration::from_millis(10));
        data_connections(&joined)[0] == DATA_CONNECTIONS
    });
    received.extend(read(&there));
    assert!(received == data);
    writing.join().unwrap();
    joined.hosts.mend(1);
    wait_until("the preferred carries data again", || data_connections(&joined) == preferred);
}

/// Tests that queues at both ends decide how many connections there are, and that nothing is lost where they get fewer.
#[test]
fn paths_have_as_many_connections_as_queues_at_both_ends_are_worth() {
    let addresses = [Addresses::default(), Addresses::default()];
    let joined = Joined::begin_with(2, FAKE_CAPS, Duration::from_secs(60), addresses, WantedConnections::Auto);
    let have = |wanted: [usize; 2]| wait_until("they have so many", || data_connections(&joined)[..2] == wanted);
    have([2, 2]);
    wait_until("queues matter", || joined.dialer.needs_remote_queues());
    let told = |queues: [u32; 2]| {
        let queues = (0..2).map(|path| (format!("eth{path}"), queues[path])).collect();
        joined.dialer.set_remote_queues(queues);
    };
    told([QUEUES, 1]);
    have([4, 2]);
    assert!(!joined.dialer.needs_remote_queues());
    let paths = joined.dialer.live().snapshot().paths.into_iter();
    let words: BTreeMap<String, String> = paths.map(|path| (path.info.nic, path.connections)).collect();
    let words: Vec<String> = words.into_values().collect();
    assert_eq!(words, ["4: the NICs have 8 queues or more at both ends", "2: a NIC has one queue"]);
    let [here, mut there] = joined.connect(0);
    let data = pattern(BYTES);
    let writing = write(&here, &data);
    let mut received = vec![0; BYTES / 4];
    there.read_exact(&mut received).unwrap();
    told([1, QUEUES]);
    have([2, 4]);
    received.extend(read(&there));
    assert!(received == data);
    writing.join().unwrap();
}
