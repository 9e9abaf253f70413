//! What needs a person is said.

use skein_api::cluster::UnixMs;
use skein_api::{Hello, HostReport, Term, VmState, VmView};
use skein_cluster::{Controller, Input, Now, Settings, Tables};

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
        handle(Input::AgentUp { session, hello: hello(host), certificate: host.into() });
        let vms = vec![running("web"), running(host)];
        handle(Input::AgentReport { session, report: Box::new(HostReport { sequence: 1, vms, ..Default::default() }) });
    }
    let told = controller.attention();
    assert!(told.len() == 1 && told[0].contains("'web' RUNS TWICE, on alpha and beta"), "{told:?}");
    // A host that says nothing any more is not counted.
    controller.handle(now(), Input::AgentDown { session: 2 }).unwrap();
    assert!(controller.attention().is_empty(), "{:?}", controller.attention());
}
