//! Hosts that are proven to be off as their watchdog has reset them.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::Contact;
use skein_api::{ArmedWatchdog, HeardEcho, HostReport, Term, WatchdogState};
use skein_cluster::Input;

use crate::bench::{Bench, RUNS_MS};

const HOSTS: [&str; 5] = ["alpha", "beta", "delta", "eta", "gamma"];
/// Of a watchdog with the times of docs/failover.md: within so many seconds the host is reset, rounded up.
const RESET_S: u64 = 46;

fn armed() -> WatchdogState {
    let armed = ArmedWatchdog {
        identity: "iTCO_wdt".into(),
        acknowledged_ms: 15_000,
        asked_ms: 5_000,
        period_ms: 1_000,
        timeout_ms: 10_000,
    };
    WatchdogState { armed: Some(armed), why_not: String::new() }
}

/// Agents that report, and say which acknowledgements they took.
struct Agents {
    bench: Bench,
    sequences: BTreeMap<String, u64>,
    heard: BTreeMap<String, HeardEcho>,
}

impl Agents {
    /// A guest runs on alpha, which has a watchdog that is armed.
    fn new() -> Agents {
        let mut bench = Bench::new(&HOSTS);
        bench.run_vm("alpha", "web");
        bench.tell("alpha", HostReport { sequence: 3, watchdog: Some(armed()), ..HostReport::default() });
        let mut agents = Agents { bench, sequences: BTreeMap::new(), heard: BTreeMap::new() };
        agents.pass_s(5, &HOSTS);
        agents
    }

    /// Lets seconds go by, in which these hosts report, and the store says that the controller leads.
    fn pass_s(&mut self, seconds: u64, reporting: &[&str]) {
        for _ in 0..seconds {
            self.bench.now.mono_ms += 999;
            self.bench.now.wall.0 += 1000;
            for host in reporting {
                let sequence = self.sequences.entry((*host).to_owned()).or_insert(10);
                *sequence += 1;
                let heard = self.heard.get(*host).copied();
                self.bench.tell(host, HostReport { sequence: *sequence, heard, ..HostReport::default() });
            }
            self.bench.now.mono_ms += 1;
            self.confirm();
            self.bench.input(Input::Tick);
        }
    }

    fn confirm(&mut self) {
        let begun_ms = self.bench.now.mono_ms;
        let term = self.bench.term();
        self.bench.input(Input::LeadConfirmed { term, begun_ms });
        let taken = self.bench.acknowledged.iter().map(|(host, (heard, ..))| (host.clone(), *heard));
        self.heard.extend(taken);
    }

    fn contact(&self, host: &str) -> Contact {
        self.bench.host(host).contact
    }
}

#[test]
fn a_host_with_a_watchdog_is_proven_to_be_off_by_time_and_its_guests_start_elsewhere() {
    let mut agents = Agents::new();
    agents.bench.disconnect("alpha");
    // Its agent may have fed late, and once more by its end.
    agents.pass_s(RESET_S - 2, &HOSTS[1..]);
    assert_eq!(agents.contact("alpha"), Contact::Lost);
    assert!(agents.bench.sent.is_empty());
    agents.pass_s(2, &HOSTS[1..]);
    assert_eq!(agents.contact("alpha"), Contact::Off);
    let started: Vec<&str> = agents.bench.sent.iter().map(|sent| sent.host.as_str()).collect();
    assert_eq!(started.len(), 1);
    assert_ne!(started[0], "alpha");
}

#[test]
fn a_host_without_one_is_not() {
    let mut agents = Agents::new();
    agents.bench.disconnect("beta");
    let others = ["alpha", "delta", "eta", "gamma"];
    agents.pass_s(200, &others);
    assert_eq!(agents.contact("beta"), Contact::Lost);
}

#[test]
fn a_host_that_says_that_its_watchdog_is_not_armed_any_more_is_not() {
    let mut agents = Agents::new();
    let state = WatchdogState { armed: None, why_not: "it was taken away".into() };
    agents.bench.tell("alpha", HostReport { sequence: 90, watchdog: Some(state), ..HostReport::default() });
    agents.bench.disconnect("alpha");
    agents.pass_s(200, &HOSTS[1..]);
    assert_eq!(agents.contact("alpha"), Contact::Lost);
}

#[test]
fn a_watchdog_was_armed_before_a_boot_and_not_since() {
    let mut agents = Agents::new();
    agents.bench.disconnect("alpha");
    agents.bench.boot_and_greet("alpha");
    // It goes silent before it has reported.
    agents.bench.disconnect("alpha");
    agents.pass_s(200, &HOSTS[1..]);
    assert_eq!(agents.contact("alpha"), Contact::Lost);
}

