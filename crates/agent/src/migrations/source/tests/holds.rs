//! Tests what becomes of a copy that is held.

use std::time::Duration;

use skein_fake_guest::{Abilities, Command, Fault, GuestParameters, Told};
use skein_handover::SourceOrder;
use skein_hypervisor::{Hold, MigrationStatus};

use super::world::{World, small};
use crate::migrations::offer::Offer;
use crate::migrations::test_parts::offer;

/// Returns a guest of 200 MB that writes 10 MB/s to 40 MB of that, over a link of 100 MB/s.
fn writer() -> GuestParameters {
    GuestParameters { link_bytes_per_s: 100_000_000, writes_bytes_per_s: 10_000_000, hot_bytes: 40_000_000, ..small() }
}

fn world(parameters: GuestParameters, offer: Offer) -> World {
    let world = World::to_hold(parameters, offer);
    world.agent.lock().carried_bits_per_s = 800_000_000;
    world
}

/// Returns a world whose guest is held.
fn held(parameters: GuestParameters) -> World {
    let mut world = world(parameters, offer());
    world.order(SourceOrder::Migrate);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.take_told(), ["Migrating", "converged"]);
    world
}

fn rates(world: &World) -> Vec<Option<u64>> {
    let rate = |told: &Told| if let Told::LimitRate(rate) = told { Some(*rate) } else { None };
    world.guest.told().iter().filter_map(rate).collect()
}

#[test]
fn a_held_guest_is_kept_fresh_without_filling_the_links() {
    let mut world = held(writer());
    let sent = |world: &World| world.guest.seen().1.copy.unwrap().sent_page_bytes;
    let (before, round) = (sent(&world), world.guest.seen().1.copy.unwrap().round);
    world.pass(Duration::from_secs(60));
    assert_eq!((world.status(), world.take_told().len()), (MigrationStatus::Active, 0));
    let a_second = (sent(&world) - before) / 60;
    assert!((5_000_000..=12_000_000).contains(&a_second), "{a_second} bytes a second of 10 MB/s that are written");
    let rounds = world.guest.seen().1.copy.unwrap().round - round;
    assert!((15..90).contains(&rounds), "{rounds} rounds in a minute");
    let freshness = world.agent.lock().freshness.unwrap();
    assert!(freshness.dirty_bytes < 45_000_000 && freshness.downtime_ms <= 300, "{freshness:?}");
    assert!(rates(&world).iter().all(|rate| rate.is_some_and(|rate| rate <= 25_000_000)), "{:?}", rates(&world));
}

#[test]
fn a_held_guest_switches_when_it_is_told_to_and_no_sooner() {
    let mut world = held(writer());
    assert!(!world.has_done("gave the word"));
    world.order(SourceOrder::Switch);
    assert!(world.has_done("gave the word"));
    assert_eq!((rates(&world).last(), world.agent.lock().freshness), (Some(&None), None));
    // The order is repeated until the guest is stopped.
    world.order(SourceOrder::Switch);
    world.pass(Duration::from_secs(2));
    let told = world.take_told();
    assert_eq!(told, ["Migrating", "Migrating", "PreSwitchover"]);
    let times = rates(&world).iter().filter(|rate| rate.is_none()).count();
    assert_eq!(times, 1, "once");
}

#[test]
fn a_still_guest_is_held_by_a_hypervisor_that_waits_for_a_word() {
    let mut world = held(small());
    world.pass(Duration::from_secs(600));
    assert_eq!((world.status(), world.take_told().len()), (MigrationStatus::Active, 0));
    assert_eq!(rates(&world).last(), Some(&Some(1000)));
    world.order(SourceOrder::Switch);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.take_told(), ["Migrating", "PreSwitchover"]);
}

#[test]
fn a_hypervisor_that_does_not_wait_holds_a_guest_that_writes_and_no_other() {
    let slips = Abilities { holds: false, ..Abilities::default() };
    let mut world = held(GuestParameters { abilities: slips, ..writer() });
    let begun = world.guest.told().into_iter().find_map(|told| match told {
        Told::BeginOutgoing { settings, hold, .. } => Some((settings.downtime_limit_ms, hold)),
        _ => None,
    });
    assert_eq!(begun, Some((1, Hold::Held)), "it must not be sooner than what it is told");
    world.pass(Duration::from_secs(60));
    assert_eq!((world.status(), world.take_told().len()), (MigrationStatus::Active, 0));
    world.guest.set_writes(0);
    world.pass(Duration::from_secs(10));
    let told = world.take_told();
    assert!(told[0].starts_with("detail \"QEMU 10.0.2 stops a guest of which nothing is left"), "{told:?}");
    assert_eq!(told[1], "PreSwitchover");
    world.order(SourceOrder::CancelMigration);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.take_told().last().map(String::as_str), Some("Running"));
}

#[test]
fn a_hypervisor_that_does_not_wait_switches_when_it_is_told_to() {
    let slips = Abilities { holds: false, ..Abilities::default() };
    let mut world = held(GuestParameters { abilities: slips, ..writer() });
    world.order(SourceOrder::Switch);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.take_told(), ["Migrating", "PreSwitchover"]);
    assert!(!world.has_done("gave the word"));
}

#[test]
fn a_guest_that_became_too_busy_converges_again_as_far_as_that_is_allowed() {
    let mut world = world(writer(), Offer { allow_throttle: Some(80), ..offer() });
    world.order(SourceOrder::Migrate);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.take_told(), ["Migrating", "converged"]);
    world.guest.set_writes(150_000_000);
    world.pass(Duration::from_secs(30));
    assert!(world.take_told().is_empty(), "a hold is not given up for that");
    assert_eq!(world.guest.seen().1.throttle_percent.unwrap_or(0).max(1), 1, "and costs the guest nothing");
    let before = rates(&world);
    assert!(before.iter().flatten().all(|rate| *rate <= 25_000_000), "{before:?}");
    world.order(SourceOrder::Switch);
    // 40 MB are written over and over: they fit into no downtime of 300 ms at 100 MB/s.
    world.pass(Duration::from_secs(40));
    let told = world.take_told();
    assert_eq!(told.last().map(String::as_str), Some("PreSwitchover"), "{told:?} {:?}", world.notes());
    assert!(world.notes().iter().any(|note| note.starts_with("throttles the guest's CPUs")), "{:?}", world.notes());
}

#[test]
fn a_guest_that_is_throttled_to_converge_is_not_throttled_while_it_is_held() {
    let busy = GuestParameters { writes_bytes_per_s: 150_000_000, hot_bytes: 200_000_000, ..writer() };
    let mut world = world(busy, Offer { allow_throttle: Some(90), ..offer() });
    world.order(SourceOrder::Migrate);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.take_told(), ["Migrating", "converged"]);
    assert!(world.notes().iter().any(|note| note.starts_with("throttles the guest's CPUs")), "{:?}", world.notes());
    assert_eq!(world.guest.seen().1.throttle_percent.unwrap_or(0).max(1), 1, "the throttle is off");
    assert_eq!(world.status(), MigrationStatus::Active);
}

#[test]
fn a_hypervisor_that_does_not_hear_is_told_again() {
    let mut world = held(writer());
    world.guest.fail(Command::LimitRate, Fault::Refused("not now".into()), 1);
    world.order(SourceOrder::Switch);
    assert!(!world.has_done("gave the word"));
    world.order(SourceOrder::Switch);
    assert!(world.has_done("gave the word"));
}
