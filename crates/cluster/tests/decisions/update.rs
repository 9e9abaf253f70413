//! Hosts are updated one after the other.

use std::collections::BTreeSet;

use skein_api::cluster::{
    Contact, HostMode, HostUpdateState, Operation, OperationState, ResumeRequest, UpdateRequest, VmSettings,
};
use skein_api::{HostUpdateView, Outcome, Refusal, Reply, Request, UpdateHow, UpdateRunState, VmState};
use skein_cluster::{Answer, Ask, Input};

use crate::bench::{Bench, Hand};

fn update(request: UpdateRequest) -> Ask {
    Ask::Update { request }
}

fn all() -> Ask {
    update(UpdateRequest::default())
}

fn of(hosts: &[&str], how: UpdateHow) -> Ask {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    update(UpdateRequest { hosts, how, ..UpdateRequest::default() })
}

fn pin(bench: &mut Bench, vm: &str) {
    let settings = VmSettings { pinned: true, ..VmSettings::default() };
    assert_eq!(bench.ask(Ask::SetVm { vm: vm.into(), settings, version: None }), Answer::Done);
}

/// Carries out what is commanded until a host's agent is told of an update: which, under which id, and whether it is an
/// order.
fn asked(bench: &mut Bench) -> (String, String, bool) {
    for _ in 0..100 {
        while let Some(sent) = bench.sent.first() {
            if let Request::HostUpdate { id, order, .. } = &sent.request {
                return (sent.host.clone(), id.clone(), *order);
            }
            bench.obey();
        }
        bench.wait_s(1);
    }
    panic!("no host is told: {:?}", bench.controller.operations("", 5));
}

fn says(bench: &mut Bench, state: UpdateRunState) {
    bench.reply(Reply::HostUpdate(HostUpdateView { state, message: "exit 7: no space".into() }));
}

/// Has the host whose turn it is be updated and booted.
fn boots(bench: &mut Bench) -> String {
    let (host, id, order) = asked(bench);
    assert!(order, "{host} is not ordered");
    assert_eq!(bench.has(&host), Vec::<&str>::new(), "{host} is ordered");
    says(bench, UpdateRunState::Running);
    bench.disconnect(&host);
    bench.wait_s(60);
    assert_eq!(bench.host(&host).contact, Contact::Online, "it is booted");
    assert!(!bench.sent.iter().any(|sent| matches!(sent.request, Request::HostUpdate { .. })), "{:?}", bench.sent);
    bench.boot(&host);
    assert_eq!(asked(bench), (host.clone(), id, false));
    says(bench, UpdateRunState::Done);
    host
}

fn states(bench: &Bench, operation: &Operation) -> Vec<HostUpdateState> {
    bench.now(operation).update.unwrap().hosts.iter().map(|of| of.state).collect()
}

fn resume(host: &str) -> Ask {
    Ask::Resume { host: host.into(), request: ResumeRequest { bring_home: true } }
}

fn settle(bench: &mut Bench) {
    for _ in 0..10 {
        bench.obey_all();
        bench.wait_s(1);
    }
}

#[test]
fn hosts_are_updated_one_after_the_other_and_their_guests_come_home() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.run_vm("a", "web");
    bench.run_vm("b", "db");
    let operation = bench.begin(all());
    for host in ["a", "b", "c"] {
        assert_eq!(boots(&mut bench), host);
    }
    settle(&mut bench);
    let over = bench.now(&operation);
    assert_eq!(over.state, OperationState::Done, "{over:?}");
    assert!(over.message.contains("3 of 3 hosts are updated"), "{}", over.message);
    assert_eq!((bench.has("a"), bench.has("b")), (vec!["web"], vec!["db"]));
    assert!(["a", "b", "c"].iter().all(|host| bench.host(host).mode == HostMode::Active));
}

/// Begins to update a host whose guest has left, and which still tells of the guest.
fn with_a_leaver() -> (Bench, Operation) {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    let operation = bench.begin(of(&["a"], UpdateHow::Update));
    bench.wait_s(1);
    bench.begin_commanded(7);
    bench.arrive_commanded(7);
    (bench, operation)
}

