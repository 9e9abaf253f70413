//! Tests the commands about migrations and starts that go through a controller.

mod fake;
mod user;

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use skein_api::{Migration, MigrationId, Outcome, Role};
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
    let shown = user.shown(&["host", "show", "hosta"]).exits(0).says("migrations that no operation began:");
    shown.says("db1").says("hostb").says("held since");
}

#[test]
fn migrations_of_other_hosts_are_listed_and_shown_through_a_controller() {
    let view = |id: &str, vm: &str, outcome: Value| {
        json!({
            "id": id, "vm": vm, "source": "hosta", "target": "hostb", "begun": "2026-11-22T03:41:07.120Z",
            "elapsed_ms": 4200, "stage": outcome.is_null().then(|| json!({"source": "precopy"})), "outcome": outcome,
            "why": null, "detail": "", "downtime_ms": null, "operation": "17-000042",
        })
    };
    let migration = |role| {
        let (outcome, downtime_ms) = (Some(Outcome::Moved), Some(55));
        let new = Migration::new(MigrationId(0x4f1c_a3b2_0d5e_6677), "db1", role, "hosta", "hostb");
        Migration { outcome, downtime_ms, ..new }
    };
    let moving = |name: &str, id: &str| {
        let mut vm = serde_json::to_value(vm(name, "running")).unwrap();
        vm["migration"] = held();
        (vm["migration"]["vm"], vm["migration"]["id"]) = (json!(name), json!(id));
        vm
    };
    let shows = AtomicUsize::new(0);
    let user = User::logged_in(move |asked, _| match asked.what.split('?').next().unwrap() {
        "GET /api/v1/migrations/4f1ca3b20d5e6677" => {
            let record = |role| json!({"migration": migration(role), "samples": []});
            let is_first = shows.fetch_add(1, Ordering::SeqCst) == 0;
            let source = if is_first { record(Role::Source) } else { Value::Null };
            Answer::ok(&json!({"source": source, "target": record(Role::Target), "note": "hosta does not answer"}))
        }
        "GET /api/v1/migrations" => {
            let moved = view("4f1ca3b20d5e6677", "db1", json!("moved"));
            let all = [moved, view("4f1cb00000000000", "web1", Value::Null)];
            let of = asked.what.split("vm=").nth(1).map(|rest| rest.split('&').next().unwrap().to_owned());
            page(all.into_iter().filter(|one| of.as_ref().is_none_or(|vm| one["vm"] == **vm)).collect())
        }
        "GET /api/v1/vms" => page(vec![moving("db1", "4f1ca3b20d5e6677"), moving("web1", "4f1cb00000000000")]),
        "GET /api/v1/vms/4f1c" => Answer::refused(404, "there is no VM '4f1c'", ""),
        other => panic!("{other}"),
    });
    let listed = user.run(&["migration", "list"]).exits(0);
    listed.says("4f1ca3b20d5e6677").says("hosta").says("moved").says("17-000042");
    let json = |args: &[&str]| serde_json::from_str::<Value>(&user.run(args).exits(0).out).unwrap();
    assert_eq!(json(&["migration", "list", "--cluster", "--json"])[1]["vm"], "db1");
    user.run(&["migration", "show", "db1"]).exits(0).says("migration 4f1ca3b20d5e6677").says("told by   the source");
    let shown = json(&["migration", "show", "4f1ca", "--json"]);
    assert_eq!((&shown["role"], &shown["downtime_ms"]), (&json!("target"), &json!(55)), "the source did not tell");
    user.run(&["migration", "show", "4f1c"]).exits(1).complains("begins the ids of 2 migrations");
    user.run(&["migration", "show", "nobody"]).exits(1).complains("no host of the cluster tells of a migration");
    // Nobody's migration is called off by a slip.
    user.run(&["migration", "cancel", "4f1c"]).exits(1).complains("begins the ids of several migrations");
    for asked in ["show", "cancel"] {
        user.run(&["migration", asked, ""]).exits(1).complains("an empty id names no migration");
    }
    user.run(&["migration", "watch", "db1", "--cluster"]).exits(1).complains("are for a host's own agent");
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
    let asked = user.controller.asked();
    assert!(asked.iter().any(|asked| asked.what.ends_with("/migration/cancel?id=4f1ca3b20d5e6677")), "{asked:?}");
    let bodies: Vec<String> = asked.into_iter().map(|asked| asked.body).collect();
    assert!(bodies.iter().any(|body| body.contains("\"deadline_s\":300")), "{bodies:?}");
    assert!(bodies.iter().any(|body| body.contains("\"rate_bits_per_s\":100000000")), "{bodies:?}");
}

