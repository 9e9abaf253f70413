//! Tests scrapers of all kinds on a real listener: those that ask as they should, and worse.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use skein_metrics::{Samples, ScrapeAddress, ScrapeServer, ScrapeService, agent};

/// The time within which anything happens, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a connection that is dropped is tried again: less than the 5 s after which one that says nothing is cut.
const SOON: Duration = Duration::from_secs(4);
const ASK: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n";

struct World {
    server: ScrapeServer,
    computed: Arc<AtomicUsize>,
}

impl World {
    fn new() -> World {
        let computed = Arc::new(AtomicUsize::new(0));
        let counted = computed.clone();
        let collect = move |samples: &mut Samples| {
            counted.fetch_add(1, Ordering::SeqCst);
            samples.set(&agent::IN_DOUBT, &[], 3_u64);
            // As large as values can be: more than a socket takes at once.
            (0..5000_u32).for_each(|at| samples.set(&agent::TOTAL, &[&format!("{at:0>100}")], at));
        };
        World { server: ScrapeServer::start(&"127.0.0.1:0".parse().unwrap(), collect).unwrap(), computed }
    }

    fn address(&self) -> SocketAddr {
        match self.server.address() {
            ScrapeAddress::Tcp(address) => *address,
            ScrapeAddress::Unix(_) => unreachable!(),
        }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect_timeout(&self.address(), PATIENCE).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Returns the answer to some bytes; what cannot be sent any more is left.
    fn say(&self, bytes: &[u8]) -> String {
        let mut socket = self.connect();
        let _ = socket.write_all(bytes);
        answer(&mut socket)
    }

    #[track_caller]
    fn serves(&self) {
        let begun = Instant::now();
        let mut answer = self.say(ASK);
        // While threads of cut connections are held up, a connection may be dropped.
        while answer.is_empty() && begun.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(20));
            answer = self.say(ASK);
        }
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\n# EOF\n"), "{answer:.300}");
        assert!(begun.elapsed() < PATIENCE / 4);
    }
}

fn answer(socket: &mut impl Read) -> String {
    let mut answer = Vec::new();
    // The end may be a reset, where what was sent was not all read.
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_scraper_gets_openmetrics_and_values_are_computed_seldom() {
    let world = World::new();
    let text = world.say(ASK);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{head}"
    );
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())) && body.len() > 100_000, "{head}");
    assert!(body.contains("\nskein_migrations_in_doubt 3\n") && body.ends_with("\n# EOF\n"));
    assert!(body.contains(&format!("skein_scrape_left_out_series {}\n", 5000 - skein_metrics::SERIES_MAX)));
    let begun = Instant::now();
    for _ in 0..40 {
        world.serves();
    }
    let most = begun.elapsed().as_millis() / 500 + 2;
    let computed = world.computed.load(Ordering::SeqCst) as u128;
    assert!(computed <= most, "{computed} times, {most} at most");
    // An answer counts some time after it was read, and a text has the counts of when it was computed.
    let begun = Instant::now();
    for answered in 41_u32.. {
        std::thread::sleep(Duration::from_millis(600));
        let text = world.say(ASK);
        let counted = text.lines().find_map(|line| line.strip_prefix("skein_scrapes_total{answer=\"200\"} "));
        let counted = counted.map_or(0.0, |count| count.parse::<f64>().unwrap());
        assert!(counted <= f64::from(answered) && begun.elapsed() < PATIENCE, "{counted} of {answered}");
        if counted >= 40.0 {
            break;
        }
    }
}

#[test]
fn what_is_no_scrape_is_refused_with_its_status() {
    let world = World::new();
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let cases: [(&[u8], &str); 7] = [
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "400"),
        (b"\0\0\0\n\n", "400"),
        (long.as_bytes(), "431"),
        (&[b'x'; 9000], "431"),
    ];
    for (said, status) in cases {
        let answer = world.say(said);
        let shown = String::from_utf8_lossy(&said[..said.len().min(40)]);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {answer:.80}");
        assert!(!answer.contains("# EOF"));
    }
    assert!(world.say(b"PUT /metrics HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET\r\n"));
    world.serves();
}

#[test]
fn scrapers_that_do_nothing_keep_nobody_away() {
    let world = World::new();
    // They connect and say nothing, half of a request, or ask and never read: more than are served at once.
    let idle: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut socket = world.connect();
            let said: &[u8] = [b"", &ASK[..20], ASK][number % 3];
            let _ = socket.write_all(said);
            socket
        })
        .collect();
    for _ in 0..5 {
        world.serves();
    }
    drop(idle);
    world.serves();
}

#[test]
fn one_that_speaks_slowly_is_cut() {
    let world = World::new();
    let begun = Instant::now();
    let mut slow = world.connect();
    for byte in ASK.iter().cycle() {
        // The end of the connection shows as an error soon after it.
        if slow.write_all(&[*byte | 0x80]).is_err() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it is never cut");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(begun.elapsed() > Duration::from_secs(4));
    world.serves();
}

#[test]
fn a_unix_socket_does_as_well_and_a_stale_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    let address = ScrapeAddress::Unix(path.clone());
    let collect = |samples: &mut Samples| samples.set(&agent::IN_DOUBT, &[], 0_u64);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = ScrapeServer::start(&address, collect).unwrap();
    assert!(ScrapeServer::start(&address, collect).is_err(), "one listens there");
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.write_all(ASK).unwrap();
    assert!(answer(&mut socket).ends_with("# EOF\n"));
    server.stop();
    assert!(UnixStream::connect(&path).is_err());
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, "a file that somebody needs").unwrap();
    assert!(ScrapeServer::start(&address, collect).is_err());
    assert!(path.exists());
}

#[test]
fn an_address_that_comes_late_is_served_and_one_that_never_comes_holds_up_no_end() {
    // No other test listens at this address, so nobody takes the port meanwhile.
    let holder = TcpListener::bind("127.77.0.2:0").unwrap();
    let address = ScrapeAddress::Tcp(holder.local_addr().unwrap());
    let start = move || {
        let collect = |samples: &mut Samples| samples.set(&agent::IN_DOUBT, &[], 0_u64);
        ScrapeServer::start(&address, collect)
    };
    let never = ScrapeService::start(start.clone());
    let begun = Instant::now();
    never.stop();
    assert!(never.address().is_none() && begun.elapsed() < PATIENCE / 4);

    let late = ScrapeService::start(start);
    assert!(late.address().is_none(), "somebody else listens there");
    let at = holder.local_addr().unwrap();
    drop(holder);
    let begun = Instant::now();
    while late.address().is_none() {
        assert!(begun.elapsed() < PATIENCE, "it is never tried again");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut socket = TcpStream::connect_timeout(&at, PATIENCE).unwrap();
    socket.write_all(ASK).unwrap();
    assert!(answer(&mut socket).ends_with("# EOF\n"));
    late.stop();
    assert!(TcpStream::connect_timeout(&at, PATIENCE).is_err());
}
