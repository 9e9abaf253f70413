//! Runs `skein migrate --hold` and `skein migration switch` against an agent that does what a test says.

mod fake;

use fake::{Act, Agent, at, last, over, progress};
use skein_api::{HoldOptions, HoldView, Migration, MigrationPhase, Outcome, Request, SourcePhase};

fn held_by_hostb() -> Migration {
    let hold = HoldView {
        since: Some("2026-11-25T12:00:00.000Z".into()),
        dirty_bytes: Some(3 << 20),
        downtime_ms: Some(55),
        switches_from: None,
        called_off_at: Some("2026-11-26T12:00:00.000Z".into()),
    };
    Migration { hold: Some(hold), ..at(SourcePhase::Held, 3000) }
}

#[test]
fn a_guest_is_held_and_switches() {
    let agent = Agent::start(vec![
        vec![progress(at(SourcePhase::Precopy, 2000)), progress(held_by_hostb()), Act::Hold],
        vec![progress(held_by_hostb()), last(over(Outcome::Moved))],
        vec![last(at(SourcePhase::Precopy, 10)), Act::Hold],
        vec![last(Migration { stage: Some(MigrationPhase::Source(SourcePhase::Precopy)), ..held_by_hostb() })],
        vec![last(held_by_hostb())],
        vec![progress(at(SourcePhase::Precopy, 2000)), last(over(Outcome::CalledOff))],
    ]);
    let hold = ["migrate", "web1", "--to", "hostb", "--hold"];
    let run = agent.run(&hold).exits(0).says("web1 is held: it runs on hosta, and hostb is kept fresh");
    run.says("3 MiB to copy, would stand still for 55 ms").says("skein migration switch");
    // Who watches sees what comes of it.
    agent.run(&["migration", "watch", "web1"]).exits(0).says("held since").says("web1 runs on hostb: moved");
    let window = ["--switch-between", "22:00-23:00", "--max-hold", "8h", "--detach"];
    agent.run(&[&hold[..], &window].concat()).exits(0);
    let switch = agent.run(&["migration", "switch", "web1", "--by", "5m"]).exits(0);
    switch.says("web1 switches to hostb: it is expected to stand still for at most 55 ms");
    agent.run(&["migration", "show", "web1"]).exits(0).says("held since 2026-11-2");
    agent.run(&hold).exits(4).says("web1 stays on hosta");
    let asked = agent.asked();
    let Request::MigrateHeld { hold: first, detach: false, .. } = &asked[0] else { panic!("{:?}", asked[0]) };
    assert_eq!(first, &HoldOptions::default());
    let Request::MigrateHeld { hold: second, detach: true, .. } = &asked[2] else { panic!("{:?}", asked[2]) };
    let until = second.window.and_then(|window| Some(window.until_unix_s? - window.from_unix_s));
    assert_eq!((second.longest_s, until), (Some(28_800), Some(3600)));
    assert_eq!(asked[3], Request::MigrationSwitch { id: "web1".into(), deadline_s: Some(300) });
    let nobody = Agent::start(vec![]);
    let times = ["--switch-at", "22:00"];
    nobody.run(&[&hold[..4], &times].concat()).exits(2).complains("--hold");
    nobody.run(&[&hold[..], &["--switch-at", "10pm"]].concat()).exits(2).complains("write a time of the day");
    nobody.run(&[&hold[..], &["--switch-at", "2020-01-01T22:00"]].concat()).exits(1).complains("is over");
    nobody.run(&[&hold[..], &["--check"]].concat()).exits(2).complains("cannot be used with");
}
