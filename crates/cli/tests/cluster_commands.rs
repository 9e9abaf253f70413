//! Tests the commands that ask a cluster's controllers: the program itself, its output and its exit status, with a
//! controller that answers as a test says.

mod fake;
mod user;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fake::Ran;
use serde_json::{Value, json};
use skein_api::cluster::{Host, Joined, Operation, Page, Vm};
use skein_identity::{ClusterCa, JoinToken, SigningRequest, Validity, certificate_pem};
use user::fake_controller::{Answer, Asked, FakeController};
use user::{User, host, page, planned, typed, vm};

fn drain(state: &str, moves: Vec<Value>) -> Operation {
    let goes = moves.iter().filter(|of| !of["to"].is_null()).count();
    let done = moves.iter().filter(|of| of["state"] == "done").count();
    typed(json!({
        "id": "17-000042", "kind": {"kind": "drain", "host": "hosta", "deadline": null, "evacuate": false},
        "state": state, "by": "admin", "created": 1_795_684_482_120u64,
        "ended": matches!(state, "done" | "failed" | "cancelled").then_some(1_795_684_490_120u64),
        "cancelled": false, "message": "", "moves": moves, "version": 1,
        "progress": {"moves": goes, "moves_done": done, "moves_running": 0, "left_ms": 4000, "forecast_ms": 8000},
    }))
}

