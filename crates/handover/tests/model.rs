//! Every way that a migration can go, tried exhaustively (`stateright`).
//!
//! **What is modelled.** The real [`SourceHandover`] and [`TargetHandover`], each in an agent that may crash at any
//! step and starts again from its disk; the two QEMUs, with what they do by themselves (a failed migration resumes the
//! guest) and what kills them; a network that delivers whatever was ever sent at any time, any number of times, in any
//! order, or never; hosts that go off and come back with their disk and without their QEMU; people who cancel, who have
//! a guest switch that is held, and who vouch for a host that is off; NICs that write the guest's RAM at the target,
//! and whose writes arrive whenever they like (`Budget::rails`). Whatever a state machine wants may be done at
//! once, late, or never; waits may end as soon as they are wanted. See `model/world/step.rs` for each step, and
//! `model/fair.rs` for what must follow once no more goes wrong.
//!
//! **What is left out, and why that is sound.** Time: a wait may be over at any moment, so any clock is covered. When a
//! message is sent: it counts as sent from the moment that a state machine wants it sent, and delivery is never
//! certain, so all later sendings are covered. What is in the guest: an image counts as stale from the moment that the
//! source runs again after the image was copied. The next migration of a guest that was kept: one step, after which
//! this migration may give no order. What a disk says is one record, the greatest: that is how a journal is read.
//! Unless the budget asks for every detail (`Budget::fine`), an order is carried out in the step in which it is given,
//! and inputs that have the same effect as others are left out (`World::steps`). In one check contact comes and goes,
//! and waits end in doubt (`Budget::doubt`): neither may make a source resume.
//!
//! **What is assumed of the agents.** While `migrate`, or the start of a QEMU, is under way, they say nothing of the
//! QEMU; what QEMU answers is not reordered; no order is given again before the answer to it was taken in.
//!
//! **What a proof may undo.** A person who vouches that a host is off is believed: the other end then runs the guest as
//! it has the guest, though the host that is off may have run the guest since. Only after a proof is that no breach of
//! a promise; two guests that run at once always are a breach.
//!
//! **What bounds it.** Faults that cost something are counted ([`Budget`]); everything else is unbounded. States are
//! told apart by 64 bits of hash: that two of 10 million collide has a chance of one in 300,000.
//!
//! `MODEL=large cargo test -p skein-handover --test model more -- --nocapture` tries more faults at once, for minutes.

#[path = "model/fair.rs"]
mod fair;
#[path = "model/world/mod.rs"]
mod world;

use stateright::{Checker, HasDiscoveries, Model, Path, Property};
use world::{Budget, Error, Step, World};

/// A check: how much may go wrong, and which error is planted.
#[derive(Clone, Debug)]
struct Handover {
    budget: Budget,
    error: Option<Error>,
}

impl Model for Handover {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.budget, self.error)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        world.after(step)
    }

    fn properties(&self) -> Vec<Property<Handover>> {
        vec![
            Property::always(ONE, |_, world: &World| world.running() <= 1),
            Property::always(NOTHING_LOST, |_, world: &World| !world.rolled_back()),
            Property::always(WORD_KEPT, |_, world: &World| world.keeps_its_word()),
            Property::always(ONE_MIND, |_, world: &World| world.is_of_one_mind()),
            Property::always(DOUBT, |_, world: &World| world.doubts_with_reason()),
            Property::always(NOT_LATE, |_, world: &World| !world.is_written_late()),
            Property::always(HELD, |_, world: &World| world.holds()),
            Property::always(RESTS, |_, world: &World| fair::comes_to_rest(world).is_ok()),
        ]
    }
}

const ONE: &str = "the guest never runs at both ends";
const NOTHING_LOST: &str = "no end runs the guest as it was before the other ran it";
const WORD_KEPT: &str =
    "the source never resumes what it called moved, the target never runs what the source called kept";
const ONE_MIND: &str = "what the source says of the outcome stays true";
const DOUBT: &str = "in doubt only with the guest paused and nothing to be done about it here";
const NOT_LATE: &str = "no NIC writes into the guest's RAM once the target has the whole guest";
const HELD: &str = "a guest that is held goes to its switchover only once somebody has said so";
const RESTS: &str = "once no more goes wrong, it comes to rest, with the guest where it belongs";

/// Checks all states within the budget. Panics with the trace of every breach of a promise.
fn check(name: &str, budget: Budget) {
    #[allow(clippy::disallowed_types)] // measures how long the check took, for people
    let start = std::time::Instant::now();
    let model = Handover { budget, error: None };
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} states, {} deep, in {:.1} s", checker.max_depth(), start.elapsed().as_secs_f64());
    let broken: Vec<String> = checker.discoveries().into_iter().map(|(promise, path)| trace(promise, path)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(states > 1000, "a model that does nothing keeps every promise");
}

