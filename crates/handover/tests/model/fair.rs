//! What must follow once nothing goes wrong any more.

use skein_handover::Outcome;

use crate::world::{End, Step, World, Write};

/// Rounds after which the world must be at rest. A migration that goes well takes about 10.
const ROUNDS: usize = 60;

/// Runs the world without faults: from here on both agents run and can talk, disks take what they are given, QEMUs do
/// what they are told, and every want is carried out. Waits end when nothing else is left to do.
///
/// # Errors
///
/// The reason if the world does not end as it must.
pub fn comes_to_rest(world: &World) -> Result<(), String> {
    if !world.hosts_are_on() {
        return Ok(());
    }
    let disturbed = world.was_disturbed();
    let mut world = world.clone();
    let mut said = None;
    for _ in 0..ROUNDS {
        if !round(&mut world) && !elapse(&mut world) {
            return at_rest(&world, disturbed, said);
        }
        said = world.outcome().or(said);
    }
    Err(format!("no rest after {ROUNDS} rounds: {world}"))
}

fn at_rest(world: &World, disturbed: bool, said: Option<Outcome>) -> Result<(), String> {
    if let Some(unrest) = world.unrest() {
        return Err(format!("{unrest}: {world}"));
    }
    if world.is_followed() {
        // Where the guest runs is for the next migration to say.
        return Ok(());
    }
    if world.running() != 1 && !(world.running() == 0 && (world.was_killed() || world.is_halted())) {
        return Err(format!("the guest runs at {} ends: {world}", world.running()));
    }
    let moved = world.target_runs() && said.is_none_or(|said| said == Outcome::Moved);
    if !disturbed && !moved {
        return Err(format!("nothing went wrong, and the guest was not moved: {world}"));
    }
    Ok(())
}

/// Does everything that there is to do, once. Returns whether that made a difference.
fn round(world: &mut World) -> bool {
    use End::{Source as S, Target as T};
    let before = world.clone();
    for end in [S, T] {
        world.go(Step::Restart(end));
    }
    world.go(Step::Contact(S, true));
    world.go(Step::Contact(T, !world.source_is_over()));
    look(world);
    world.go(Step::Converged);
    if world.is_held() {
        world.go(Step::Switch);
    }
    // No state machine has more records to write at once. A state machine that wants the same again and again shows as
    // unrest.
    for _ in 0..4 {
        if let Some(record) = world.source_write() {
            world.go(Step::SourceWritten(record, Write::Done));
        }
        if let Some(record) = world.target_write() {
            world.go(Step::TargetWritten(record, Write::Done));
        }
    }
    for _ in 0..2 {
        // An order may be under way since before.
        match world.source_ordered() {
            Some(order) => world.go(Step::SourceOrder(order)),
            None => {
                if let Some(order) = world.source_order() {
                    world.go(Step::SourceOrders(order));
                }
            }
        }
        match world.target_ordered() {
            Some(order) => world.go(Step::TargetOrder(order)),
            None => {
                if let Some(order) = world.target_order() {
                    world.go(Step::TargetOrders(order));
                }
            }
        }
    }
    look(world);
    if world.stream_is_whole() {
        world.go(Step::MigrationGoesOn);
        world.go(Step::Loaded);
    } else {
        world.go(Step::MigrationFails);
        world.go(Step::IncomingFails);
    }
    if let Some(intent) = world.intent() {
        world.go(Step::Intent(intent));
    }
    if let Some(report) = world.report() {
        world.go(Step::Report(report));
    }
    *world != before
}

/// Tells both agents the state of their QEMUs.
fn look(world: &mut World) {
    world.go(Step::SourceGuest);
    world.go(Step::MigrationFailed);
    world.go(Step::GuestChanged);
    let (guest, better) = world.target_guest();
    world.go(Step::TargetGuest(better.unwrap_or(guest)));
}

/// Ends the waits of both state machines.
fn elapse(world: &mut World) -> bool {
    let before = world.clone();
    if let Some(wait) = world.source_wait() {
        world.go(Step::Elapsed(End::Source, wait));
    }
    if let Some(wait) = world.target_wait() {
        world.go(Step::Elapsed(End::Target, wait));
    }
    *world != before
}