#[test]
fn a_host_that_tells_late_that_its_guest_has_left_is_waited_for() {
    let (mut bench, operation) = with_a_leaver();
    bench.wait_s(5);
    let drain = bench.controller.operations("", 10).into_iter().find(|of| of.id != operation.id).unwrap();
    assert_eq!(drain.state, OperationState::Done);
    assert_eq!(states(&bench, &operation), [HostUpdateState::Emptying]);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    bench.end_vm("a", "web");
    assert_eq!(asked(&mut bench).0, "a");
}

#[test]
fn a_host_that_has_a_guest_long_after_its_drain_is_not_updated() {
    let (mut bench, operation) = with_a_leaver();
    bench.wait_s(70);
    let over = bench.now(&operation);
    assert_eq!(over.state, OperationState::Failed, "{over:?}");
    assert!(over.message.contains("it has a guest again"), "{}", over.message);
}

#[test]
fn the_first_host_that_fails_ends_it_and_stays_in_maintenance() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    let operation = bench.begin(all());
    asked(&mut bench);
    says(&mut bench, UpdateRunState::Running);
    asked(&mut bench);
    says(&mut bench, UpdateRunState::Failed);
    settle(&mut bench);
    let over = bench.now(&operation);
    assert_eq!(over.state, OperationState::Failed);
    assert!(over.message.contains("no space") && over.message.contains("skein host resume a"), "{}", over.message);
    assert_eq!((bench.host("a").mode, bench.host("b").mode), (HostMode::Maintenance, HostMode::Active));
    assert_eq!(states(&bench, &operation), [HostUpdateState::Failed, HostUpdateState::Waiting]);
    // Its agent is told to take guests again by whoever says that all is well.
    assert!(matches!(bench.ask(resume("a")), Answer::Operation(_)));
    assert!(bench.sent.iter().any(|sent| matches!(sent.request, Request::HostClose { for_s: 0, .. })));
    settle(&mut bench);
    assert_eq!(bench.has("a"), ["web"]);
}

#[test]
fn an_agent_that_refuses_an_update_ends_it() {
    let mut bench = Bench::new(&["a", "b"]);
    let operation = bench.begin(of(&["a"], UpdateHow::Update));
    asked(&mut bench);
    bench.reply(Reply::Error(Refusal { message: "hand runs on a".into(), cure: String::new() }));
    let over = bench.now(&operation);
    assert_eq!(over.state, OperationState::Failed);
    assert!(over.message.contains("hand runs on a"), "{}", over.message);
}

#[test]
fn a_guest_that_is_started_on_a_host_after_its_drain_bars_the_update() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    let operation = bench.begin(of(&["a"], UpdateHow::Update));
    bench.obey();
    bench.run_vm("a", "hand");
    settle(&mut bench);
    // It is moved away by the drain, or bars the update; it is never there when the agent is told.
    if bench.now(&operation).state != OperationState::Failed {
        let (host, ..) = asked(&mut bench);
        assert_eq!(bench.has(&host), Vec::<&str>::new());
    }
}

#[test]
fn nothing_is_begun_if_a_host_of_an_update_cannot_be_emptied() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("b", "fixed");
    pin(&mut bench, "fixed");
    let operation = bench.begin(all());
    let over = bench.now(&operation);
    assert_eq!(over.state, OperationState::Failed);
    assert!(over.message.contains("nothing was begun") && over.message.contains("fixed"), "{}", over.message);
    // The same is said beforehand, and such a host may be left out.
    let shown = bench.shown(update(UpdateRequest { dry_run: true, ..UpdateRequest::default() }));
    let shown: Vec<HostUpdateState> = shown.update.unwrap().hosts.iter().map(|of| of.state).collect();
    assert_eq!(shown, [HostUpdateState::Waiting, HostUpdateState::Skipped]);
    let operation = bench.begin(update(UpdateRequest { skip_blocked: true, ..UpdateRequest::default() }));
    assert_eq!(boots(&mut bench), "a");
    settle(&mut bench);
    let over = bench.now(&operation);
    assert_eq!(over.state, OperationState::Done);
    assert!(over.message.contains("b was left out") && over.message.contains("fixed"), "{}", over.message);
    assert_eq!(bench.has("b"), ["fixed"]);
}

