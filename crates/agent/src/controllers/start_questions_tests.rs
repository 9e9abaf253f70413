//! Tests that the controller that leads is asked before a person starts a VM.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{Refusal, Term, ToAgent, ToController};
use skein_fake_controller::{AgentConnection, COMMAND_TIME};

use super::start_questions::{NotAllowed, QuestionTimes, StartQuestions};
use super::tests::World;

fn refusal(words: &str) -> Refusal {
    Refusal { message: words.into(), cure: "move it".into() }
}

/// Returns the next question: its number, and about which VM.
#[track_caller]
fn asked(agent: &mut AgentConnection<UnixStream>) -> (u64, String, bool) {
    let end = Instant::now() + COMMAND_TIME;
    loop {
        match agent.next(COMMAND_TIME) {
            Some(ToController::AskStart { ask, vm, is_here }) => return (ask, vm, is_here),
            Some(_) => assert!(Instant::now() < end, "it does not ask"),
            None => panic!("it hung up"),
        }
    }
}

#[test]
fn the_leader_alone_is_asked_after_a_report_and_its_word_counts() {
    let world = World::new(&["ctl1", "ctl2"]);
    let (mut first, mut second) =
        (world.connect("ctl1", &world.fake("ctl1")), world.connect("ctl2", &world.fake("ctl2")));
    let questions = world.questions.clone();
    assert!(questions.has_controllers());
    let start = thread::spawn(move || questions.ask("web1", true));
    second.send(&ToAgent::Leads { term: Term(4) }).unwrap();
    let mut is_reported = false;
    let number = loop {
        match second.next(COMMAND_TIME).expect("it asks") {
            ToController::Report(_) => is_reported = true,
            ToController::AskStart { ask, vm, is_here } => {
                assert_eq!((vm.as_str(), is_here), ("web1", true));
                break ask;
            }
            _ => {}
        }
    };
    assert!(is_reported, "the leader has to know what the host has");
    // A controller of before, and answers to what nobody asks, say nothing.
    first.send(&ToAgent::Leads { term: Term(3) }).unwrap();
    first.send(&ToAgent::MayStart { ask: number }).unwrap();
    second.send(&ToAgent::MayStart { ask: number + 7 }).unwrap();
    // The question comes again as long as there is no answer.
    assert_eq!(asked(&mut second).0, number);
    assert!(!start.is_finished());
    let answer = ToAgent::MayNotStart { ask: number, again: false, refusal: refusal("it runs on hostb") };
    second.send(&answer).unwrap();
    assert_eq!(start.join().unwrap(), Err(NotAllowed::Refused(refusal("it runs on hostb"))));

    let questions = world.questions.clone();
    let start = thread::spawn(move || questions.ask("web2", false));
    let (number, vm, is_here) = loop {
        let question = asked(&mut second);
        if question.1 == "web2" {
            break question;
        }
    };
    assert_eq!((vm.as_str(), is_here), ("web2", false));
    second.send(&ToAgent::MayStart { ask: number }).unwrap();
    assert_eq!(start.join().unwrap(), Ok(()));
}

#[test]
fn a_later_leader_is_asked_what_the_one_before_did_not_answer() {
    let world = World::new(&["ctl1", "ctl2"]);
    let (mut first, mut second) =
        (world.connect("ctl1", &world.fake("ctl1")), world.connect("ctl2", &world.fake("ctl2")));
    first.send(&ToAgent::Leads { term: Term(1) }).unwrap();
    let questions = world.questions.clone();
    let start = thread::spawn(move || questions.ask("web1", true));
    let (number, ..) = asked(&mut first);
    second.send(&ToAgent::Leads { term: Term(2) }).unwrap();
    assert_eq!(asked(&mut second).0, number);
    second.send(&ToAgent::MayStart { ask: number }).unwrap();
    assert_eq!(start.join().unwrap(), Ok(()));
}

#[test]
fn what_may_pass_is_asked_again_and_told_if_it_does_not() {
    let world = World::new(&["ctl1"]);
    let mut leader = world.connect("ctl1", &world.fake("ctl1"));
    leader.send(&ToAgent::Leads { term: Term(1) }).unwrap();
    let questions = world.questions.clone();
    let start = thread::spawn(move || questions.ask("web1", false));
    let (number, ..) = asked(&mut leader);
    let passes = |words: &str| ToAgent::MayNotStart { ask: number, again: true, refusal: refusal(words) };
    leader.send(&passes("hostb had it")).unwrap();
    assert_eq!(asked(&mut leader).0, number);
    leader.send(&passes("hostb had it a moment ago")).unwrap();
    let NotAllowed::Refused(told) = start.join().unwrap().unwrap_err() else { panic!("it was answered") };
    assert!(told.message.starts_with("hostb had it"), "{told:?}");
}

#[test]
fn nobody_is_taken_for_a_yes_when_no_controller_answers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("controllers.toml");
    let times = QuestionTimes { answer: Duration::from_millis(20), ..QuestionTimes::default() };
    let questions = StartQuestions::new(&file, times);
    assert!(!questions.has_controllers(), "without a file there is no cluster");
    for text in ["controllers = ['ctl1']\n", "nonsense"] {
        std::fs::write(&file, text).unwrap();
        assert!(questions.has_controllers(), "{text}");
        assert_eq!(questions.ask("web1", true), Err(NotAllowed::Unanswered));
    }
}

#[test]
fn a_vm_is_started_or_forgotten_one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let questions = StartQuestions::new(&dir.path().join("controllers.toml"), QuestionTimes::default());
    let turn = questions.take_turn("web1").unwrap();
    assert!(questions.take_turn("web1").is_none() && questions.take_turn("web2").is_some());
    drop(turn);
    assert!(questions.take_turn("web1").is_some());
}
