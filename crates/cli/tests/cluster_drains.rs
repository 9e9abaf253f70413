//! Tests what is told of drains and of hosts that take guests again, with a controller that answers as a test says.

mod fake;
mod user;

use serde_json::{Value, json};
use skein_api::cluster::{Host, Operation};
use user::fake_controller::Answer;
use user::{User, host, planned, typed};

fn drain(state: &str, moves: Vec<Value>) -> Operation {
    typed(json!({
        "id": "17-000042", "kind": {"kind": "drain", "host": "hosta", "deadline": null, "evacuate": false},
        "state": state, "by": "admin", "created": 1_795_684_482_120u64, "ended": 1_795_684_490_120u64,
        "cancelled": false, "message": "", "moves": moves, "version": 1,
        "progress": {"moves": 1, "moves_done": 0, "moves_running": 0, "left_ms": null, "forecast_ms": 0},
    }))
}

#[test]
fn a_host_that_is_resumed_during_its_drain_says_that_this_calls_the_drain_off() {
    let user = User::logged_in(|asked, _| match asked.what.as_str() {
        "GET /api/v1/hosts/hosta" => {
            Answer::ok(&Host { drain: Some("17-000042".into()), ..host("hosta", "online", "draining", "") })
        }
        "GET /api/v1/hosts/hostb" => {
            Answer::ok(&Host { drain: Some("17-000041".into()), ..host("hostb", "online", "maintenance", "") })
        }
        _ => Answer::Json(204, String::new()),
    });
    let ran = user.run(&["host", "resume", "hosta"]).exits(0);
    ran.says("this calls off its drain, operation 17-000042").says("hosta takes guests again");
    let ran = user.run(&["host", "resume", "hostb"]).exits(0).says("hostb takes guests again");
    assert!(!ran.out.contains("calls off"), "{}", ran.out);
}

#[test]
fn figures_that_say_nothing_are_left_out_and_what_was_called_off_has_not_failed() {
    let user = User::logged_in(|asked, _| match asked.what.as_str() {
        "POST /api/v1/hosts/hosta/drain" => {
            Answer::ok(&drain("planning", vec![planned("db1", None, "left", "it is held")]))
        }
        _ => {
            let with = |vm: &str, state: &str, detail: &str| {
                let mut of = planned(vm, Some("hostb"), state, "why");
                of["detail"] = json!(detail);
                of
            };
            Answer::ok(&drain(
                "cancelled",
                vec![
                    with("db1", "failed", "somebody called it off"),
                    with("web1", "left", "it was not begun any more"),
                    with("web2", "failed", "no room"),
                ],
            ))
        }
    });
    user.run(&["host", "drain", "hosta", "--dry-run"]).exits(3).says("0 would leave hosta, 1 would stay");
    let ran = user.run(&["operation", "watch", "17-000042"]).exits(4);
    ran.says("db1 called off").says("web1 called off").says("web2 FAILED: no room");
}
