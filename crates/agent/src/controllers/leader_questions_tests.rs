//! Tests that the controller that leads is asked before a person starts or moves a VM.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{MigrationId, Refusal, Term, ToAgent, ToController};
use skein_fake_controller::{AgentConnection, COMMAND_TIME};

use super::leader_questions::{ByHand, Contact, LeaderQuestions, NotAllowed, QuestionTimes};
use super::tests::World;

fn refusal(words: &str) -> Refusal {
    Refusal { message: words.into(), cure: "move it".into() }
}

fn start(vm: &str, is_here: bool) -> ByHand {
    ByHand::Start { vm: vm.into(), is_here }
}

fn to_hostb() -> ByHand {
    ByHand::Move { vm: "web1".into(), to: "hostb".into(), migration: Some(MigrationId(7)) }
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
    let asking = thread::spawn(move || questions.ask(start("web1", true), false));
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
    first.send(&ToAgent::May { ask: number }).unwrap();
    second.send(&ToAgent::May { ask: number + 7 }).unwrap();
    // The question comes again as long as there is no answer.
    assert_eq!(asked(&mut second).0, number);
    assert!(!asking.is_finished());
    let answer = ToAgent::MayNot { ask: number, again: false, refusal: refusal("it runs on hostb") };
    second.send(&answer).unwrap();
    assert_eq!(asking.join().unwrap(), Err(NotAllowed::Refused(refusal("it runs on hostb"))));

    let questions = world.questions.clone();
    let asking = thread::spawn(move || questions.ask(start("web2", false), false));
    let (number, vm, is_here) = loop {
        let question = asked(&mut second);
        if question.1 == "web2" {
            break question;
        }
    };
    assert_eq!((vm.as_str(), is_here), ("web2", false));
    second.send(&ToAgent::May { ask: number }).unwrap();
    assert_eq!(asking.join().unwrap(), Ok(()));
}

#[test]
fn a_move_is_asked_for_with_its_target_and_its_id() {
    let world = World::new(&["ctl1"]);
    let mut leader = world.connect("ctl1", &world.fake("ctl1"));
    leader.send(&ToAgent::Leads { term: Term(1) }).unwrap();
    let questions = world.questions.clone();
    // What a controller refuses is refused, whatever a person says.
    let asking = thread::spawn(move || questions.allow(to_hostb(), true));
    let end = Instant::now() + COMMAND_TIME;
    let number = loop {
        match leader.next(COMMAND_TIME).expect("it asks") {
            ToController::AskMove { ask, vm, to, migration } => {
                assert_eq!((vm.as_str(), to.as_str(), migration), ("web1", "hostb", Some(MigrationId(7))));
                break ask;
            }
            _ => assert!(Instant::now() < end, "it does not ask"),
        }
    };
    let answer = ToAgent::MayNot { ask: number, again: false, refusal: refusal("it is on hostc") };
    leader.send(&answer).unwrap();
    assert_eq!(asking.join().unwrap(), Err(refusal("it is on hostc")));
}

#[test]
fn a_later_leader_is_asked_what_the_one_before_did_not_answer() {
    let world = World::new(&["ctl1", "ctl2"]);
    let (mut first, mut second) =
        (world.connect("ctl1", &world.fake("ctl1")), world.connect("ctl2", &world.fake("ctl2")));
    first.send(&ToAgent::Leads { term: Term(1) }).unwrap();
    let questions = world.questions.clone();
    let asking = thread::spawn(move || questions.ask(start("web1", true), false));
    let (number, ..) = asked(&mut first);
    second.send(&ToAgent::Leads { term: Term(2) }).unwrap();
    assert_eq!(asked(&mut second).0, number);
    second.send(&ToAgent::May { ask: number }).unwrap();
    assert_eq!(asking.join().unwrap(), Ok(()));
}

#[test]
fn what_may_pass_is_asked_again_and_told_if_it_does_not() {
    let world = World::new(&["ctl1"]);
    let mut leader = world.connect("ctl1", &world.fake("ctl1"));
    leader.send(&ToAgent::Leads { term: Term(1) }).unwrap();
    let questions = world.questions.clone();
    let asking = thread::spawn(move || questions.ask(start("web1", false), false));
    let (number, ..) = asked(&mut leader);
    let passes = |words: &str| ToAgent::MayNot { ask: number, again: true, refusal: refusal(words) };
    leader.send(&passes("hostb had it")).unwrap();
    assert_eq!(asked(&mut leader).0, number);
    leader.send(&passes("hostb had it a moment ago")).unwrap();
    let NotAllowed::Refused(told) = asking.join().unwrap().unwrap_err() else { panic!("it was answered") };
    assert!(told.message.starts_with("hostb had it"), "{told:?}");
}

#[test]
fn nobody_is_taken_for_a_yes_when_no_controller_answers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("controllers.toml");
    let times = QuestionTimes { answer: Duration::from_millis(20), ..QuestionTimes::default() };
    let questions = LeaderQuestions::new(&file, times);
    let contact = questions.contact();
    questions.note(&contact, lost());
    assert!(!questions.has_controllers(), "without a file there is no cluster");
    for text in ["controllers = ['ctl1']\n", "nonsense"] {
        std::fs::write(&file, text).unwrap();
        assert!(questions.has_controllers(), "{text}");
        assert_eq!(questions.ask(start("web1", true), false), Err(NotAllowed::Unanswered));
        let told = questions.allow(start("web1", true), false).unwrap_err();
        assert!(told.message.contains("runs elsewhere") && told.cure.contains("--without-controller"), "{told:?}");
        let told = questions.allow(to_hostb(), false).unwrap_err();
        assert!(told.message.ends_with("(ctl1: it cannot be dialled)"), "{told:?}");
        assert!(told.message.contains("could be started twice") && told.cure.contains("'hostb' is"), "{told:?}");
        assert_eq!(questions.allow(to_hostb(), true), Ok(()));
    }
}

