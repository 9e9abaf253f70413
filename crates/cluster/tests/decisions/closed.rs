//! Hosts whose agents take no guest, and say why: nothing is planned there, and it is told what to do.

use skein_api::cluster::{HostMode, MigrateRequest, MoveState, ResumeRequest, StartVmRequest};
use skein_api::{HostFacts, HostReport, Refusal, Reply, Request, VmState};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, drain, facts, preview};

const WHY: &str = "the update 7.beta has told it to boot, and it was not booted since";

/// Has a host's agent say whether it takes guests.
fn tell(bench: &mut Bench, host: &str, closed: Option<&str>) {
    let facts = HostFacts { closed: closed.map(str::to_owned), ..facts(host) };
    bench.tell(host, HostReport { sequence: 2, facts: Some(Box::new(facts)), ..HostReport::default() });
}

/// Returns hosts of which beta takes no guest.
fn bench(hosts: &[&str]) -> Bench {
    let mut bench = Bench::new(hosts);
    bench.run_vm("alpha", "web");
    tell(&mut bench, "beta", Some(WHY));
    bench
}

fn resume(host: &str, bring_home: bool) -> Ask {
    Ask::Resume { host: host.into(), request: ResumeRequest { bring_home } }
}

fn migrate(to: Option<&str>) -> Ask {
    let request = MigrateRequest { to: to.map(str::to_owned), ..MigrateRequest::default() };
    Ask::Migrate { vm: "web".into(), request, breaks: Vec::new() }
}

#[test]
fn a_host_that_takes_no_guest_says_why_and_what_to_do() {
    let mut bench = bench(&["alpha", "beta"]);
    assert_eq!(bench.host("beta").note, format!("it takes no guest: {WHY}"));
    let told = bench.controller.attention().join("\n");
    assert!(told.contains(WHY) && told.contains("skein host resume beta") && told.contains("boot beta"), "{told}");
    bench.set_vm("alpha", "off", VmState::Stopped);
    let on = |host: &str| StartVmRequest { on: Some(host.into()), ..StartVmRequest::default() };
    for ask in [
        migrate(Some("beta")),
        Ask::Wake { host: "beta".into() },
        Ask::StartVm { vm: "off".into(), request: on("beta") },
    ] {
        let refused = bench.refused(ask);
        assert!(refused.message.contains(WHY) && refused.cure.contains("skein host resume beta"), "{refused:?}");
    }
    // After a boot its agent says nothing of the kind.
    bench.disconnect("beta");
    bench.boot("beta");
    assert_eq!(bench.host("beta").note, "");
    assert!(bench.controller.attention().is_empty(), "{:?}", bench.controller.attention());
}

#[test]
fn no_plan_puts_a_guest_on_a_host_that_takes_none() {
    let mut bench = bench(&["alpha", "beta", "gamma"]);
    let begun = bench.begin(migrate(None));
    bench.obey_all();
    assert_eq!(bench.has("gamma"), ["web"], "{:?}", bench.now(&begun));
    let would = bench.shown(preview("gamma"));
    assert_eq!(would.moves[0].to.as_deref(), Some("alpha"), "{would:?}");
    tell(&mut bench, "alpha", Some("a controller is about to have it switched off or updated"));
    let would = bench.shown(preview("gamma"));
    assert_eq!((would.moves[0].state, &would.moves[0].to), (MoveState::Left, &None), "{would:?}");
}

#[test]
fn a_persons_word_opens_a_host_once_its_agent_agrees() {
    let mut bench = bench(&["alpha", "beta"]);
    let asked = bench.put(resume("beta", false));
    assert!(bench.answer(asked).is_none(), "the agent is asked first");
    let open = &bench.sent[0].request;
    assert_eq!(*open, Request::HostClose { for_s: 0, power_off: false, stays_on: true });
    let refusal = Refusal { message: "it may be going down".into(), cure: "ask again in 90 s".into() };
    bench.reply(Reply::Error(refusal));
    let Some(Answer::Refused(refused)) = bench.answer(asked) else { panic!("it is not refused") };
    assert!(refused.message.contains("may be going down: ask again in 90 s"), "{refused:?}");
    assert!(bench.host("beta").note.contains(WHY));

    let asked = bench.put(resume("beta", false));
    bench.reply(Reply::Done);
    assert_eq!(bench.answer(asked), Some(Answer::Done));
    assert_eq!((bench.host("beta").note.as_str(), bench.host("beta").mode), ("", HostMode::Active));
    bench.begin(migrate(Some("beta")));
    bench.obey_all();
    assert_eq!(bench.has("beta"), ["web"]);
}

#[test]
fn the_guests_of_a_host_come_home_once_its_agent_takes_them() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    bench.begin(drain("beta"));
    bench.obey_all();
    tell(&mut bench, "beta", Some(WHY));
    assert!(bench.controller.attention().is_empty(), "it is in maintenance: {:?}", bench.controller.attention());
    let asked = bench.put(resume("beta", true));
    assert_eq!(bench.host("beta").mode, HostMode::Maintenance);
    bench.reply(Reply::Done);
    assert!(matches!(bench.answer(asked), Some(Answer::Operation(_))));
    bench.obey_all();
    assert_eq!((bench.has("beta"), bench.has("alpha").len()), (vec!["web"], 0));
}

#[test]
fn an_agent_that_does_not_answer_leaves_its_host_as_it_is() {
    let mut bench = bench(&["alpha", "beta"]);
    let asked = bench.put(resume("beta", false));
    bench.wait_s(20);
    let Some(Answer::Refused(refused)) = bench.answer(asked) else { panic!("it is not refused") };
    assert!(refused.message.contains("did not answer"), "{refused:?}");
    assert!(bench.host("beta").note.contains(WHY));
}

#[test]
fn moves_that_wait_are_planned_anew_when_their_target_takes_no_guest() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    ["v1", "v2", "v3", "v4", "v5", "v6"].iter().for_each(|vm| bench.run_vm("alpha", vm));
    let begun = bench.begin(drain("alpha"));
    let goes_to = |bench: &Bench, host: &str| {
        let moves = bench.now(&begun).moves;
        moves.iter().filter(|of| of.state == MoveState::Waiting && of.to.as_deref() == Some(host)).count()
    };
    let waits = goes_to(&bench, "beta") + goes_to(&bench, "gamma");
    assert_eq!(waits, 4, "{:?}", bench.now(&begun));
    tell(&mut bench, "gamma", Some(WHY));
    bench.wait_s(1);
    assert_eq!((goes_to(&bench, "gamma"), goes_to(&bench, "beta")), (0, 4), "{:?}", bench.now(&begun));
}