#[test]
fn a_leader_goes_by_what_hosts_told_it_before_it_led() {
    // The leader before dies before it has heard, or written, that the host was booted and has no watchdog any more.
    let mut agents = Agents::new();
    agents.bench.change_leader_after(RUNS_MS, |bench| bench.boot("alpha"));
    HOSTS[1..].iter().for_each(|host| agents.bench.connect(host));
    agents.pass_s(5, &HOSTS);
    agents.bench.disconnect("alpha");
    agents.pass_s(200, &HOSTS[1..]);
    assert_eq!(agents.contact("alpha"), Contact::Lost);

    // It dies before it has heard that the watchdog is armed.
    let mut agents = Agents::new();
    let watchdog = |state| HostReport { sequence: 90, watchdog: Some(state), ..HostReport::default() };
    agents.bench.tell("alpha", watchdog(WatchdogState { armed: None, why_not: "not yet".into() }));
    agents.bench.change_leader_after(RUNS_MS, |bench| {
        bench.connect("alpha");
        bench.tell("alpha", watchdog(armed()));
    });
    HOSTS[1..].iter().for_each(|host| agents.bench.connect(host));
    agents.pass_s(5, &HOSTS);
    agents.bench.disconnect("alpha");
    agents.pass_s(RESET_S, &HOSTS[1..]);
    assert_eq!(agents.contact("alpha"), Contact::Off);
}

#[test]
fn what_a_watchdog_is_or_why_it_is_not_armed_is_shown() {
    let mut agents = Agents::new();
    let shown = agents.bench.host("alpha").watchdog.unwrap();
    assert_eq!((shown.identity.as_deref(), shown.resets_within_ms), (Some("iTCO_wdt"), Some(45_045)));
    let state = WatchdogState { armed: None, why_not: "it is a softdog".into() };
    agents.bench.tell("beta", HostReport { sequence: 90, watchdog: Some(state), ..HostReport::default() });
    let shown = agents.bench.host("beta").watchdog.unwrap();
    assert_eq!((shown.identity, shown.resets_within_ms, &*shown.why_not), (None, None, "it is a softdog"));
    assert_eq!(agents.bench.host("eta").watchdog, None);
}

#[test]
fn without_more_than_half_of_the_voters_nothing_is_proven() {
    let mut agents = Agents::new();
    ["alpha", "eta", "gamma"].iter().for_each(|host| agents.bench.disconnect(host));
    agents.pass_s(200, &["beta", "delta"]);
    assert_eq!(agents.contact("alpha"), Contact::Lost);
    // From when they are back, the time is counted anew.
    ["eta", "gamma"].iter().for_each(|host| agents.bench.connect(host));
    agents.pass_s(25, &HOSTS[1..]);
    assert_eq!(agents.contact("alpha"), Contact::Lost);
    agents.pass_s(RESET_S, &HOSTS[1..]);
    assert_eq!(agents.contact("alpha"), Contact::Off);
}

#[test]
fn voters_that_report_but_get_no_word_of_the_leader_do_not_count() {
    let mut agents = Agents::new();
    agents.bench.disconnect("alpha");
    for _ in 0..100 {
        // What is sent to them does not arrive, so they tell others that they have no leader.
        let before = agents.heard.clone();
        agents.pass_s(1, &HOSTS[1..]);
        agents.heard = before;
    }
    assert_eq!(agents.contact("alpha"), Contact::Lost);
}

#[test]
fn more_than_half_in_turns_is_not_more_than_half_all_the_time() {
    let mut agents = Agents::new();
    agents.bench.disconnect("alpha");
    for _ in 0..15 {
        agents.pass_s(8, &["beta", "delta", "eta"]);
        agents.pass_s(8, &["beta", "delta", "gamma"]);
    }
    assert_eq!(agents.contact("alpha"), Contact::Lost, "an agent asks one after the other");
}

#[test]
fn hosts_that_joined_since_the_host_was_last_told_the_voters_prove_nothing() {
    let mut agents = Agents::new();
    agents.bench.disconnect("alpha");
    let new = ["h1", "h2", "h3", "h4", "h5", "h6"];
    new.iter().for_each(|host| agents.bench.connect(host));
    // Of those that it knows, two report: it may have the word of the others that they have no leader.
    ["eta", "gamma"].iter().for_each(|host| agents.bench.disconnect(host));
    let reporting: Vec<&str> = new.into_iter().chain(["beta", "delta"]).collect();
    agents.pass_s(200, &reporting);
    assert_eq!(agents.contact("alpha"), Contact::Lost);
}

#[test]
fn a_report_is_acknowledged_once_the_store_was_asked_after_it_had_come() {
    let mut agents = Agents::new();
    let begun_ms = agents.bench.now.mono_ms;
    agents.bench.acknowledged.clear();
    agents.bench.now.mono_ms += 500;
    agents.bench.tell("beta", HostReport { sequence: 100, ..HostReport::default() });
    agents.bench.input(Input::LeadConfirmed { term: Term(1), begun_ms });
    assert!(agents.bench.acknowledged.is_empty(), "{:?}", agents.bench.acknowledged);
    agents.bench.input(Input::LeadConfirmed { term: Term(2), begun_ms: begun_ms + 1000 });
    assert!(agents.bench.acknowledged.is_empty(), "it does not lead in that term");
    agents.bench.input(Input::LeadConfirmed { term: Term(1), begun_ms: begun_ms + 501 });
    let (_, sequence, named) = &agents.bench.acknowledged["beta"];
    assert_eq!((*sequence, named), (100, &BTreeSet::new()), "it has said that it has the voters");
}
