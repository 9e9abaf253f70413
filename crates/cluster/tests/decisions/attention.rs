//! What needs a person is said.

use skein_api::cluster::UnixMs;
use skein_api::{Hello, HostReport, Term, VmState, VmView};
use skein_cluster::{Controller, Input, Now, Settings, Tables};

use crate::bench::Bench;

fn now() -> Now {
    Now { wall: UnixMs(1_770_000_000_000), mono_ms: 1_000, utc_offset_s: 0 }
}

fn hello(host: &str) -> Hello {
    Hello {
        host: host.into(),
        release: "test".into(),
        api: 1,
        instance: 1,
        boot_id: None,
        addresses: Vec::new(),
        highest_term: Term(0),
        moves_off: true,
    }
}

fn running(name: &str) -> VmView {
    VmView::new(name, VmState::Running)
}

#[test]
fn a_guest_that_runs_on_two_hosts_is_told() {
    let mut controller = Controller::new(Settings::default());
    let mut handle = |input| controller.handle(now(), input).unwrap();
    handle(Input::Elected { term: Term(1), tables: Box::new(Tables::default()) });
    for (session, host) in [(1, "alpha"), (2, "beta")] {
        handle(Input::AgentUp { session, hello: hello(host), certificate: host.to_owned().into() });
        let vms = vec![running("web"), running(host)];
        handle(Input::AgentReport { session, report: Box::new(HostReport { sequence: 1, vms, ..Default::default() }) });
    }
    let told = controller.attention();
    assert!(told.len() == 1 && told[0].contains("'web' RUNS TWICE, on alpha and beta"), "{told:?}");
    // A host that says nothing any more is not counted.
    controller.handle(now(), Input::AgentDown { session: 2 }).unwrap();
    assert!(controller.attention().is_empty(), "{:?}", controller.attention());
}

#[test]
fn agents_of_other_releases_are_told() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    assert!(bench.controller.release_attention("0.3.0").is_empty(), "no agent has a release that is a number");
    let mut told = |releases: [&str; 3]| {
        for (host, release) in ["alpha", "beta", "gamma"].into_iter().zip(releases) {
            bench.releases.insert(host.into(), release.into());
            bench.connect(host);
        }
        bench.controller.release_attention("0.3.0")
    };
    assert!(told(["0.3.0"; 3]).is_empty());
    assert!(told(["0.2.1"; 3]).is_empty(), "agents are upgraded after controllers");
    let different = told(["0.3.0", "0.2.0", "0.3.0"]);
    assert_eq!(
        different,
        ["agents are of different releases: 0.2.0 on beta; 0.3.0 on alpha, gamma: upgrade the older ones"]
    );
    let others = told(["0.4.0", "0.1.9", "0.3.0"]);
    assert_eq!(others.len(), 2);
    assert!(others[0].contains("agent of beta is of release 0.1.9") && others[0].contains("does not know any more"));
    assert!(others[1].contains("agent of alpha is of release 0.4.0, newer") && others[1].contains("skein-controller"));
    // Whoever is gone counts no more.
    bench.disconnect("alpha");
    bench.disconnect("beta");
    assert!(bench.controller.release_attention("0.3.0").is_empty());
}

#[test]
fn a_host_that_obeys_no_controller_of_this_store_is_told() {
    let mut controller = Controller::new(Settings::default());
    let mut handle = |inputs: Vec<Input>| {
        inputs.into_iter().for_each(|input| controller.handle(now(), input).unwrap());
        (controller.term(), controller.attention().into_iter().find(|words| words.contains("raise-terms")))
    };
    let elected = |term: u64| Input::Elected { term: Term(term), tables: Box::new(Tables::default()) };
    let up = |session, highest| {
        let hello = Hello { highest_term: Term(highest), ..hello("alpha") };
        Input::AgentUp { session, hello, certificate: "alpha".to_owned().into() }
    };
    // Another leads meanwhile: that needs nobody.
    assert_eq!(handle(vec![elected(5), up(1, 9)]), (None, None));
    assert_eq!(handle(vec![elected(12), Input::AgentDown { session: 1 }]), (Some(Term(12)), None));
    // The store elects again and again, and never comes to what the agent has heard of.
    assert_eq!(handle(vec![up(2, 9_000)]), (None, None));
    let (_, told) = handle(vec![elected(14)]);
    let told = told.expect("it is told");
    assert!(told.starts_with("'alpha' obeyed a leader of the term 9000,") && told.contains("is 14 only"), "{told}");
    assert!(told.contains("skein-controller raise-terms --above 9000"), "{told}");
    // A command is refused, too, and the controller does not act on.
    let (term, told) = handle(vec![Input::AgentDeposed { session: 2, highest: Term(9_000) }]);
    assert!(term.is_none() && told.is_some());
    assert_eq!(handle(vec![elected(9_001)]), (Some(Term(9_001)), None));
}
