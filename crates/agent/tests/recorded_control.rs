//! Replays recorded conversations of two agents: all lines of the control stream of a migration that succeeds, in both
//! directions, as each version of the protocol has them. A version that speaks an older version reads what that one
//! said, says the same, and goes the same way.
//!
//! `tests/recorded/control-vN.txt` has a line for each message, `source` or `target` before it. The file of the newest
//! version is written anew by `SKEIN_RECORD=1 cargo test -p skein-agent --test recorded_control`; those of older
//! versions stay as they are.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use skein_agent::{Answer, CONTROL_VERSIONS, ControlMessage, Offer, Question};
use skein_handover::{
    Action, Input, Manager, Message, MigrationId, MigrationLimits, NewMigration, Order, Outcome, Role, SourceGuest,
    SourceInput, SourceOrder, TargetGuest, TargetInput, TargetOrder, WriteResult,
};
use skein_inventory::facts::{GuestFiles, HostFacts};
use skein_inventory::{Composition, Definition};

const ID: MigrationId = MigrationId(0x4f1c_a3b2_0d5e_6677);

/// A line, and the end that says it.
type Line = (Role, ControlMessage);

fn name(role: Role) -> &'static str {
    match role {
        Role::Source => "source",
        Role::Target => "target",
    }
}

/// One end: what decides about its migrations, and a QEMU that does as it is told, a step at a time.
struct End {
    role: Role,
    manager: Manager<Arc<Offer>>,
    /// What the end's QEMU will say.
    steps: VecDeque<Input<Arc<Offer>>>,
    said: VecDeque<ControlMessage>,
    outcome: Option<Outcome>,
}

impl End {
    fn new(role: Role) -> End {
        let manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
        let mut end = End { role, manager, steps: VecDeque::new(), said: VecDeque::new(), outcome: None };
        // Both have greeted each other.
        end.feed(Input::Contact(end.peer(), true));
        end
    }

    fn peer(&self) -> String {
        if self.role == Role::Source { "hostb".into() } else { "hosta".into() }
    }

    fn start(&mut self, offer: Offer) {
        let (vm, peer, offer) = ("web1".into(), self.peer(), Arc::new(offer));
        let new = NewMigration { id: ID, vm, peer, priority: 50, offer, deadline: None, hold: None };
        self.manager.start(Duration::ZERO, new).unwrap();
        self.perform();
    }

    /// Handles a line of the other end.
    fn hear(&mut self, line: &ControlMessage) {
        let ControlMessage::Handover(message) = line else { return };
        let message = message.clone().try_map_offer(|offer| Offer::from_json(&offer).map(Arc::new)).unwrap();
        self.feed(Input::Message(self.peer(), message));
    }

    /// Lets the end's QEMU get on by a step. Returns whether there was one.
    fn step(&mut self) -> bool {
        let step = self.steps.pop_front();
        let is_one = step.is_some();
        step.into_iter().for_each(|input| self.feed(input));
        is_one
    }

    fn feed(&mut self, input: Input<Arc<Offer>>) {
        self.manager.handle(Duration::ZERO, input);
        self.perform();
    }

    fn perform(&mut self) {
        while let Some(action) = self.manager.poll_action() {
            match action {
                Action::Write(records) => {
                    if let Some(written) = Input::written(&records, WriteResult::OnDisk) {
                        self.manager.handle(Duration::ZERO, written);
                    }
                }
                Action::Send(_, message) => self.said.push_back(ControlMessage::handover(&message)),
                Action::Order(_, order) => self.obey(order),
                Action::Event(_, skein_handover::MigrationEvent::Over { outcome }) => self.outcome = Some(outcome),
                Action::Reach(..) | Action::Event(..) | Action::Forget(_) => {}
            }
        }
    }

    fn obey(&mut self, order: Order) {
        let source = |guest| Input::Source(ID, SourceInput::Guest(guest));
        let target = |guest| Input::Target(ID, TargetInput::Guest(guest));
        self.steps.extend(match order {
            Order::Source(SourceOrder::Migrate) => {
                vec![source(SourceGuest::Migrating), source(SourceGuest::PreSwitchover)]
            }
            Order::Source(SourceOrder::Continue) => vec![source(SourceGuest::Device), source(SourceGuest::Completed)],
            Order::Source(SourceOrder::Quit) => vec![source(SourceGuest::Gone)],
            Order::Target(TargetOrder::Start) => vec![target(TargetGuest::Waiting), target(TargetGuest::Loaded)],
            Order::Target(TargetOrder::Continue) => {
                vec![Input::Target(ID, TargetInput::Continuing), target(TargetGuest::Running)]
            }
            order => panic!("a migration that succeeds does not come to {order:?}"),
        });
    }
}

