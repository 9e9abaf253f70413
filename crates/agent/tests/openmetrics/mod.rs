//! A scraper of an agent, and a strict reader of what agents tell.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use skein_agent::{Agent, ScrapeAddress};
use skein_metrics::{Family, agent, scraping};

use crate::world::PATIENCE;

const ASK: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

/// Connects as a scraper does.
pub fn connect(agent: &Agent) -> TcpStream {
    let Some(ScrapeAddress::Tcp(address)) = agent.metrics_address() else { panic!("it listens nowhere") };
    let socket = TcpStream::connect_timeout(address, PATIENCE).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Scrapes an agent, and reads what it tells.
#[track_caller]
pub fn scrape(agent: &Agent) -> Values {
    let end = Instant::now() + PATIENCE;
    let answer = loop {
        let (mut socket, mut answer) = (connect(agent), String::new());
        // The agent cuts connections where too many wait, as others do on a busy machine.
        match socket.write_all(ASK).and_then(|()| socket.read_to_string(&mut answer)) {
            Ok(1..) => break answer,
            cut => assert!(Instant::now() < end, "{cut:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    parse(text)
}

/// Values by name and labels.
pub type Values = BTreeMap<String, f64>;

/// Reads a text as OpenMetrics has it, and only that: families one after the other, each with its help and type before
/// its samples, names and labels as they are declared, and the end.
fn parse(text: &str) -> Values {
    let families: BTreeMap<&str, &Family> =
        agent::FAMILIES.iter().chain(scraping::FAMILIES).map(|family| (family.name, *family)).collect();
    let body = text.strip_suffix("# EOF\n").expect("the end");
    let (mut values, mut family, mut told) = (Values::new(), String::new(), BTreeSet::new());
    for line in body.lines() {
        if let Some(about) = line.strip_prefix("# ") {
            let [word, name, rest] = about.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            match word {
                "HELP" => assert!(told.insert(name.to_owned()) && !rest.is_empty(), "{line}"),
                "TYPE" => assert!(["counter", "gauge", "histogram", "info"].contains(&rest), "{line}"),
                "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            family = name.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect(line);
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}');
        assert!(name.starts_with(&family), "{line} comes under {family}");
        let parts = ["_bucket", "_sum", "_count"];
        let plain = parts.iter().find_map(|part| name.strip_suffix(part)).filter(|plain| families.contains_key(plain));
        let declared = families.get(plain.unwrap_or(name)).unwrap_or_else(|| panic!("{name} is not declared"));
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let label = label.split_once("=\"").expect(line).0;
            assert!(label == "le" || declared.labels.iter().any(|of| of.name == label), "{line}");
        }
        assert!(values.insert(series.to_owned(), value.parse().expect(line)).is_none(), "{line} comes twice");
    }
    values
}

/// Scrapes until something is so.
#[track_caller]
pub fn until(agent: &Agent, what: &str, is: impl Fn(&Values) -> bool) -> Values {
    let end = Instant::now() + PATIENCE;
    loop {
        let values = scrape(agent);
        if is(&values) {
            return values;
        }
        assert!(Instant::now() < end, "{what}: {values:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