#[test]
fn a_preview_of_an_update_says_what_the_update_would_do() {
    let shown = |bench: &mut Bench, request: UpdateRequest| bench.shown(update(request));
    let dry = || UpdateRequest { dry_run: true, ..UpdateRequest::default() };
    let blocked = |shown: &Operation| -> Vec<String> {
        shown.update.iter().flat_map(|of| &of.hosts).filter(|of| of.blocks).map(|of| of.host.clone()).collect()
    };
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.run_vm("b", "fixed");
    pin(&mut bench, "fixed");
    bench.disconnect("c");
    bench.wait_s(60);
    assert_eq!(bench.host("c").contact, Contact::Lost);
    // It is refused, and the preview says by which hosts.
    assert!(bench.refused(all()).message.contains("'c' cannot be updated"));
    let preview = shown(&mut bench, dry());
    assert_eq!(blocked(&preview), ["b", "c"]);
    let message = &preview.message;
    assert!(message.contains("nothing would be begun") && message.contains("fixed"), "{message}");
    assert!(message.contains("c: its agent does not report") && message.contains("--skip-blocked"), "{message}");
    let preview = shown(&mut bench, UpdateRequest { skip_blocked: true, ..dry() });
    assert!(blocked(&preview).is_empty() && preview.message.contains("would be done"), "{preview:?}");
    let states: Vec<HostUpdateState> = preview.update.unwrap().hosts.iter().map(|of| of.state).collect();
    assert_eq!(states, [HostUpdateState::Waiting, HostUpdateState::Skipped, HostUpdateState::Skipped]);
}

#[test]
fn a_later_leader_goes_on_with_an_update_under_the_same_id() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    let operation = bench.begin(of(&["a"], UpdateHow::Reboot));
    let (_, id, _) = asked(&mut bench);
    says(&mut bench, UpdateRunState::Running);
    bench.sent.clear();
    bench.change_leader();
    ["a", "b"].iter().for_each(|host| bench.connect(host));
    assert_eq!(asked(&mut bench), ("a".into(), id.clone(), true));
    says(&mut bench, UpdateRunState::Running);
    // It is booted while nobody leads.
    bench.sent.clear();
    bench.change_leader();
    bench.connect("b");
    bench.boot("a");
    assert_eq!(asked(&mut bench), ("a".into(), id, false));
    says(&mut bench, UpdateRunState::Done);
    settle(&mut bench);
    assert_eq!(bench.now(&operation).state, OperationState::Done);
    assert_eq!(bench.has("a"), ["web"]);
}

#[test]
fn a_host_that_was_booted_before_its_order_came_is_not_updated() {
    let mut bench = Bench::new(&["a", "b"]);
    let operation = bench.begin(of(&["a"], UpdateHow::UpdateReboot));
    asked(&mut bench);
    bench.sent.clear();
    bench.disconnect("a");
    bench.boot("a");
    assert!(!asked(&mut bench).2);
    says(&mut bench, UpdateRunState::Unknown);
    assert_eq!(bench.now(&operation).state, OperationState::Failed);
    assert_eq!(bench.host("a").mode, HostMode::Maintenance);
}

#[test]
fn the_agents_word_that_an_update_is_done_does_not_stand_for_a_boot() {
    let mut bench = Bench::new(&["a", "b"]);
    let operation = bench.begin(of(&["a"], UpdateHow::Reboot));
    asked(&mut bench);
    says(&mut bench, UpdateRunState::Done);
    assert!(asked(&mut bench).2);
    assert_eq!(states(&bench, &operation), [HostUpdateState::Updating]);
    assert_eq!(bench.host("a").mode, HostMode::Maintenance);
}

