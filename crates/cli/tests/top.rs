//! Tests `skein top` where there is no terminal.

mod fake;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fake::{Agent, DEADLINE, say};
use skein_api::{HostSample, Reply, SampledHost};

#[test]
fn what_is_shown_again_and_again_ends_with_its_reader() {
    let host = || HostSample { cores_permille: vec![500], ..HostSample::default() };
    let sample = || say(Reply::HostSample(Box::new(SampledHost { at: 1, host: host(), ..SampledHost::default() })));
    let agent = Agent::start((0..1000).map(|_| sample()).collect());
    let mut child = agent.command(&["top", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"at\":1,"), "{line}");
    let end = Instant::now() + DEADLINE;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end => panic!("it goes on: {:?}", child.kill()),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert!(status.success(), "{status}");
}
