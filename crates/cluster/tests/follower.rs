//! A controller that follows shows what the leader wrote.

use skein_api::cluster::{Move, MoveState, Operation, OperationKind, OperationState, Progress, UnixMs, VmRunState};
use skein_cluster::{Controller, HostRecord, Input, Now, Settings, Tables, VmRecord};

const ID: &str = "00000001-000001";

/// Returns the migration of `web` from alpha to beta, and its move in this state.
fn migration(state: OperationState, of_move: MoveState) -> Operation {
    let only = Move { state: of_move, attempts: 1, ..Move::new("web", "alpha", Some("beta"), "asked for") };
    Operation {
        id: ID.into(),
        kind: OperationKind::Migrate { vm: "web".into(), to: Some("beta".into()), rate_bits_per_s: None, hold: None },
        state,
        by: "somebody".into(),
        created: UnixMs(1),
        ended: None,
        cancelled: false,
        message: String::new(),
        moves: vec![only],
        fencing: None,
        power: None,
        update: None,
        progress: Progress::default(),
        version: 0,
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

#[test]
fn what_is_under_way_is_counted() {
    let vm = VmRecord { host: Some("alpha".into()), state: VmRunState::Running, ..VmRecord::default() };
    let begun = json(&migration(OperationState::Running, MoveState::Begun));
    let (host, vm, operation) = (json(&HostRecord::default()), json(&vm), format!("operation/{ID}"));
    let entries = [("host/alpha", &host), ("host/beta", &host), ("vm/web", &vm), (operation.as_str(), &begun)];
    let tables = Tables::load(entries.map(|(key, value)| (key, value.as_slice(), 1))).unwrap();
    let mut controller = Controller::new(Settings::default());
    controller.handle(Now::default(), Input::Following { tables: Box::new(tables) }).unwrap();
    let shown = |of: &Controller| {
        let (alpha, beta) = (of.host("alpha").unwrap(), of.host("beta").unwrap());
        (alpha.outgoing, beta.incoming, of.vm("web").unwrap().operation, of.operations_open())
    };
    assert_eq!(shown(&controller), (1, 1, Some(ID.to_owned()), 1));

    let mut watch = |value: Operation| {
        let changes = vec![(operation.clone(), Some(json(&value)))];
        controller.handle(Now::default(), Input::Watched { changes, revision: 2 }).unwrap();
        shown(&controller)
    };
    assert_eq!(watch(migration(OperationState::Done, MoveState::Done)), (0, 0, None, 0));
    assert_eq!(watch(migration(OperationState::Running, MoveState::Begun)), (1, 1, Some(ID.to_owned()), 1));
}
