//! Tests agents of two versions: what they agree on, and what becomes of words that one of them does not know. The
//! other version is a real agent whose settings say other versions, or a peer that says what the test wants it to. No
//! privileges.

mod world;

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use skein_agent::{
    Answer, AskError, CONTROL_VERSIONS, ControlMessage, ControlVersions, DialError, PeerEvent, Question,
};
use skein_dataplane::Dialer;
use skein_handover::{FailureReason, Message, MigrationId, Report};

use self::world::*;

const NEXT: ControlVersions =
    ControlVersions { lowest: CONTROL_VERSIONS.highest, highest: CONTROL_VERSIONS.highest + 1 };

/// An agent of the next version, which says what the test wants it to.
struct Newer {
    socket: UnixStream,
    lines: BufReader<UnixStream>,
    dialer: Arc<Dialer>,
}

impl Newer {
    fn new(world: &World, to: &Node) -> Newer {
        let dialer = world.session("a", to);
        let socket = open(dialer.live(), "skein:control");
        let newer = Newer { lines: BufReader::new(socket.try_clone().unwrap()), socket, dialer };
        newer.say(json!({"hello": {
            "version": NEXT.highest, "lowest": NEXT.lowest, "release": "0.9.0", "cluster": {"size": 3},
        }}));
        to.contact("a", true, PATIENCE);
        newer
    }