/// Checks that the planted error is found, as a breach of this promise.
fn finds(error: Error, promise: &'static str) {
    finds_within(Budget { crashes: [1, 1], ..Budget::NONE }, error, promise);
}

fn finds_within(budget: Budget, error: Error, promise: &'static str) {
    let model = Handover { budget, error: Some(error) };
    let checker = model.checker().finish_when(HasDiscoveries::AnyOf([promise].into())).spawn_bfs().join();
    let path = checker.discovery(promise).unwrap_or_else(|| panic!("{error:?} is not found"));
    println!("{error:?}\n{}", trace(promise, path));
}

/// Returns a trace, one line for each step.
fn trace(promise: &str, path: Path<World, Step>) -> String {
    let mut lines = vec![format!("broken: {promise}")];
    let mut last = None;
    for (i, (world, step)) in path.into_vec().into_iter().enumerate() {
        lines.push(format!("{i:3}. {world}"));
        if let Some(step) = &step {
            lines.push(format!("     {step:?}"));
        }
        last = Some(world);
    }
    if let Some(Err(reason)) = last.as_ref().map(fair::comes_to_rest) {
        lines.push(format!("     and then, with no more faults: {reason}"));
    }
    lines.join("\n")
}

#[test]
fn without_faults() {
    check("no faults", Budget::NONE);
}

#[test]
fn agents_crash() {
    check("each agent crashes twice", Budget { crashes: [2, 2], ..Budget::NONE });
}

#[test]
fn disks_fail() {
    check("a write fails at each end", Budget { writes: [1, 1], ..Budget::NONE });
}

#[test]
fn qemus_end() {
    let budget = Budget { kills: [1, 1], failures: [1, 1], ..Budget::NONE };
    check("each QEMU is killed, and fails", budget);
}

#[test]
fn hosts_go_off() {
    check("each host goes off", Budget { offs: [1, 1], ..Budget::NONE });
}

#[test]
fn a_crash_and_an_end() {
    let budget = Budget { crashes: [1, 1], kills: [0, 1], ..Budget::NONE };
    check("each agent crashes, the target's QEMU is killed", budget);
}

/// A source in doubt stays in doubt, however contact comes and goes.
#[test]
fn contact_comes_and_goes() {
    check("contact comes and goes, waits end in doubt", Budget { doubt: true, ..Budget::NONE });
}

/// Whoever says when that a guest which is held may switch, before it is held, twice, too late, or to an agent that was
/// started again: nothing new comes of that but that the guest is moved only then.
#[test]
fn holds() {
    check("held", Budget { hold: true, ..Budget::NONE });
    check("held, each agent crashes", Budget { hold: true, crashes: [1, 1], ..Budget::NONE });
    check("held, the target's QEMU is killed", Budget { hold: true, kills: [0, 1], ..Budget::NONE });
}

/// NICs write the guest's RAM at the target, and what they began may arrive at any time: also when the agents are gone.
#[test]
fn nics_write() {
    check("NICs write", Budget { rails: true, ..Budget::NONE });
    check("NICs write, each agent crashes", Budget { rails: true, crashes: [1, 1], ..Budget::NONE });
    check("NICs write, hosts go off", Budget { rails: true, offs: [1, 1], ..Budget::NONE });
    check("NICs write, the target's QEMU is killed", Budget { rails: true, kills: [0, 1], ..Budget::NONE });
}

/// Checks that take minutes, with `MODEL=large`.
#[test]
fn more_at_once() {
    #[allow(clippy::disallowed_methods)] // the environment says what to run
    if std::env::var("MODEL").as_deref() != Ok("large") {
        return;
    }
    let none = Budget::NONE;
    check("in every detail", Budget { fine: true, ..none });
    check("crashes and failing disks", Budget { crashes: [1, 1], writes: [1, 1], ..none });
    check("crashes and kills", Budget { crashes: [1, 1], kills: [1, 1], ..none });
    check("crashes and failures", Budget { crashes: [1, 1], failures: [1, 1], ..none });
    check("held, in every detail", Budget { hold: true, fine: true, ..none });
    check("held, crashes and kills", Budget { hold: true, crashes: [1, 1], kills: [1, 1], ..none });
    check("crashes and hosts off", Budget { crashes: [1, 1], offs: [1, 1], ..none });
}

/// The check can fail: each planted error is found, and its trace can be read.
#[test]
fn planted_errors_are_found() {
    finds(Error::GrantUnwritten, ONE);
    finds(Error::SourceImpatient, ONE);
    finds(Error::CompletedIsPermission, ONE);
    finds(Error::RunUnwritten, RESTS);
    finds(Error::TargetForgets, ONE);
    finds_within(Budget { hold: true, ..Budget::NONE }, Error::SwitchUnasked, HELD);
    finds_within(Budget { rails: true, ..Budget::NONE }, Error::RailsOpen, NOT_LATE);
    finds_within(Budget { rails: true, crashes: [0, 1], ..Budget::NONE }, Error::ReceiverForgotten, NOT_LATE);
}