#[test]
fn a_host_that_does_not_come_back_from_an_update_ends_it_and_is_lost() {
    let mut bench = Bench::new(&["a", "b"]);
    let operation = bench.begin(update(UpdateRequest { wait_s: 60, ..UpdateRequest::default() }));
    asked(&mut bench);
    says(&mut bench, UpdateRunState::Running);
    bench.disconnect("a");
    bench.wait_s(50);
    assert_eq!(bench.host("a").contact, Contact::Online);
    bench.wait_s(30);
    let over = bench.now(&operation);
    assert_eq!(over.state, OperationState::Failed);
    assert!(over.message.contains("did not report again in 60 s"), "{}", over.message);
    assert_eq!((bench.host("a").contact, bench.host("a").mode), (Contact::Lost, HostMode::Maintenance));
}

#[test]
fn hosts_with_controllers_are_updated_last() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    let address = "192.0.2.97".parse().unwrap();
    bench.input(Input::NeededAt { addresses: Some(BTreeSet::from([address])) });
    let operation = bench.begin(all());
    let hosts = bench.now(&operation).update.unwrap().hosts;
    assert_eq!(hosts.iter().map(|of| of.host.as_str()).collect::<Vec<_>>(), ["b", "c", "a"]);
}

#[test]
fn the_next_host_is_not_begun_while_one_is_lost() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    let operation = bench.begin(of(&["a", "b"], UpdateHow::UpdateReboot));
    assert_eq!(boots(&mut bench), "a");
    bench.disconnect("c");
    bench.obey_all();
    bench.wait_s(60);
    assert_eq!(bench.host("c").contact, Contact::Lost);
    if states(&bench, &operation)[1] == HostUpdateState::Waiting {
        let now = bench.now(&operation);
        assert!(now.message.contains("c does not report"), "{}", now.message);
        bench.connect("c");
        assert_eq!(asked(&mut bench).0, "b");
    }
    // One that is lost before the first begins puts it off, for as long as a host may take.
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.disconnect("c");
    bench.wait_s(60);
    let request = UpdateRequest { hosts: vec!["a".into()], wait_s: 60, ..UpdateRequest::default() };
    let operation = bench.begin(update(request));
    settle(&mut bench);
    assert_eq!(states(&bench, &operation), [HostUpdateState::Waiting]);
    bench.wait_s(61);
    let over = bench.now(&operation);
    assert_eq!(over.state, OperationState::Failed);
    assert!(over.message.contains("a was not begun: c does not report"), "{}", over.message);
    assert_eq!(bench.host("a").mode, HostMode::Active);
}

#[test]
fn an_update_is_called_off_while_its_host_is_emptied() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    let operation = bench.begin(all());
    bench.wait_s(1);
    assert_eq!(states(&bench, &operation)[0], HostUpdateState::Emptying);
    assert!(matches!(bench.ask(Ask::Cancel { operation: operation.id.clone() }), Answer::Operation(_)));
    settle(&mut bench);
    assert_eq!(bench.now(&operation).state, OperationState::Cancelled);
    assert_eq!((bench.host("a").mode, bench.host("b").mode), (HostMode::Active, HostMode::Active));
}

#[test]
fn an_update_that_is_called_off_brings_the_host_back_that_is_booted_and_begins_no_other() {
    let mut bench = Bench::new(&["a", "b"]);
    let operation = bench.begin(all());
    asked(&mut bench);
    says(&mut bench, UpdateRunState::Running);
    bench.ask(Ask::Cancel { operation: operation.id.clone() });
    bench.disconnect("a");
    bench.wait_s(5);
    bench.boot("a");
    asked(&mut bench);
    says(&mut bench, UpdateRunState::Done);
    settle(&mut bench);
    assert_eq!(bench.now(&operation).state, OperationState::Cancelled);
    assert_eq!(states(&bench, &operation), [HostUpdateState::Done, HostUpdateState::Waiting]);
    assert_eq!(bench.host("a").mode, HostMode::Active);
}

