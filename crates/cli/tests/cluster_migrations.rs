//! Tests the commands about migrations that go through a controller.

mod fake;
mod user;

use serde_json::{Value, json};
use user::fake_controller::Answer;
use user::{User, host, page, planned, vm};

/// Returns a migration of db1 that somebody holds.
fn held() -> Value {
    json!({
        "id": "4f1ca3b20d5e6677", "vm": "db1", "source": "hosta", "target": "hostb", "operation": null,
        "begun": "2026-11-22T03:41:07.120Z",
        "hold": {"since": "2026-11-22T03:42:07.120Z", "dirty_bytes": 3 << 20, "downtime_ms": 55,
            "switches_from": null, "called_off_at": null},
    })
}

#[test]
fn a_migration_that_no_operation_began_is_shown() {
    let moving = || {
        let mut vm = serde_json::to_value(vm("db1", "running")).unwrap();
        vm["migration"] = held();
        vm
    };
    let user = User::logged_in(move |asked, _| match asked.what.split('?').next().unwrap() {
        "GET /api/v1/hosts/hosta" => {
            let mut host = serde_json::to_value(host("hosta", "online", "active", "")).unwrap();
            host["migrations"] = json!([held()]);
            Answer::ok(&host)
        }
        "GET /api/v1/vms/db1" => Answer::ok(&moving()),
        _ => page(vec![moving()]),
    });
    user.run(&["vm", "list", "--cluster"]).exits(0).says("to hostb, held");
    let shown =
        user.run(&["vm", "show", "db1", "--cluster"]).exits(0).says("hosta to hostb, begun 2026-11-22 03:41:07");
    shown.says("held since").says("skein migration switch db1");
    let shown = user.run(&["host", "show", "hosta"]).exits(0).says("migrations that no operation began:");
    shown.says("db1").says("hostb").says("held since");
}

#[test]
fn a_migration_is_held_limited_switched_and_called_off_through_a_controller() {
    let running = || {
        json!({
            "id": "17-000042", "kind": {"kind": "migrate", "vm": "db1", "to": null}, "state": "running", "by": "admin",
            "created": 1_795_684_482_120u64, "ended": null, "cancelled": false, "message": "", "version": 1,
            "moves": [planned("db1", Some("hostb"), "begun", "why")],
            "progress": {"moves": 1, "moves_done": 0, "moves_running": 1, "left_ms": null, "forecast_ms": null},
        })
    };
    let user = User::logged_in(move |asked, _| match asked.what.as_str() {
        "POST /api/v1/vms/db1/migrate" => Answer::ok(&running()),
        "GET /api/v1/operations/17-000042" => Answer::ok(&running()),
        "GET /api/v1/vms/db1" => {
            let mut vm = serde_json::to_value(vm("db1", "running")).unwrap();
            vm["migration"] = held();
            Answer::ok(&vm)
        }
        "GET /api/v1/vms/web1" => Answer::ok(&vm("web1", "running")),
        what if what.starts_with("POST /api/v1/vms/db1/migration/") => Answer::ok(&held()),
        _ => Answer::refused(404, "there is no such thing", ""),
    });
    let ran = user.run(&["migrate", "db1", "--hold", "--max-hold", "8h", "--rate", "500Mbit/s"]).exits(0);
    ran.says("db1 is held: it runs on hosta, and hostb is kept fresh").says("skein migration switch db1");
    let asked = user.controller.asked();
    let body: Value = serde_json::from_str(&asked[0].body).unwrap();
    assert_eq!((&body["rate_bits_per_s"], &body["hold"]["longest_s"]), (&json!(500_000_000), &json!(28_800)));
    user.run(&["migrate", "db1", "--deadline", "5m"])
        .exits(1)
        .complains("a controller takes --rate and those of --hold");
    let ran = user.run(&["migration", "switch", "db1", "--by", "5m"]).exits(0);
    ran.says("expected to stand still for at most 55 ms").says("skein vm show db1");
    user.run(&["migration", "limit", "db1", "100Mbit/s"]).exits(0).says("The migration of db1");
    user.run(&["migration", "cancel", "db1", "--json"]).exits(0).says("\"target\": \"hostb\"");
    user.run(&["migration", "cancel", "web1"]).exits(1).complains("knows no migration 'web1' that is under way");
    let bodies: Vec<String> = user.controller.asked().into_iter().map(|asked| asked.body).collect();
    assert!(bodies.iter().any(|body| body.contains("\"deadline_s\":300")), "{bodies:?}");
    assert!(bodies.iter().any(|body| body.contains("\"rate_bits_per_s\":100000000")), "{bodies:?}");
}
