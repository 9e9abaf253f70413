//! Replays a recorded conversation of a command and an agent: a migration is asked for, followed, and ends.
//!
//! `schema/v1-conversation.txt` has a line for each that is said, `command` or `agent` before it. `SKEIN_RECORD=1 cargo
//! test -p skein-api --test recorded_commands` writes it anew; what older programs read stays (docs/releases.md).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use skein_api::{
    API_VERSION, Attempt, CheckResult, CopyProgress, MigrateOptions, Migration, MigrationId, MigrationPhase, Outcome,
    PathView, Problem, ProblemKind, Reply, Request, RequestLine, Role, Severity, SourcePhase,
};
use skein_client::Client;

const REQUEST_ID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const PATIENCE: Duration = Duration::from_secs(10);

fn request() -> Request {
    let options = MigrateOptions { retries: 2, allow_throttle: Some(60), ..MigrateOptions::default() };
    Request::Migrate { vm: "web1".into(), to: "hostb".into(), options, detach: false }
}

fn migration(stage: Option<SourcePhase>, elapsed_ms: u64) -> Migration {
    let copies = matches!(stage, Some(SourcePhase::Precopy | SourcePhase::Switchover));
    Migration {
        id: MigrationId(0x4f1c_a3b2_0d5e_6677),
        vm: "web1".into(),
        role: Role::Source,
        source: "hosta".into(),
        target: "hostb".into(),
        stage: stage.map(MigrationPhase::Source),
        outcome: None,
        why: None,
        detail: String::new(),
        in_doubt: false,
        begun: "2026-11-25T12:00:00.000Z".into(),
        elapsed_ms,
        downtime_ms: None,
        copy: copies.then_some(CopyProgress {
            total_bytes: 4 << 30,
            remaining_bytes: 1 << 30,
            remaining_wire_bytes: None,
            transferred_bytes: 3 << 30,
            round: 1,
            dirty_bytes_per_s: 21_000_000,
            bits_per_s: 1_883_000_000,
            converges: None,
            throttle_percent: 0,
            pages: None,
        }),
        paths: vec![PathView {
            nic: "eth0".into(),
            remote: "10.0.0.2".into(),
            usable: true,
            sent_bytes: 1_200_000_000,
            rdma_connections: 0,
            rdma: None,
            bits_per_s: 940_000_000,
            note: String::new(),
            connections: String::new(),
        }],
        rate_limit: None,
        hold: None,
        attempt: Some(Attempt { number: 1, of: 3, not_begun: None, next_in_ms: None }),
        events: vec![],
    }
}

fn replies() -> Vec<Reply> {
    let problem = Problem {
        kind: ProblemKind::NicsUnused,
        severity: Severity::Warns,
        what: "eth1 is left out".into(),
        cure: "give it an address".into(),
    };
    let check = CheckResult { vm: "web1".into(), to: "hostb".into(), problems: vec![problem], forecast: None };
    let phases = [SourcePhase::Prepare, SourcePhase::Precopy, SourcePhase::Switchover, SourcePhase::Grant];
    let progress = (1..).zip(phases).map(|(n, phase)| Reply::Progress(Box::new(migration(Some(phase), n * 1000))));
    let over = Migration { outcome: Some(Outcome::Moved), downtime_ms: Some(144), ..migration(None, 7320) };
    [Reply::Check(check)].into_iter().chain(progress).chain([Reply::Migration(Box::new(over))]).collect()
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../api/schema/v1-conversation.txt")
}

fn conversation() -> String {
    let line = RequestLine { api: Some(API_VERSION), request_id: Some(REQUEST_ID.into()), request: request() };
    let asked = format!("command {}\n", serde_json::to_string(&line).unwrap());
    let said = replies().into_iter().map(|reply| format!("agent {}\n", serde_json::to_string(&reply).unwrap()));
    asked + &said.collect::<String>()
}

/// Returns the recorded lines of the command or of the agent.
fn recorded(who: &str) -> Vec<String> {
    let text = std::fs::read_to_string(file()).expect("it is in the tree");
    text.lines().filter_map(|line| line.strip_prefix(who)?.strip_prefix(' ').map(str::to_owned)).collect()
}

#[test]
fn what_is_said_is_what_was_recorded() {
    if std::env::var_os("SKEIN_RECORD").is_some() {
        std::fs::write(file(), conversation()).unwrap();
    }
    assert_eq!(conversation(), std::fs::read_to_string(file()).unwrap_or_default());
}

#[test]
fn each_line_is_read_and_written_to_the_same_bytes() {
    let asked = recorded("command");
    let [line] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(serde_json::to_string(&serde_json::from_str::<RequestLine>(line).unwrap()).unwrap(), *line);
    let said = recorded("agent");
    for line in &said {
        assert_eq!(serde_json::to_string(&serde_json::from_str::<Reply>(line).unwrap()).unwrap(), *line);
    }
    assert_eq!(said.len(), replies().len());
}

#[test]
fn a_command_asks_as_was_recorded_and_understands_the_recorded_agent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let agent = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut asked = String::new();
        BufReader::new(&stream).read_line(&mut asked).unwrap();
        for line in recorded("agent") {
            writeln!(stream, "{line}").unwrap();
        }
        asked
    });
    let mut conversation = Client::new(&path).ask_once(&request(), REQUEST_ID).unwrap();
    for reply in replies() {
        assert_eq!(conversation.next(PATIENCE).unwrap(), Some(reply));
    }
    assert_eq!(agent.join().unwrap().trim_end(), recorded("command")[0]);
}