/// Returns questions that wait for an answer for an hour.
fn patient(dir: &tempfile::TempDir) -> std::sync::Arc<LeaderQuestions> {
    let times = QuestionTimes { answer: Duration::from_secs(3600), ..QuestionTimes::default() };
    LeaderQuestions::new(&dir.path().join("controllers.toml"), times)
}

fn lost() -> Contact {
    Contact::Lost("ctl1: it cannot be dialled".into())
}

#[test]
fn who_goes_without_a_controller_waits_only_while_there_is_a_connection() {
    let dir = tempfile::tempdir().unwrap();
    let questions = patient(&dir);
    let (first, second) = (questions.contact(), questions.contact());
    questions.note(&first, lost());
    questions.note(&second, lost());
    assert_eq!(questions.allow(to_hostb(), true), Ok(()), "it is known that nobody can be asked");
    for stands in [Contact::Connected, Contact::Dialled] {
        questions.note(&second, stands);
        let asking = questions.clone();
        let asking = thread::spawn(move || asking.allow(start("web1", true), true));
        thread::sleep(Duration::from_millis(50));
        assert!(!asking.is_finished());
        questions.note(&second, lost());
        assert_eq!(asking.join().unwrap(), Ok(()));
    }
}

#[test]
fn what_is_only_asked_does_not_wait_for_a_controller_that_cannot_be_asked() {
    let dir = tempfile::tempdir().unwrap();
    let questions = patient(&dir);
    let contact = questions.contact();
    questions.note(&contact, lost());
    let check = || ByHand::Move { vm: "web1".into(), to: "hostb".into(), migration: None };
    let refused = questions.allow(check(), false).unwrap_err();
    assert!(
        refused.message.contains("no controller of the cluster answers whether 'web1' may be moved"),
        "{refused:?}"
    );
    assert_eq!(questions.allow(check(), true), Ok(()), "it would be moved all the same");
    assert_eq!(questions.moves_asked(), []);
}

#[test]
fn nobody_is_waited_for_while_no_controller_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let questions = patient(&dir);
    std::fs::write(dir.path().join("controllers.toml"), "nonsense").unwrap();
    assert!(questions.has_controllers(), "there may be some");
    assert_eq!(questions.allow(start("web1", true), true), Ok(()));
}

#[test]
fn a_host_that_controllers_refuse_is_told_why_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let questions = patient(&dir);
    let (first, second) = (questions.contact(), questions.contact());
    let asking = questions.clone();
    let asking = thread::spawn(move || asking.allow(start("web1", true), false));
    questions.note(&first, Contact::Refuses(refusal("'hosta' was removed from the cluster")));
    thread::sleep(Duration::from_millis(50));
    assert!(!asking.is_finished(), "another controller may take it");
    questions.note(&second, lost());
    let told = asking.join().unwrap().unwrap_err();
    assert!(told.message.contains("'hosta' was removed from the cluster"), "{told:?}");
    assert!(told.cure.starts_with("move it; or make sure") && told.cure.contains("--without-controller"), "{told:?}");
    assert_eq!(questions.allow(start("web1", true), true), Ok(()));
    // A connection that is not kept any more says nothing.
    drop(first);
    drop(second);
    let third = questions.contact();
    questions.note(&third, lost());
    assert_eq!(questions.allow(to_hostb(), true), Ok(()));
}

#[test]
fn a_link_notes_how_it_stands() {
    let world = World::new(&["ctl1"]);
    let mut refused = world.fake("ctl1").accept(world.dialled().1).unwrap();
    refused.greet(&ToAgent::Refused(refusal("'hosta' was removed from the cluster")));
    let NotAllowed::NotTaken(told) = world.questions.ask(start("web1", true), false).unwrap_err() else {
        panic!("it is refused")
    };
    assert_eq!(told, refusal("'hosta' was removed from the cluster"));
}

#[test]
fn a_move_is_told_of_until_it_is_given_up_or_seen() {
    let dir = tempfile::tempdir().unwrap();
    let questions = LeaderQuestions::new(&dir.path().join("controllers.toml"), QuestionTimes::default());
    let (one, other) = (MigrationId(7), MigrationId(8));
    let turn = questions.take_turn_to_move("web1", one).unwrap();
    assert!(questions.take_turn_to_move("web1", other).is_err());
    assert_eq!(questions.moves_asked(), [one]);
    drop(turn);
    assert_eq!(questions.moves_asked(), []);
    questions.take_turn_to_move("web1", other).unwrap().begun();
    assert_eq!(questions.moves_asked(), [other]);
    questions.note_seen(&[other]);
    assert_eq!(questions.moves_asked(), []);
    assert!(questions.take_turn("web1").is_ok());
}

#[test]
fn a_vm_is_started_moved_or_forgotten_one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let questions = LeaderQuestions::new(&dir.path().join("controllers.toml"), QuestionTimes::default());
    let turn = questions.take_turn("web1").unwrap();
    assert!(questions.take_turn("web1").is_err() && questions.take_turn("web2").is_ok());
    drop(turn);
    assert!(questions.take_turn("web1").is_ok());
}