#[test]
fn a_person_updates_a_host_and_boots_it_or_has_it_take_guests_again() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    let operation = bench.begin(of(&["a", "b"], UpdateHow::Manual));
    let (host, ..) = asked(&mut bench);
    says(&mut bench, UpdateRunState::Running);
    assert!(bench.now(&operation).message.contains("a (1 of 2): it has no guest"), "{:?}", bench.now(&operation));
    assert_eq!(host, "a");
    bench.disconnect("a");
    bench.wait_s(60);
    bench.boot("a");
    asked(&mut bench);
    says(&mut bench, UpdateRunState::Done);
    assert_eq!(asked(&mut bench).0, "b");
    says(&mut bench, UpdateRunState::Running);
    bench.obey_all();
    assert!(!matches!(bench.ask(resume("b")), Answer::Refused(_)));
    settle(&mut bench);
    assert_eq!(bench.now(&operation).state, OperationState::Done);
    assert_eq!(bench.has("a"), ["web"]);
}

#[test]
fn a_host_that_was_in_maintenance_stays_so_after_its_update() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.drain("a");
    settle(&mut bench);
    assert_eq!(bench.host("a").mode, HostMode::Maintenance);
    let operation = bench.begin(of(&["a"], UpdateHow::UpdateReboot));
    assert_eq!(boots(&mut bench), "a");
    settle(&mut bench);
    assert_eq!(bench.now(&operation).state, OperationState::Done);
    assert_eq!(bench.host("a").mode, HostMode::Maintenance);
}

#[test]
fn what_must_not_be_in_the_middle_of_an_update_is_refused() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.set_vm("c", "off", VmState::Stopped);
    bench.begin(all());
    asked(&mut bench);
    let refused = bench.refused(all());
    assert!(refused.message.contains("being updated already"), "{}", refused.message);
    let refused = bench.refused(resume("a"));
    assert!(refused.message.contains("may be booted at any time"), "{}", refused.message);
    let refused = bench.refused(update(UpdateRequest { wait_s: 1, ..UpdateRequest::default() }));
    assert!(refused.message.contains("wait_s"), "{}", refused.message);
    let refused = bench.refused(of(&["nowhere"], UpdateHow::Update));
    assert!(refused.message.contains("no host 'nowhere'"), "{}", refused.message);
    bench.set_device("b");
    let refused = bench.refused(Ask::Sleep { host: "b".into() });
    assert!(refused.message.contains("is to update it"), "{}", refused.message);
}

#[test]
fn an_update_says_for_what_the_drain_of_its_host_waits() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    bench.begin_by_hand(&Hand { vm: "web", from: "a", to: "b", id: 7, is_held: true });
    let operation = bench.begin(of(&["a"], UpdateHow::Update));
    bench.wait_s(5);
    let now = bench.now(&operation);
    assert!(now.message.contains("a (1 of 1): its guests leave") && now.message.contains("web is held"), "{now:?}");
    let shown = bench.shown(update(UpdateRequest { dry_run: true, ..UpdateRequest::default() }));
    assert!(shown.message.contains(&format!("being updated already, by operation {}", operation.id)), "{shown:?}");
    bench.end_by_hand(&Hand { vm: "web", from: "a", to: "b", id: 7, is_held: true }, Outcome::Moved);
    assert_eq!(asked(&mut bench).0, "a");
    assert!(!bench.now(&operation).message.contains("held"), "{:?}", bench.now(&operation));
}

#[test]
fn a_manual_update_says_how_the_guests_come_home() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    let operation = bench.begin(of(&["a", "b"], UpdateHow::Manual));
    asked(&mut bench);
    says(&mut bench, UpdateRunState::Running);
    let message = bench.now(&operation).message;
    assert!(message.ends_with("skein host resume a --bring-home"), "{message}");
}
