//! Tests paths that die, stall and come back.

use super::*;

const BYTES: usize = 6_000_000;

/// Sends from a to b, and runs `trouble` once a part has arrived.
fn send_through(joined: &Joined, trouble: impl FnOnce()) {
    let [here, mut there] = joined.connect(0);
    let data = pattern(BYTES);
    let writing = write(&here, &data);
    let mut received = vec![0; BYTES / 4];
    there.read_exact(&mut received).unwrap();
    trouble();
    received.extend(read(&there));
    assert!(received == data);
    writing.join().unwrap();
}

#[test]
fn a_path_that_is_reset_costs_no_byte_and_comes_back() {
    for caps in links() {
        let joined = Joined::new(2, caps);
        send_through(&joined, || {
            joined.hosts.cut(1);
            joined.hosts.network.reset(ip(1, 1), ip(1, 2));
            joined.hosts.mend(1);
        });
        wait_until("the path is back", || joined.is_whole(2));
        assert_eq!(joined.ends().map(|live| live.ended()), [None, None]);
    }
}

#[test]
fn a_path_that_dies_in_silence_leaves_its_data_to_the_other() {
    for caps in links() {
        let joined = Joined::new(2, caps);
        send_through(&joined, || joined.hosts.cut(1));
        wait_until("the other has sent", || joined.sent_bytes().get(&ip(0, 1)).is_some_and(|sent| *sent > 0));
        // Nothing acknowledges what is on the path any more, so the path is given up.
        wait_until("the path is given up", || {
            joined.ends().iter().for_each(|live| live.skip(Duration::from_millis(100)));
            thread::sleep(Duration::from_millis(10));
            joined.is_whole(1)
        });
        send_through(&joined, || ());
        joined.hosts.mend(1);
        wait_until("the path is back", || joined.is_whole(2));
    }
}

#[test]
fn a_path_that_stalls_is_used_again_when_it_moves() {
    for caps in links() {
        let joined = Joined::new(2, caps);
        send_through(&joined, || joined.hosts.stall(1));
        let is_usable = |path| {
            let paths = joined.dialer.live().snapshot().paths;
            paths.iter().any(|up| up.info.local.ip() == ip(path, 1) && up.status.usable)
        };
        wait_until("the stall is noticed", || !is_usable(1));
        wait_until("the other is of use", || is_usable(0));
        joined.hosts.resume(1);
        wait_until("the path moves", || is_usable(1));
        // A path that is just being dialled anew is not listed.
        let sent = || joined.sent_bytes().get(&ip(1, 1)).copied().unwrap_or(0);
        let before = sent();
        wait_until("the path carries data", || {
            send_through(&joined, || ());
            sent() > before + BYTES as u64 / 8
        });
    }
}

/// What is on its way when all paths are gone arrives once a path is back.
#[test]
fn a_session_outlives_the_loss_of_all_its_paths() {
    let joined = Joined::new(2, FAKE_CAPS);
    send_through(&joined, || {
        for path in [0, 1] {
            joined.hosts.cut(path);
            joined.hosts.network.reset(ip(path, 1), ip(path, 2));
        }
        wait_for_loss(&joined);
        joined.hosts.mend(1);
    });
    assert_eq!(joined.ends().map(|live| live.ended()), [None, None]);
}