fn offer() -> Offer {
    let text = "name = 'web1'\nmemory = '4 GiB'\ncpus = 2\nmachine = 'pc-q35-10.0'\naccel = 'kvm'\n\
                [[disk]]\npath = '/srv/web1.qcow2'\nformat = 'qcow2'\n[[nic]]\nbridge = 'br0'\n";
    let definition = Definition::parse(text, "web1.toml").unwrap();
    let offer = json!({
        "launch": {"definition": {"definition": definition, "odd_ram": false}},
        "channels": 2, "downtime_limit_ms": 300, "transport": "auto", "indirect": null, "allow_throttle": 60,
        "delta_memory": 2.5, "has_deadline": true, "priority": 50, "keep": {"ram_bytes": 1 << 30, "time_s": 600},
    });
    Offer::from_json(&offer).unwrap()
}

fn facts() -> HostFacts {
    let facts = json!({
        "name": "hostb", "boot_id": "5f0c", "ram_bytes": 68719476736u64, "ram_available_bytes": 34359738368u64,
        "hugepages": [{"page_bytes": 2097152, "total": 4096, "free": 2048}], "cpus": 16,
        "cpu_vendor": "AuthenticAMD", "cpu_flags": ["avx2", "sse4_1"], "kvm": {"Ok": null},
        "qemu": {"Ok": {
            "program": "/usr/bin/qemu-system-x86_64", "version": {"major": 10, "minor": 0, "micro": 2},
            "machines": [{"name": "pc-q35-10.0", "alias": "q35"}],
            "accels": [{"accel": "kvm", "cpu_models": [{"name": "host", "missing": []}], "features": ["avx2"]}],
        }},
        "bridges": ["br0"], "taps_in_use": ["tap0"], "vms": [{"name": "other", "presence": "guest"}],
        "incoming": {"limit": 2, "used": 1}, "outgoing": {"limit": 2, "used": 0}, "journal": {"Ok": null},
        "files": [{
            "path": "/srv/web1.qcow2", "readable": true, "writable": true, "file_system": "network",
            "file_system_name": "nfs", "device": 40, "inode": 1234, "wwid": null,
        }],
        "nics": [{"name": "eth0", "speed_bits_per_s": 1000000000}],
    });
    serde_json::from_value(facts).unwrap()
}

/// Returns the lines before the first message of the migration: the versions of both ends, and the facts of the
/// target's host.
fn opening() -> Vec<Line> {
    let files = GuestFiles { opened: vec!["/srv/web1.qcow2".into()], ..GuestFiles::default() };
    let question = Question::HostFacts { qemu: Some("/usr/bin/qemu-system-x86_64".into()), files };
    let answer = Answer::HostFacts(Box::new(facts()));
    // The release may be any that speaks this version.
    let release = "0.1.0".to_owned();
    let (version, lowest) = (CONTROL_VERSIONS.highest, Some(CONTROL_VERSIONS.lowest));
    let hello = ControlMessage::Hello { version, lowest, release };
    vec![
        (Role::Source, hello.clone()),
        (Role::Target, hello),
        (Role::Source, ControlMessage::ask(1, &question)),
        (Role::Target, ControlMessage::answer(1, Ok(answer))),
    ]
}

/// Returns what the target asks when its own QEMU is there, and a fact for the log.
fn composition() -> Vec<Line> {
    let answer = Answer::Composition(Box::<Composition>::default());
    let text = "the kernel killed guest db1".to_owned();
    vec![
        (Role::Target, ControlMessage::ask(1, &Question::Composition { migration: ID })),
        (Role::Source, ControlMessage::answer(1, Ok(answer))),
        (Role::Target, ControlMessage::Note { id: ID, text }),
    ]
}

