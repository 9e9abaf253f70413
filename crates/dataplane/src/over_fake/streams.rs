//! Tests what streams carry.

use super::*;

const BYTES: usize = 3_000_000;

#[test]
fn bytes_go_both_ways_whoever_opens_the_stream_and_whoever_is_done_first() {
    for caps in links() {
        let joined = Joined::new(2, caps);
        let data = [pattern(BYTES), pattern(BYTES / 3)];
        for (opening, first) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let sockets = joined.connect(opening);
            let last = 1 - first;
            // One end is done, and the other says all that it has to say after that.
            let writing = write(&sockets[first], &data[first]);
            assert!(read(&sockets[last]) == data[first]);
            writing.join().unwrap();
            let writing = write(&sockets[last], &data[last]);
            assert!(read(&sockets[first]) == data[last]);
            writing.join().unwrap();
        }
        wait_until("nothing is left", || joined.ends().iter().all(|live| live.snapshot().streams == 0));
    }
}

#[test]
fn streams_do_not_wait_for_one_that_nobody_reads() {
    let joined = Joined::new(1, FAKE_CAPS);
    let [unread, _nobody] = joined.connect(0);
    let stuck = write_on(&unread);
    for _ in 0..3 {
        let [here, there] = joined.connect(0);
        let writing = write(&here, &pattern(BYTES));
        assert!(read(&there) == pattern(BYTES));
        writing.join().unwrap();
    }
    assert!(!stuck.is_finished());
    unread.shutdown(std::net::Shutdown::Both).unwrap();
    stuck.join().unwrap();
}

/// A program that closes its socket while the other end still writes ends the stream, and no other stream.
#[test]
fn a_socket_that_breaks_ends_its_stream_alone() {
    let joined = Joined::new(1, FAKE_CAPS);
    let [lasting, also] = joined.connect(0);
    let [broken, writing] = joined.connect(0);
    let writes = write_on(&writing);
    drop(broken);
    writes.join().unwrap();
    let sent = write(&lasting, b"still there");
    assert_eq!(read(&also), b"still there");
    sent.join().unwrap();
}