#[test]
fn the_cluster_its_hosts_and_vms_are_shown() {
    let user = User::logged_in(|asked, _| match asked.what.split('?').next().unwrap() {
        "GET /api/v1/cluster" => Answer::ok(&json!({
            "name": "rack7", "id": "92a726af", "store": "sqlite", "term": 12, "operations_running": 1,
            "controllers": [{"name": "c1", "url": "https://10.0.0.9:7443", "leads": true},
                {"name": "c2", "url": "https://10.0.0.8:7443", "leads": false}],
            "hosts": {"all": 3, "online": 2, "lost": 1, "off": 0, "in_maintenance": 1},
            "vms": {"all": 5, "running": 4, "lost": 0, "stopped": 1}, "attention": ["host 'hostb' is lost\u{1b}[2J"],
        })),
        "GET /api/v1/hosts" => {
            let lost = Host { load: None, ..host("hostb", "lost", "maintenance", "no report\nsince") };
            page(vec![host("hosta", "online", "active", ""), lost])
        }
        "GET /api/v1/hosts/hosta" => Answer::ok(&host("hosta", "online", "draining", "")),
        "GET /api/v1/vms/db1" => Answer::ok(&vm("db1", "running")),
        _ => page(vec![vm("db1", "running"), vm("web1", "in-doubt")]),
    });
    user.run(&["cluster", "status"]).exits(0).is("cluster-status");
    user.shown(&["host", "list"]).exits(0).is("cluster-host-list");
    user.shown(&["host", "show", "hosta"]).exits(0).is("cluster-host-show");
    user.shown(&["vm", "list"]).exits(0).is("cluster-vm-list");
    user.run(&["vm", "show", "db1", "--cluster"]).exits(0).is("cluster-vm-show");
    // A variable of the environment does not silently turn the cluster's view into the agent's.
    let mut command = user.command(&["vm", "list"]);
    let ran = Ran::new(&["vm", "list"], command.env("SKEIN_SOCKET", "/no.sock").output().unwrap()).exits(1);
    ran.complains("$SKEIN_SOCKET names this host's agent").complains("--cluster").complains("no agent listens on");
    let listed = user.run(&["host", "list", "--cluster", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<Vec<Host>>(&listed.out).unwrap()[0].name, "hosta");
    let listed = user.run(&["vm", "list", "--cluster", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<Vec<Vm>>(&listed.out).unwrap()[1], vm("web1", "in-doubt"));
    // What programs read is the agent's, as before there were controllers.
    for args in [&["host", "list", "--json"][..], &["vm", "list", "--local"], &["vm", "list", "--socket", "/no.sock"]] {
        user.run(args).exits(1).complains("no agent listens on");
    }
}

#[test]
fn without_a_controller_it_is_said_what_to_do() {
    let user = User::new(|_, _| Answer::HangUp);
    for args in [&["cluster", "status"][..], &["host", "drain", "a"], &["operation", "list"], &["migrate", "web1"]] {
        user.run(args).exits(1).complains("no controller is known here: run `skein login");
    }
    user.run(&["migrate", "web1"]).exits(1).complains("nobody picks a host for web1: give --to HOST");
    user.run(&["host", "list"]).exits(1).complains("no agent listens on");
    let at = user.controller.url();
    user.run(&["cluster", "status", "--controller", &at]).exits(1).complains("run `skein login`");
    assert!(user.controller.paths().is_empty());
}

#[test]
fn a_controller_out_of_reach_leaves_the_agents_view() {
    let user = User::logged_in(|_, _| Answer::HangUp);
    let ran = user.run(&["vm", "list"]).exits(1);
    ran.complains("no controller answers at https://127").complains("this host's agent").complains("no agent listens");
    user.run(&["vm", "list", "--cluster"]).exits(1).complains("no controller answers");
}

#[test]
fn a_drain_is_planned_followed_and_told() {
    let reason = "the best of 2 hosts that can take it";
    let user = User::logged_in(move |asked, before| match asked.what.as_str() {
        "POST /api/v1/hosts/hosta/drain" if asked.body.contains("\"dry_run\":true") => Answer::ok(&drain(
            "planning",
            vec![
                planned("db1", Some("hostb"), "waiting", reason),
                planned("web9", None, "left", "its disk is on this host only"),
            ],
        )),
        "POST /api/v1/hosts/hosta/drain" => {
            Answer::Json(202, serde_json::to_string(&drain("planning", vec![])).unwrap())
        }
        _ if before < 3 => Answer::ok(&drain("running", vec![planned("db1", Some("hostb"), "waiting", reason)])),
        _ => Answer::ok(&drain("done", vec![planned("db1", Some("hostb"), "done", reason)])),
    });
    user.run(&["host", "drain", "hosta", "--dry-run"]).exits(3).is("drain-dry-run");
    user.run(&["host", "drain", "hosta", "--deadline", "1h", "--evacuate"]).exits(0).is("drain");
    let asked = user.controller.asked();
    let body: Value = serde_json::from_str(&asked[1].body).unwrap();
    assert_eq!(body, json!({"deadline_s": 3600, "evacuate": true, "dry_run": false}));
    assert!(asked[1].headers.contains_key("idempotency-key"));
    let detached = user.run(&["host", "drain", "hosta", "--detach"]).exits(0);
    detached.says("skein operation watch 17-000042").says("skein operation cancel 17-000042");
    let lines = user.run(&["host", "drain", "hosta", "--json"]).exits(0).out;
    let states: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["state"].clone()).collect();
    assert_eq!(states, ["planning", "done"]);
}

#[test]
fn a_failover_tells_what_is_started_and_each_thing_once() {
    let failover = |state: &str, moves: Vec<Value>| {
        let mut operation = drain(state, moves);
        operation.kind = typed(json!({"kind": "failover", "host": "hosta"}));
        operation
    };
    let user = User::logged_in(move |asked, before| match (asked.what.starts_with("POST"), before) {
        (true, _) => Answer::ok(&failover("planning", vec![])),
        (_, 0..3) => Answer::ok(&failover("running", vec![planned("db1", Some("hostb"), "waiting", "why b")])),
        // A later plan adds a move.
        _ => Answer::ok(&failover(
            "done",
            vec![planned("db1", Some("hostb"), "done", "why b"), planned("web1", Some("hostc"), "done", "why c")],
        )),
    });
    let ran = user.run(&["host", "fence", "hosta", "--is-off", "--yes"]).exits(0);
    assert_eq!(ran.out.matches("why b").count(), 1, "{}", ran.out);
    assert!(!ran.out.contains("moved"), "{}", ran.out);
    ran.is("failover");
}

#[test]
fn ctrl_c_ends_the_watching_and_says_how_to_go_on() {
    let running = || drain("running", vec![planned("db1", Some("hostb"), "begun", "why")]);
    let user = User::logged_in(move |_, _| Answer::ok(&running()));
    let mut command = user.command(&["operation", "watch", "17-000042"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    // It is asked for once to be found, and again to be followed.
    while user.controller.paths().len() < 3 {
        assert!(Instant::now() < end, "the operation is never looked at");
        std::thread::sleep(Duration::from_millis(10));
    }
    let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
    let ran = Ran::new(&["operation", "watch"], child.wait_with_output().unwrap()).exits(130);
    ran.complains("the drain of hosta goes on").complains("skein operation cancel 17-000042");
    assert!(user.controller.paths().iter().all(|path| path.starts_with("GET ")));
}

#[test]
fn operations_are_listed_found_by_a_beginning_and_called_off() {
    let user = User::logged_in(|asked, _| match asked.what.as_str() {
        "GET /api/v1/operations?limit=20" | "GET /api/v1/operations?limit=500" => {
            let mut other = drain("failed", vec![planned("db1", Some("hostb"), "failed", "why")]);
            other.id = "17-000041".into();
            page(vec![drain("running", vec![planned("db1", Some("hostb"), "begun", "why")]), other])
        }
        "GET /api/v1/operations/17-000042" | "POST /api/v1/operations/17-000042/cancel" => {
            Answer::ok(&drain("cancelled", vec![planned("db1", Some("hostb"), "left", "why")]))
        }
        _ => Answer::refused(404, "there is no such operation", ""),
    });
    user.run(&["operation", "list"]).exits(0).is("operation-list");
    user.run(&["operation", "show", "17-000042"]).exits(0).is("operation-show");
    user.run(&["operation", "show", "17-0"]).exits(1).complains("several operations begin with '17-0'");
    user.run(&["operation", "show", "9"]).exits(1).complains("there is no operation '9'");
    user.run(&["operation", "cancel", "17-000042"]).exits(0).says("drain of hosta: cancelled");
    user.run(&["operation", "watch", "17-000042"]).exits(4).says("drain of hosta was called off after 8");
}

#[test]
fn a_controller_picks_a_target_and_says_why() {
    let user = User::logged_in(|asked, _| {
        let to = Some("hostb").filter(|_| asked.what.contains("web1"));
        let reason = if to.is_some() { "it has the most room" } else { "no host has room" };
        let mut operation =
            drain("done", vec![planned("web1", to, if to.is_some() { "done" } else { "left" }, reason)]);
        operation.kind = typed(json!({"kind": "migrate", "vm": "web1", "to": null}));
        Answer::ok(&operation)
    });
    user.run(&["migrate", "web1"]).exits(0).is("cluster-migrate");
    user.run(&["migrate", "web1", "--check"]).exits(0).says("it has the most room");
    user.run(&["migrate", "web2", "--check"]).exits(3).says("no host has room");
    user.run(&["migrate", "web1", "--deadline", "1m"])
        .exits(1)
        .complains("a controller takes --rate and those of --hold");
    let bodies: Vec<String> = user.controller.asked().into_iter().map(|asked| asked.body).collect();
    assert_eq!(bodies[..2], [r#"{"to":null,"dry_run":false}"#, r#"{"to":null,"dry_run":true}"#]);
}

#[test]
fn settings_are_changed_and_the_others_stay() {
    let user = User::logged_in(|asked, _| match asked.what.as_str() {
        "GET /api/v1/hosts/hosta" => Answer::ok(&host("hosta", "online", "active", "")),
        _ => Answer::Json(204, String::new()),
    });
    user.run(&["property", "set", "host", "hosta", "storage=yes", "area.rack="]).exits(0).says("hosta: 2 settings set");
    let set = user.controller.asked().pop().unwrap();
    assert_eq!((set.what.as_str(), set.headers["if-match"].as_str()), ("PUT /api/v1/hosts/hosta/settings", "\"7\""));
    let body: Value = serde_json::from_str(&set.body).unwrap();
    assert_eq!((&body["group"], &body["storage"], &body["areas"]), (&json!("web"), &json!(true), &json!({})));
    user.run(&["property", "set", "host", "hosta", "grup=x"]).exits(1).complains("no setting 'grup'");
}

fn rule(name: &str, version: u64) -> Value {
    json!({"name": name, "rule": {"apart": {"of": {"tag": "web"}, "force": "hard"}}, "version": version,
        "warnings": ["'web-apart' is about nobody"]})
}

#[test]
fn rules_are_added_listed_explained_and_taken_away() {
    let user = User::logged_in(|asked, _| match asked.what.as_str() {
        "GET /api/v1/rules?limit=500" => page(vec![rule("web-apart", 5)]),
        "GET /api/v1/rules/web-apart" => Answer::ok(&rule("web-apart", 5)),
        "GET /api/v1/rules/new" => Answer::refused(404, "there is no rule 'new'", ""),
        "GET /api/v1/complaints" => page(vec![
            json!({"hard": true, "what": "'x1' shares 'a' with 'y1'", "rule": "web-apart", "vms": [], "hosts": []}),
            json!({"hard": false, "what": "'a' has little free", "rule": null, "vms": [], "hosts": ["a"]}),
        ]),
        "GET /api/v1/vms/db1/explanation" => Answer::ok(&json!({"vm": "db1", "on": "hosta", "hosts": [
            {"host": "hosta", "accepts": true, "objections": []},
            {"host": "hostb", "accepts": false, "objections": ["it has no room", "it is not preferred"]},
        ], "remedies": ["without the rule 'web-apart'"]})),
        _ => Answer::Json(204, String::new()),
    });
    user.run(&["rule", "list"]).exits(0).is("rule-list");
    user.run(&["rule", "show", "web-apart"]).exits(0).says("warning: 'web-apart' is about nobody");
    user.run(&["rule", "check"]).exits(3).is("rule-check");
    user.run(&["rule", "explain", "db1"]).exits(0).is("rule-explain");
    let text = "apart: {of: {tag: web}, force: hard}";
    let changed = user.run(&["rule", "add", "web-apart", text]).exits(0);
    changed.says("web-apart is changed").says("is about nobody");
    std::fs::write(user.path("rule.yaml"), text).unwrap();
    user.run(&["rule", "add", "new", "--file", "rule.yaml"]).exits(1).complains("there is no rule 'new'");
    let set: Vec<Asked> = user.controller.asked().into_iter().filter(|asked| asked.what.starts_with("PUT")).collect();
    for (asked, (path, version)) in set.iter().zip([("web-apart", Some("\"5\"")), ("new", None)]) {
        assert_eq!(asked.what, format!("PUT /api/v1/rules/{path}"));
        assert_eq!(asked.headers.get("if-match").map(String::as_str), version);
        let body: Value = serde_json::from_str(&asked.body).unwrap();
        assert_eq!(body, json!({"apart": {"of": {"tag": "web"}, "force": "hard"}}));
    }
    assert_eq!(set.len(), 2);
    user.run(&["rule", "add", "x", "apart: {of: [}"]).exits(1).complains("the rule cannot be read: line 1:");
    user.run(&["rule", "add", "x"]).exits(2);
    user.run(&["rule", "remove", "web-apart"]).exits(0);
    assert_eq!(user.controller.paths().last().unwrap(), "DELETE /api/v1/rules/web-apart");
}

#[test]
fn a_check_of_rules_that_clash_says_which_and_what_to_do() {
    let user = User::logged_in(|_, _| {
        page(vec![json!({"hard": true, "what": "'x' is with 'y'", "rule": "rule 'away'", "vms": [], "hosts": [],
                "clashes": ["rule 'away' and rule 'pair': they cannot hold together: remove one"]})])
    });
    let clashing = user.run(&["rule", "check"]).exits(3).says("clash: rule 'away' and rule 'pair'");
    assert!(clashing.says("change or remove a rule").out.find("skein optimize").is_none());
}

#[test]
fn an_optimisation_is_shown_before_it_is_made() {
    let user = User::logged_in(|asked, before| {
        let none = asked.body.contains("\"aggressiveness\":1");
        let state = if asked.body.contains("\"apply\":true") && before == 2 { "running" } else { "done" };
        let moves = if none { vec![] } else { vec![planned("db1", Some("hostb"), "done", "'a' has little free")] };
        let mut operation = drain(state, moves);
        operation.kind = typed(json!({"kind": "optimize", "automatic": false, "aggressiveness": 3}));
        Answer::ok(&operation)
    });
    let shown = user.run(&["optimize"]).exits(0);
    shown.says("'a' has little free").says("1 move would be made: skein optimize --apply");
    user.run(&["optimize", "--aggressiveness", "1"]).exits(0).says("no move is worth making");
    user.run(&["optimize", "--apply"]).exits(0).says("optimisation is done after");
    user.run(&["optimize", "--aggressiveness", "6"]).exits(2);
    user.run(&["optimize", "--detach"]).exits(2);
    let bodies: Vec<String> = user.controller.asked().into_iter().map(|asked| asked.body).collect();
    assert_eq!(bodies[..2], [r#"{"apply":false,"aggressiveness":null}"#, r#"{"apply":false,"aggressiveness":1}"#]);
}

#[test]
fn tokens_settings_groups_and_the_audit_log() {
    let token = json!({"name": "anna", "role": "operator", "created": 1_795_684_482_120u64, "expires": null});
    let record = |n: u32| {
        json!({"id": n.to_string(), "at": 1_795_684_482_120u64, "by": "anna", "from": "10.0.0.7", "status": 202,
            "what": "POST /api/v1/hosts/hosta/drain", "detail": format!("the drain {n}")})
    };
    let user = User::logged_in(move |asked, _| match asked.what.as_str() {
        "GET /api/v1/tokens?limit=500" => page(vec![token.clone()]),
        "POST /api/v1/tokens" => {
            Answer::Json(201, json!({"token": token.clone(), "secret": "skein-5ec2e7"}).to_string())
        }
        "GET /api/v1/audit?limit=500" => {
            Answer::ok(&Page { items: vec![record(1), record(2)], next: Some("2".into()) })
        }
        "GET /api/v1/audit?limit=500&after=2" => page(vec![record(3)]),
        "GET /api/v1/settings" => Answer::ok(&json!({"migrations_max": 8})),
        "GET /api/v1/hosts/hosta" => Answer::ok(&host("hosta", "online", "active", "")),
        "GET /api/v1/hosts?limit=500" => page(vec![host("hosta", "online", "active", "")]),
        _ => Answer::Json(204, String::new()),
    });
    user.run(&["token", "list"]).exits(0).says("anna  operator  2026-11-26 09:14:42  never");
    let made = user.run(&["token", "create", "anna", "--role", "operator", "--expires", "90d"]).exits(0);
    assert_eq!(made.out, "skein-5ec2e7\n", "for a file, and nothing else");
    let asked = user.controller.asked().pop().unwrap();
    assert_eq!(asked.body, r#"{"name":"anna","role":"operator","expires_s":7776000}"#);
    user.run(&["token", "remove", "anna"]).exits(0);
    assert_eq!(user.controller.paths().last().unwrap(), "DELETE /api/v1/tokens/anna");

    let lines = user.run(&["cluster", "audit", "--last", "2", "--json"]).exits(0).out;
    let ids: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids, ["2", "3"]);
    user.run(&["cluster", "audit"]).exits(0).says("the drain 1").says("the drain 3");

    user.run(&["cluster", "settings"]).exits(0).says("\"migrations_max\": 8");
    user.run(&["cluster", "settings", "optimize.automatic=yes"]).exits(0).says("\"automatic\": true");
    let body: Value = serde_json::from_str(&user.controller.asked().pop().unwrap().body).unwrap();
    assert_eq!((&body["migrations_max"], &body["optimize"]["automatic"]), (&json!(8), &json!(true)));

    user.run(&["host", "group", "gold", "hosta"]).exits(0);
    let set = user.controller.asked().into_iter().rfind(|asked| asked.what.starts_with("PUT")).unwrap();
    assert_eq!((set.what.as_str(), set.headers["if-match"].as_str()), ("PUT /api/v1/hosts/hosta/settings", "\"7\""));
    assert_eq!(serde_json::from_str::<Value>(&set.body).unwrap()["group"], "gold");
    user.run(&["host", "group", "--json"]).exits(0).says("\"web\": [");
}

#[test]
fn a_login_is_tried_before_it_is_kept() {
    let user = User::new(|asked, _| match asked.headers["authorization"].as_str() {
        "Bearer good" => Answer::ok(&json!({
            "name": "rack7", "id": "1", "store": "etcd", "term": 1, "operations_running": 0, "attention": [],
            "controllers": [{"name": "c2", "url": "https://10.0.0.8:7443", "leads": false}],
            "hosts": {"all": 0, "online": 0, "lost": 0, "off": 0, "in_maintenance": 0},
            "vms": {"all": 0, "running": 0, "lost": 0, "stopped": 0},
        })),
        _ => Answer::refused(401, "the token is not valid, or not any more", ""),
    });
    user.ca.save(&user.path("ca")).unwrap();
    std::fs::write(user.path("good"), "good\n").unwrap();
    std::fs::write(user.path("bad"), "bad\n").unwrap();
    let url = user.controller.url();
    let login = |token: &str, more: &[&str]| user.run(&[&["login", &url, "--token-file", token], more].concat());
    login("good", &[]).exits(1).complains("the cluster's CA is not known here");
    login("bad", &["--ca", "ca/ca.pem"]).exits(1).complains("valid: skein login URL --token-file");
    login("good", &["--fingerprint", &"ab".repeat(32)]).exits(1).complains("it is of another cluster");
    assert!(!user.path("login.toml").exists());
    login("good", &["--ca", "ca/ca.pem"]).exits(0).says("logged in to rack7");
    let kept = std::fs::read_to_string(user.path("login.toml")).unwrap();
    assert!(kept.contains(&url) && kept.contains("https://10.0.0.8:7443"), "{kept}");
}

/// Returns a controller's answer to a host that joins by the test's token.
fn signed(ca: &ClusterCa, asked: &Asked) -> Answer {
    let request: Value = serde_json::from_str(&asked.body).unwrap();
    let signing = SigningRequest::parse(request["signing_request"].as_str().unwrap().as_bytes()).unwrap();
    let certificate = ca.sign_host(&signing, request["host"].as_str().unwrap(), Validity::days(1)).unwrap();
    Answer::ok(&Joined {
        cluster: "rack7".into(),
        certificate: certificate_pem(&certificate),
        ca: ca.certificate_pem(),
        controllers: vec![],
    })
}

fn copy(ca: &ClusterCa, dir: &Path) -> ClusterCa {
    ca.save(dir).unwrap();
    ClusterCa::load(dir).unwrap()
}

#[test]
fn a_host_joins_once_and_again() {
    let (dir, ca) = (tempfile::tempdir().unwrap(), ClusterCa::create("rack7").unwrap());
    let signer = copy(&ca, &dir.path().join("ca"));
    let controller = FakeController::start(&ca, move |asked, _| match asked.what.as_str() {
        "POST /api/v1/join" => signed(&signer, asked),
        _ => Answer::ok(&host("node3", "joined", "active", "")),
    });
    let user = User { dir, ca, controller };
    let (url, token) = (user.controller.url(), user.token());
    let join = |args: &[&str]| user.run(&[&["join", &url, "--token", &token, "--socket", "none.sock"], args].concat());
    join(&["--name", "node3"])
        .exits(0)
        .says("node3 has an identity now")
        .says("start the agent: skein agent --identity");
    let key = std::fs::read(user.path("etc/identity/host.key")).unwrap();
    let controllers = std::fs::read_to_string(user.path("etc/controllers.toml")).unwrap();
    assert!(controllers.contains(&format!("[\"{}\"]", user.controller.address)), "{controllers}");
    join(&[]).exits(0).says("node3 has its identity already");
    assert_eq!(user.controller.paths(), ["POST /api/v1/join", "GET /api/v1/hosts/node3"]);
    // At a wrong port nothing is known of the host, and nothing is written.
    let elsewhere = user.run(&["join", "127.0.0.1:1", "--token", &token, "--socket", "none.sock"]).exits(1);
    elsewhere.complains("nothing was changed").complains("no controller answers at https://127.0.0.1:1");
    assert_eq!(std::fs::read(user.path("etc/identity/host.key")).unwrap(), key);
    assert_eq!(std::fs::read_to_string(user.path("etc/controllers.toml")).unwrap(), controllers);
    join(&["--name", "node4"]).exits(1).complains("this host is 'node3' of the cluster already");
    // The token may be in a file, so that it is in no list of processes.
    std::fs::write(user.path("token"), format!("{token}\n")).unwrap();
    let file = user.path("token").display().to_string();
    user.run(&["join", &url, "--token-file", &file, "--socket", "none.sock"]).exits(0).says("has its identity already");
    join(&["--token-file", "token"]).exits(2);
    // Another cluster's token changes nothing.
    let other = JoinToken { ca: "cd".repeat(32).parse().unwrap(), id: "1d".into(), secret: "5".into() }.to_string();
    user.run(&["join", &url, "--token", &other]).exits(1).complains("this host is 'node3' of another cluster");
}

#[test]
fn a_host_that_was_removed_joins_anew_with_its_key() {
    let (dir, ca) = (tempfile::tempdir().unwrap(), ClusterCa::create("rack7").unwrap());
    ca.issue("node3", Validity::days(1)).unwrap().save(&dir.path().join("etc/identity")).unwrap();
    let signer = copy(&ca, &dir.path().join("ca"));
    let controller = FakeController::start(&ca, move |asked, _| match asked.what.as_str() {
        "POST /api/v1/join" => signed(&signer, asked),
        _ => Answer::refused(403, "'node3' was removed from the cluster", "join it anew"),
    });
    let user = User { dir, ca, controller };
    let files = || ["host.key", "host.pem"].map(|file| std::fs::read(user.path("etc/identity").join(file)).unwrap());
    let before = files();
    let (url, token) = (user.controller.url(), user.token());
    let joined = user.run(&["join", &url, "--token", &token, "--socket", "none.sock"]).exits(0);
    joined.says("node3 has another certificate now, of the same key");
    let after = files();
    assert!(before[0] == after[0] && before[1] != after[1], "the key stays, and the certificate is another");
    assert_eq!(skein_identity::Identity::load(&user.path("etc/identity")).unwrap().host(), "node3");
}

#[test]
fn a_host_that_is_refused_has_nothing_new() {
    let user = User::new(|_, before| match before {
        0 => Answer::refused(403, "the token has expired", "get a new token"),
        _ => Answer::refused(409, "'node3' is a host of the cluster already", "take another name"),
    });
    let (url, token) = (user.controller.url(), user.token());
    let other = JoinToken { ca: "cd".repeat(32).parse().unwrap(), id: "1d".into(), secret: "5".into() }.to_string();
    let join = |url: &str, token: &str| user.run(&["join", url, "--token", token, "--name", "node3"]).exits(1);
    join(&url, &token).complains("nothing was changed: the token has expired: get a new token");
    join(&url, &token).complains("'node3' is a host of the cluster already: take another name");
    join(&url, &other).complains("nothing was changed").complains("it is of another cluster");
    join("127.0.0.1:1", &token).complains("no controller answers at https://127.0.0.1:1");
    user.run(&["join", &url, "--token", &token[..40]]).exits(2).complains("that is no token for a join");
    assert_eq!(std::fs::read_dir(user.path("etc")).unwrap().count(), 0);
}

fn fencing(state: &str, message: &str, failover: Option<&str>) -> Operation {
    typed(json!({
        "id": "17-000043", "kind": {"kind": "fence", "host": "hosta", "automatic": false},
        "state": state, "by": "admin", "created": 1_795_684_482_120u64,
        "ended": (state != "running").then_some(1_795_684_490_120u64), "cancelled": false, "message": message,
        "moves": [], "version": 1, "progress": {}, "fencing": {"attempts": 1, "failover": failover},
    }))
}

#[test]
fn a_lost_host_is_switched_off_and_its_failover_is_followed() {
    let user = User::logged_in(|asked, before| match asked.what.as_str() {
        "POST /api/v1/hosts/hosta/fence" => {
            Answer::Json(202, serde_json::to_string(&fencing("running", "", None)).unwrap())
        }
        "GET /api/v1/operations/17-000042" => Answer::ok(&drain("done", vec![])),
        _ if before < 2 => Answer::ok(&fencing("running", "attempt 1 of 5: waits until the power is off", None)),
        _ => Answer::ok(&fencing("done", "it is off", Some("17-000042"))),
    });
    let ran = user.run(&["host", "fence", "hosta"]).exits(0);
    let ran = ran.says("attempt 1 of 5: waits until the power is off");
    ran.says("fencing of hosta is done after 8.0 s: it is off").says("hosta has no guest any more");
    let body: Value = serde_json::from_str(&user.controller.asked()[0].body).unwrap();
    assert_eq!(body, json!({"is_off": false}));

    let user = User::logged_in(|_, _| Answer::ok(&fencing("failed", "nobody answers", None)));
    user.run(&["host", "fence", "hosta"]).exits(1).says("fencing of hosta failed after 8.0 s: nobody answers");
}

#[test]
fn a_fencing_device_is_set_shown_tried_and_removed() {
    let device = json!({"kind": "redfish", "url": "https://10.1.0.5", "user": "fencing", "secret": "bmc",
        "certificate_sha256": "3a9c"});
    let shown = device.clone();
    let user = User::logged_in(move |asked, _| match asked.what.as_str() {
        "PUT /api/v1/hosts/hosta/settings" => Answer::Json(204, String::new()),
        "POST /api/v1/hosts/hosta/fencing/test" => {
            Answer::ok(&json!({"host": "hosta", "power": "on", "detail": "name hosta\u{1b}[2J"}))
        }
        _ => {
            let mut host = serde_json::to_value(host("hosta", "online", "active", "")).unwrap();
            host["settings"]["fencing"] = shown.clone();
            Answer::ok(&host)
        }
    });
    let set = |args: &[&str]| user.run(&[&["host", "fencing", "set", "hosta"], args].concat());
    let redfish = ["--redfish", "https://10.1.0.5", "--user", "fencing", "--secret", "bmc"];
    set(&[&redfish[..], &["--certificate-sha256", "3A:9C"]].concat()).exits(0).says("skein host fencing test hosta");
    set(&["--agent", "fence_ipmilan", "--option", "ip=10.1.0.5", "--option", "lanplus=1"]).exits(0);
    user.run(&["host", "fencing", "remove", "hosta"]).exits(0).says("hosta has no fencing device");
    let puts: Vec<Value> = user
        .controller
        .asked()
        .iter()
        .filter(|asked| asked.what.starts_with("PUT"))
        .map(|asked| serde_json::from_str::<Value>(&asked.body).unwrap())
        .collect();
    assert_eq!((&puts[0]["fencing"], &puts[0]["group"]), (&device, &"web".into()));
    let agent = json!({"kind": "agent", "agent": "fence_ipmilan", "options": {"ip": "10.1.0.5", "lanplus": "1"}});
    assert_eq!((&puts[1]["fencing"], &puts[2]["fencing"]), (&agent, &Value::Null));
    let shown = user.run(&["host", "fencing", "show", "hosta"]).exits(0);
    assert_eq!(serde_json::from_str::<Value>(&shown.out).unwrap(), device);
    let tried = user.run(&["host", "fencing", "test", "hosta"]).exits(0);
    let tried = tried.says("on").says("name hosta");
    assert!(!tried.out.contains('\u{1b}'), "{}", tried.out);
    set(&["--agent", "fence_ipmilan", "--option", "ip"]).exits(1).complains("'ip' is no option: write KEY=VALUE");
    set(&[]).exits(1).complains("--agent PROGRAM");
    set(&["--redfish", "https://a", "--agent", "fence_b"]).exits(2);
}

/// Returns the operation that a VM's life is asked for by.
fn step(kind: &Value, state: &str, message: &str, moves: Vec<Value>) -> Operation {
    typed(json!({
        "id": "life-1", "kind": kind, "state": state, "by": "anna", "created": 1000,
        "ended": if state == "running" { Value::Null } else { json!(3000) }, "cancelled": false, "message": message,
        "moves": moves, "progress": {"moves": 1, "moves_done": 1}, "version": 9,
    }))
}

#[test]
fn a_vm_is_started_stopped_and_deleted_by_a_controller() {
    let start = json!({"kind": "start", "vm": "web1", "on": null});
    let moved = json!({"vm": "web1", "from": "", "to": "hostb", "reason": "the best", "state": "done"});
    let stay = vec![json!({"vm": "web1", "from": "", "to": null, "reason": "it has no bridge br7", "state": "left"})];
    let stop = json!({"kind": "stop", "vm": "web1", "timeout_s": 5, "force": true});
    let user = User::logged_in(move |asked, _| match asked.what.as_str() {
        "POST /api/v1/vms" if asked.body.contains("br7") => Answer::ok(&step(&start, "planning", "", stay.clone())),
        "POST /api/v1/vms" if asked.body.contains("br8") => {
            Answer::ok(&step(&start, "failed", "no host can take it", stay.clone()))
        }
        "POST /api/v1/vms" if asked.body.contains("\"start\":false") => Answer::Json(204, String::new()),
        "POST /api/v1/vms" | "POST /api/v1/vms/web1/start" => {
            Answer::ok(&step(&start, "done", "", vec![moved.clone()]))
        }
        "POST /api/v1/vms/web1/stop" => Answer::ok(&step(&stop, "failed", "'web1' did not shut down", vec![])),
        "DELETE /api/v1/vms/web1" => Answer::ok(&step(&json!({"kind": "delete", "vm": "web1"}), "done", "", vec![])),
        other => panic!("{other}"),
    });
    std::fs::write(user.path("web1.toml"), "name = 'web1'\nmemory = '64 MiB'\n").unwrap();
    std::fs::write(user.path("br7.toml"), "name = 'web1'\nmemory = '64 MiB'\n[[nic]]\nbridge = 'br7'\n").unwrap();

    let started = user.run(&["vm", "start", "web1.toml", "--cluster"]).exits(0);
    started.says("web1: hostb").says("start of web1 is done").says("1 of 1 VM started").says("the best");
    // On a desk there is no agent to ask.
    user.run(&["vm", "start", "web1", "--socket", "/nowhere/agent.sock"]).exits(0).says("start of web1 is done");
    let nowhere = user.run(&["vm", "start", "br7.toml", "--cluster", "--dry-run"]).exits(3);
    let nowhere = nowhere.says("cannot start").says("no bridge br7");
    assert!(!nowhere.err.contains("the cluster knows"), "{}", nowhere.err);
    std::fs::write(user.path("br8.toml"), "name = 'web1'\nmemory = '64 MiB'\n[[nic]]\nbridge = 'br8'\n").unwrap();
    let left = user.run(&["vm", "start", "br8.toml", "--cluster"]).exits(3);
    left.complains("the cluster knows web1 now").complains("skein vm delete web1");
    user.run(&["vm", "create", "web1.toml"]).exits(0).says("skein vm start web1 --cluster");
    let stop = &["vm", "stop", "web1", "--cluster", "--timeout", "5", "--force"];
    user.run(stop).exits(1).says("stop of web1 failed").says("'web1' did not shut down");
    // In a pipe nobody can be asked whether they are sure.
    user.run(&["vm", "delete", "web1"]).exits(1).complains("nobody can be asked here");
    user.run(&["vm", "delete", "web1", "--yes"]).exits(0).says("its UEFI variables and its TPM are where they were");

    user.run(&["vm", "start", "web1", "--local", "--on", "hosta"]).exits(1).complains("add --cluster");
    user.run(&["vm", "start", "web1", "--cluster", "--overcommit"]).exits(1).complains("no --overcommit");
}

/// Returns an update of two hosts, of which each is in such a state.
fn updated(state: &str, message: &str, hosts: [(&str, &str); 2]) -> Operation {
    let [a, b] = hosts.map(|(state, detail)| json!({"state": state, "detail": detail}));
    let host = |name: &str, of: Value| json!({"host": name, "state": of["state"], "detail": of["detail"]});
    typed(json!({
        "id": "17-000050", "kind": {"kind": "update", "how": "update-reboot", "bring_home": true, "wait_s": 1800,
            "skip_blocked": false},
        "state": state, "by": "anna", "created": 1000,
        "ended": if state == "failed" { json!(61_000) } else { Value::Null }, "cancelled": false, "message": message,
        "moves": [], "update": {"hosts": [host("hosta", a), host("hostb", b)]}, "progress": {}, "version": 9,
    }))
}

#[test]
fn an_update_of_hosts_is_shown_beforehand_and_followed() {
    let blocked = "it cannot be emptied: db1 stays: it is pinned here";
    let failed = "hosta: its update failed (exit 7): no space; it stays in maintenance";
    let user = User::logged_in(move |asked, before| match asked.what.as_str() {
        "POST /api/v1/cluster/update" if asked.body.contains("update\",\"bring_home\":false") => {
            let mut shown = updated("planning", "nothing would be begun", [("waiting", ""), ("skipped", "lost")]);
            shown.update.as_mut().unwrap().hosts[1].blocks = true;
            Answer::ok(&shown)
        }
        "POST /api/v1/cluster/update" if asked.body.contains("\"dry_run\":true") => Answer::ok(&updated(
            "planning",
            "nothing was begun: this is what would be done",
            [("waiting", "2 VMs leave"), ("skipped", blocked)],
        )),
        "POST /api/v1/cluster/update" => {
            let begun = updated("planning", "it is seen whether each host can be emptied", [("unchecked", ""); 2]);
            Answer::Json(202, serde_json::to_string(&begun).unwrap())
        }
        _ if before < 4 => {
            let message = "hosta (1 of 2): its guests leave, by operation 17-000051";
            Answer::ok(&updated("running", message, [("emptying", ""), ("waiting", "")]))
        }
        _ => Answer::ok(&updated("failed", failed, [("failed", "exit 7"), ("waiting", "")])),
    });
    let shown = user.run(&["cluster", "update", "--dry-run"]).exits(3);
    shown.says("hosta  waiting").says("2 VMs leave").says("left out").says("1 host would be updated, 1 would not");
    let shown = user.run(&["cluster", "update", "--dry-run", "--no-reboot", "--no-home"]).exits(3);
    shown.says("hostb  BLOCKED").says("no host would be updated: 1 of 2 would be in the way");
    let failed = user.run(&["cluster", "update", "--host", "hosta", "--host", "hostb", "--wait", "1h"]).exits(1);
    let failed = failed.says("update of hosts: hosta (1 of 2): its guests leave").says("update of hosts failed");
    assert_eq!(failed.out.matches("its update failed (exit 7)").count(), 1, "{}", failed.out);
    let asked = user.controller.asked();
    let body: Value = serde_json::from_str(&asked[2].body).unwrap();
    let wanted = json!({
        "hosts": ["hosta", "hostb"], "how": "update-reboot", "bring_home": true, "wait_s": 3600, "skip_blocked": false,
        "dry_run": false,
    });
    assert_eq!(body, wanted);
    assert!(asked[2].headers.contains_key("idempotency-key"));
    user.run(&["operation", "show", "17-000050"]).exits(0).says("hosta  FAILED");
    user.run(&["cluster", "update", "--manual", "--no-reboot"]).exits(2);
    user.run(&["cluster", "update", "--group", "web", "--host", "hosta"]).exits(2);
}