/// Returns an operation that moves `db1`, with its move in a state.
fn operation(state: &str, message: &str, moves: Value) -> Value {
    json!({
        "id": "17-000042", "kind": {"kind": "migrate", "vm": "db1", "to": null}, "state": state, "by": "admin",
        "created": 1_795_684_482_120u64, "ended": 1_795_684_489_120u64, "cancelled": false, "message": message,
        "version": 1, "moves": moves,
        "progress": {"moves": 1, "moves_done": 0, "moves_running": 1, "left_ms": null, "forecast_ms": null},
    })
}

#[test]
fn the_last_line_for_programs_is_the_migration_as_an_agent_tells_of_it() {
    let moved = |state: &str, detail: &str| {
        let mut of = planned("db1", Some("hostb"), state, "the best");
        of["migration"] = json!("0123456789abcdef");
        (of["detail"], of["attempts"]) = (json!(detail), json!(1));
        (of["begun"], of["ended"]) = (json!(1_795_684_482_120u64), json!(1_795_684_486_120u64));
        of["downtime_ms"] = json!(55);
        of
    };
    let never = planned("db1", None, "left", "no host has room");
    let user = User::logged_in(move |asked, before| match asked.what.as_str() {
        "POST /api/v1/vms/db1/migrate" => Answer::ok(&match before {
            0 => operation("done", "", json!([moved("failed", "the link broke"), moved("done", "")])),
            1 => operation("failed", "the link broke", json!([moved("failed", "the link broke")])),
            2 => operation("failed", "no host has room", json!([never])),
            _ => operation("running", "", json!([moved("begun", "")])),
        }),
        "GET /api/v1/operations/17-000042" => Answer::ok(&operation("running", "", json!([moved("begun", "")]))),
        "GET /api/v1/vms/db1" => {
            let mut vm = serde_json::to_value(vm("db1", "running")).unwrap();
            vm["migration"] = held();
            Answer::ok(&vm)
        }
        other => panic!("{other}"),
    });
    let last = |args: &[&str], code: i32| -> Value {
        let ran = user.run(&[&["migrate", "db1", "--json"], args].concat()).exits(code);
        serde_json::from_str(ran.out.lines().last().unwrap()).unwrap()
    };
    let end = last(&[], 0);
    serde_json::from_value::<skein_api::Reply>(end.clone()).unwrap();
    assert_eq!(
        (&end["reply"], &end["outcome"], &end["source"]),
        (&json!("migration"), &json!("moved"), &json!("hosta"))
    );
    assert_eq!((&end["elapsed_ms"], &end["downtime_ms"], &end["detail"]), (&json!(4000), &json!(55), &json!("")));
    assert!(end["begun"].as_str().unwrap().starts_with("2026-11-2"), "{end}");
    let end = last(&[], 1);
    assert_eq!((&end["outcome"], &end["detail"]), (&json!("kept"), &json!("the link broke")));
    let end = last(&[], 3);
    assert_eq!((&end["state"], &end["message"]), (&json!("failed"), &json!("no host has room")), "nothing was begun");
    let end = last(&["--hold"], 0);
    assert_eq!((&end["reply"], &end["vm"]), (&json!("progress"), &json!("db1")));
    assert!(end["hold"]["since"].is_string(), "{end}");
}

#[test]
fn a_start_that_failed_is_told_once() {
    let start = |state: &str, message: &str, moves: Value| {
        let mut start = operation(state, message, moves);
        start["kind"] = json!({"kind": "start", "vm": "web1", "on": null});
        start
    };
    let of = |to: &str, state: &str, detail: &str| {
        json!({"vm": "web1", "from": "", "to": to, "reason": "the best", "state": state, "attempts": 1,
            "detail": detail})
    };
    let (begun, failed) = (of("hosta", "begun", ""), of("hosta", "failed", "no such disk"));
    let user = User::logged_in(move |asked, before| match asked.what.as_str() {
        // It fails before it is looked at, or while it is looked at, or is tried elsewhere before it fails.
        "POST /api/v1/vms/web1/start" => Answer::ok(&start("failed", "no such disk", json!([failed]))),
        "POST /api/v1/vms/web2/start" | "POST /api/v1/vms/web3/start" => {
            Answer::ok(&start("running", "", json!([begun])))
        }
        "GET /api/v1/operations/17-000042" if before == 0 => {
            Answer::ok(&start("failed", "no such disk", json!([failed])))
        }
        "GET /api/v1/operations/17-000042" => {
            Answer::ok(&start("failed", "no room", json!([failed, of("hostb", "failed", "no room")])))
        }
        other => panic!("{other}"),
    });
    for vm in ["web1", "web2", "web3"] {
        let told = user.run(&["vm", "start", vm, "--cluster"]).exits(1).out;
        let reasons = if vm == "web3" { vec!["no such disk", "no room"] } else { vec!["no such disk"] };
        for reason in reasons {
            assert_eq!(told.matches(reason).count(), 1, "{told}");
        }
    }
}