    fn say(&self, line: Value) {
        (&self.socket).write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> ControlMessage {
        ControlMessage::read(&mut self.lines).expect("the other end goes on to talk")
    }

    /// Returns whether the session outlives what was said.
    fn goes_on(&self, to: &Node) -> bool {
        let report = json!({"handover": {"report": {
            "id": "0000000000000001", "report": "Ready", "why": null, "detail": "", "said": "",
        }}});
        self.say(report);
        let (detail, last_words) = (String::new(), String::new());
        to.message("a", Message::Report { id: MigrationId(1), report: Report::Ready, why: None, detail, last_words });
        self.dialer.live().ended().is_none()
    }
}

#[test]
fn an_agent_of_the_next_version_and_this_one_talk() {
    let world = World::new();
    let a = start_as(world.dir.path(), &world.identity("a"), 0, NEXT);
    let b = world.start("b");
    world.list(&[("a", a.peers.port()), ("b", b.peers.port())]);
    a.peers.reach("b");
    a.contact("b", true, PATIENCE);
    b.contact("a", true, PATIENCE);
    assert!(a.peers.send("b", &message(1, "")) && b.peers.send("a", &message(2, "")));
    b.message("a", message(1, ""));
    a.message("b", message(2, ""));
    for (from, to) in [(&a, "b"), (&b, "a")] {
        let answer = from.peers.ask(to, &question("tap"), Instant::now() + PATIENCE).unwrap();
        assert!(matches!(answer, Answer::HostFacts(_)), "{answer:?}");
    }
}

#[test]
fn versions_that_have_none_in_common_say_which_host_to_upgrade() {
    let world = World::new();
    let far = ControlVersions { lowest: NEXT.highest, highest: NEXT.highest + 1 };
    let a = start_as(world.dir.path(), &world.identity("a"), 0, far);
    let b = world.start("b");
    world.list(&[("a", a.peers.port()), ("b", b.peers.port())]);
    let is_version = |error: &AskError| match error {
        AskError::Unreachable { source, .. } => matches!(**source, DialError::Protocol(_)),
        _ => false,
    };
    for (from, to) in [(&a, "b"), (&b, "a")] {
        let end = Instant::now() + PATIENCE;
        let error = loop {
            // The other end may hang up before its greeting has left, and is asked again.
            let error = from.peers.ask(to, &question("tap"), end).unwrap_err();
            if is_version(&error) || Instant::now() > end {
                break error;
            }
        };
        let words = chain(&error);
        let is_told = words.contains("speaks version") && words.ends_with("upgrade skein on b");
        assert!(is_version(&error) && is_told, "{words}");
    }
    // A build of before 0.1.0 said one number.
    let dialer = world.session("c", &b);
    let mut socket = open(dialer.live(), "skein:control");
    socket.write_all(b"{\"hello\":{\"version\":3,\"release\":\"0.1.0\"}}\n").unwrap();
    let begin = Instant::now();
    while dialer.live().ended().is_none() {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(SECOND / 100);
    }
    assert!(!b.peers.contact("c"));
}

#[test]
fn messages_of_kinds_that_only_a_newer_version_knows_are_passed_over() {
    let world = World::new();
    let b = world.start("b");
    let newer = Newer::new(&world, &b);
    newer.say(json!({"lease": {"until": 17, "hosts": ["a", "b"]}}));
    newer.say(json!("goodbye"));
    newer.say(json!({"note": {"id": "0000000000000001", "text": "told", "level": 3}}));
    b.wait(&PeerEvent::Note("a".into(), MigrationId(1), "told".into()), PATIENCE);
    assert!(newer.goes_on(&b));
    // A peer that speaks no newer version has no excuse: the two do not understand each other.
    let dialer = world.session("c", &b);
    let mut socket = open(dialer.live(), "skein:control");
    socket.write_all(&ControlMessage::hello(CONTROL_VERSIONS).line().unwrap()).unwrap();
    socket.write_all(b"{\"lease\":{\"until\":17}}\n").unwrap();
    let words = "the agent of b does not understand c's messages: are both of one release?";
    b.wait(&PeerEvent::NotUnderstood("c".into(), words.into()), PATIENCE);
}

#[test]
fn questions_that_only_a_newer_version_knows_are_answered_with_what_to_upgrade() {
    let world = World::new();
    let b = world.start("b");
    let mut newer = Newer::new(&world, &b);
    assert!(matches!(newer.hear(), ControlMessage::Hello { .. }));
    newer.say(json!({"ask": {"number": 7, "question": {"numa-layout": {"node": 1}}}}));
    let ControlMessage::Answer { number: 7, answer: Err(reason) } = newer.hear() else { panic!() };
    assert!(reason.contains("numa-layout") && reason.ends_with("upgrade skein on b"), "{reason}");
    // A question is known though some of its fields are not.
    newer.say(json!({"ask": {"number": 8, "question": {"host-facts": {"qemu": null, "files": {}, "numa": true}}}}));
    let ControlMessage::Answer { number: 8, answer: Ok(_) } = newer.hear() else { panic!() };
    assert!(newer.goes_on(&b));
}

#[test]
fn an_answer_that_only_a_newer_version_knows_fails_that_question_alone() {
    let world = World::new();
    let b = world.start("b");
    let mut newer = Newer::new(&world, &b);
    assert!(matches!(newer.hear(), ControlMessage::Hello { .. }));
    let error = thread::scope(|scope| {
        let asked = scope.spawn(|| b.peers.ask("a", &question("tap"), Instant::now() + PATIENCE));
        let ControlMessage::Ask { number, question } = newer.hear() else { panic!() };
        assert!(matches!(serde_json::from_value(question).unwrap(), Question::HostFacts { .. }));
        newer.say(json!({"tell": {"number": number, "answer": {"Ok": {"host-facts-2": {}}}}}));
        asked.join().unwrap().unwrap_err()
    });
    let words = chain(&error);
    assert!(matches!(error, AskError::Unreadable { .. }), "{words}");
    assert!(words.contains("(skein 0.9.0)") && words.contains("upgrade skein on b"), "{words}");
    assert!(newer.goes_on(&b));
}

#[test]
fn an_offer_is_understood_in_full_or_refused() {
    let world = World::new();
    let b = world.start("b");
    let newer = Newer::new(&world, &b);
    let intent = |offer: Value| {
        json!({"handover": {"intent": {
            "id": "0000000000000001", "intent": "Prepare", "vm": "web", "priority": 1, "offer": offer, "detail": "",
            "since_ms": 12,
        }}})
    };
    newer.say(intent(offer("x").to_json()));
    b.message("a", message(1, "x"));
    let mut asks_more = offer("x").to_json();
    asks_more["mirror"] = json!({"disks": 2});
    newer.say(intent(asks_more));
    let event = b.next(PATIENCE);
    let PeerEvent::UnreadableOffer { host, id, vm, reason } = event else { panic!("{event:?}") };
    assert_eq!((host.as_str(), id, vm.as_str()), ("a", MigrationId(1), "web"));
    assert!(reason.contains("asks for mirror") && reason.ends_with("upgrade skein on b"), "{reason}");
    assert!(newer.goes_on(&b));
}

#[test]
fn a_reason_that_only_a_newer_version_knows_comes_with_its_words() {
    let world = World::new();
    let b = world.start("b");
    let newer = Newer::new(&world, &b);
    newer.say(json!({"handover": {"report": {
        "id": "0000000000000001", "report": "Refusing", "why": "moon-in-the-way", "detail": "full moon", "said": "",
    }}}));
    let (why, detail) = (Some(FailureReason::Other), "full moon".to_owned());
    let (id, report, last_words) = (MigrationId(1), Report::Refusing, String::new());
    b.message("a", Message::Report { id, report, why, detail, last_words });
    // Where the target stands must not be guessed.
    newer.say(json!({"handover": {"report": {
        "id": "0000000000000001", "report": "Tomorrow", "why": null, "detail": "", "said": "",
    }}}));
    let words = "the agent of b does not understand a's messages: are both of one release?";
    b.wait(&PeerEvent::NotUnderstood("a".into(), words.into()), PATIENCE);
}