/// Lets two ends of this version move a guest.
fn converse() -> Vec<Line> {
    let (mut source, mut target) = (End::new(Role::Source), End::new(Role::Target));
    let mut lines = opening();
    let mut is_asked = false;
    source.start(offer());
    loop {
        if let Some(line) = source.said.pop_front() {
            target.hear(&line);
            lines.push((Role::Source, line));
        } else if let Some(line) = target.said.pop_front() {
            source.hear(&line);
            lines.push((Role::Target, line));
        } else if !source.step() {
            if target.steps.is_empty() {
                break;
            }
            if !std::mem::replace(&mut is_asked, true) {
                lines.extend(composition());
            }
            target.step();
        }
    }
    assert_eq!((source.outcome, target.outcome), (Some(Outcome::Moved), Some(Outcome::Moved)), "{lines:#?}");
    lines
}

fn file(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recorded/control-v{version}.txt"))
}

fn written(lines: &[Line]) -> String {
    let line = |(role, line): &Line| {
        format!("{} {}", name(*role), String::from_utf8(line.line().unwrap()).expect("it is JSON"))
    };
    lines.iter().map(line).collect()
}

/// Reads a file line by line, by the code that reads the stream.
fn read(version: u32) -> (String, Vec<Line>) {
    let text = std::fs::read_to_string(file(version)).expect("each version that is spoken has its file");
    let line = |line: &str| {
        let (end, line) = line.split_once(' ').expect("an end and a line");
        let role = if end == "source" { Role::Source } else { Role::Target };
        let message = ControlMessage::read(&mut format!("{line}\n").as_bytes());
        (role, message.unwrap_or_else(|error| panic!("{line}: {error}")))
    };
    let lines = text.lines().map(line).collect();
    (text, lines)
}

#[test]
fn this_version_says_what_was_recorded_of_it() {
    let said = written(&converse());
    let file = file(CONTROL_VERSIONS.highest);
    if std::env::var_os("SKEIN_RECORD").is_some() {
        std::fs::write(&file, &said).unwrap();
    }
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    for (said, recorded) in said.lines().zip(recorded.lines()) {
        assert_eq!(said, recorded, "what agents say to each other has changed: see docs/releases.md");
    }
    assert_eq!(said.lines().count(), recorded.lines().count());
}

#[test]
fn each_line_is_read_and_written_to_the_same_bytes() {
    for version in CONTROL_VERSIONS.lowest..=CONTROL_VERSIONS.highest {
        let (text, lines) = read(version);
        assert_eq!(written(&lines), text, "version {version}");
        let mut kinds = [false; 6];
        for (_, line) in &lines {
            kinds[match line {
                ControlMessage::Hello { .. } => 0,
                ControlMessage::Handover(Message::Intent { offer, .. }) => {
                    if let Some(offer) = offer {
                        assert_eq!(Offer::from_json(offer).unwrap().to_json(), *offer);
                    }
                    1
                }
                ControlMessage::Handover(Message::Report { .. }) => 2,
                ControlMessage::Note { .. } => 3,
                ControlMessage::Ask { question, .. } => {
                    is_same::<Question>(question);
                    4
                }
                ControlMessage::Answer { answer, .. } => {
                    is_same::<Answer>(answer.as_ref().unwrap());
                    5
                }
                ControlMessage::NotUnderstood => panic!("a migration that succeeds does not come to that"),
            }] = true;
        }
        assert_eq!(kinds, [true; 6], "version {version}");
    }
}

/// Checks that what is inside of a line is read and written to the same, too.
#[track_caller]
fn is_same<T: DeserializeOwned + Serialize>(value: &Value) {
    let read: T = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), *value);
}

#[test]
fn each_end_goes_the_recorded_way_with_the_other() {
    for version in CONTROL_VERSIONS.lowest..=CONTROL_VERSIONS.highest {
        let (_, lines) = read(version);
        for role in [Role::Source, Role::Target] {
            let mut end = End::new(role);
            if role == Role::Source {
                end.start(offer());
            }
            for (number, (from, line)) in lines.iter().enumerate() {
                if !matches!(line, ControlMessage::Handover(_)) {
                    continue;
                }
                if *from != role {
                    end.hear(line);
                    continue;
                }
                while end.said.is_empty() {
                    assert!(end.step(), "version {version}, line {}: {} says nothing", number + 1, name(role));
                }
                assert_eq!(end.said.pop_front().as_ref(), Some(line), "version {version}, line {}", number + 1);
            }
            while end.step() {}
            assert_eq!((end.outcome, &end.said.make_contiguous()[..]), (Some(Outcome::Moved), &[][..]), "{version}");
        }
    }
}
