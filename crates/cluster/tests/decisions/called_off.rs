//! Moves that are called off while nobody knows which migration came of them.

use skein_api::cluster::{MigrateRequest, Operation, OperationState};
use skein_api::{
    Attempt, FailureReason, HostReport, Migration, MigrationId, Outcome, Refusal, Reply, Request, Role, VmState,
};
use skein_cluster::Ask;

use crate::bench::{Bench, Sent, is_off};

/// Returns three hosts, and a migration of an operation that was asked for.
fn asked() -> (Bench, Operation) {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    let request = MigrateRequest { to: Some("gamma".into()), ..MigrateRequest::default() };
    let operation = bench.begin(Ask::Migrate { vm: "web".into(), request, breaks: Vec::new() });
    (bench, operation)
}

fn cancel(bench: &mut Bench, operation: &Operation) {
    bench.begin(Ask::Cancel { operation: operation.id.clone() });
}

fn begun(outcome: Option<Outcome>) -> Migration {
    let why = outcome.map(|_| FailureReason::Cancelled);
    Migration { outcome, why, ..Migration::new(MigrationId(7), "web", Role::Source, "beta", "gamma") }
}

/// Returns the request that the agent is asked to withdraw.
fn withdrawn(bench: &mut Bench) -> String {
    bench.wait_s(2);
    match &bench.sent[..] {
        [sent] => match &sent.request {
            Request::MigrationWithdraw { id } => id.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_an_agent_checks_yet_is_withdrawn_before_the_move_is_over() {
    for changes_leader in [false, true] {
        for ends in [false, true] {
            let (mut bench, operation) = asked();
            let name = bench.sent.remove(0).request_id.unwrap();
            // The agent goes on with its checks while its connection is made anew.
            if changes_leader {
                bench.change_leader();
                ["alpha", "gamma"].iter().for_each(|host| bench.connect(host));
            } else {
                bench.disconnect("beta");
            }
            cancel(&mut bench, &operation);
            bench.connect("beta");
            assert_eq!(withdrawn(&mut bench), name);
            // An error says nothing.
            bench.reply(Reply::Error(Refusal { message: "it is being checked".into(), cure: String::new() }));
            assert_eq!(withdrawn(&mut bench), name);
            assert!(!bench.now(&operation).state.is_over());
            if ends {
                bench.reply(Reply::Done);
                assert_eq!(bench.now(&operation).state, OperationState::Cancelled);
                continue;
            }
            // It had begun, and both hosts are cut off: the guest may have gone.
            bench.reply(Reply::Migration(Box::new(begun(None))));
            bench.sent.clear();
            bench.disconnect("beta");
            bench.disconnect("gamma");
            bench.wait_s(12);
            bench.begin(is_off("beta"));
            bench.wait_s(60);
            assert!(bench.sent.is_empty(), "{:?}", bench.sent);
            bench.set_vm("gamma", "web", VmState::Running);
            bench.connect("gamma");
            bench.wait_s(3);
            assert!(bench.sent.is_empty() && bench.now(&operation).state.is_over(), "{:?}", bench.sent);
        }
    }
}

#[test]
fn an_agent_that_is_about_to_begin_again_is_told_not_to() {
    let (mut bench, operation) = asked();
    bench.begin_commanded(7);
    let attempt = Some(Attempt { number: 1, of: 2, not_begun: None, next_in_ms: Some(1900) });
    let paused = Migration { why: Some(FailureReason::Deadline), attempt, ..begun(Some(Outcome::CalledOff)) };
    let migrations = vec![paused.clone()];
    bench.tell("beta", HostReport { sequence: 3, migrations, ..HostReport::default() });
    // It is asked under the same name which it begins next, in a moment.
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    bench.wait_s(1);
    assert!(matches!(bench.sent[..], [Sent { request: Request::Migrate { .. }, .. }]), "{:?}", bench.sent);
    cancel(&mut bench, &operation);
    bench.reply(Reply::Migration(Box::new(paused)));
    bench.wait_s(1);
    withdrawn(&mut bench);
    assert!(!bench.now(&operation).state.is_over());
    bench.reply(Reply::Migration(Box::new(begun(Some(Outcome::CalledOff)))));
    bench.wait_s(1);
    assert_eq!(bench.now(&operation).state, OperationState::Cancelled);
}
