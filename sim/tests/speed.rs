//! How fast, how quick and how fair a session is, in virtual time: what the network gives is known exactly.

use std::time::Duration;

use skein_session::Settings;
use skein_session::limits::{ACK_DELAY, QUEUE_TIME_MAX};
use skein_sim::network::{Fault, PathSpec};
use skein_sim::pair::{Read, StreamSpec, World, Write};
use skein_sim::world::{ACCEPTOR, Config, MS, S, Time};

/// 1 Gb/s in bytes.
const GIGABIT: f64 = 125e6;

struct Setup {
    config: Config,
    streams: Vec<StreamSpec>,
}

fn setup(paths: Vec<PathSpec>, streams: Vec<StreamSpec>) -> Setup {
    let config = Config {
        seed: 1,
        settings: Settings::default(),
        epoch: Duration::from_secs(1000),
        paths,
        faults: Vec::new(),
        thread_delay: 100_000,
        new_path_ids: true,
        calm: false,
        sabotage: None,
    };
    Setup { config, streams }
}

fn run(setup: Setup, until: Time) -> World {
    let mut world = World::pair(setup.config, setup.streams);
    world.run(until, |world| world.apps.unfinished == 0);
    assert_eq!(world.failure, None);
    world
}

/// Bytes per second that applications received from `from` to `to`.
fn goodput(world: &World, from: Time, to: Time) -> f64 {
    let bucket = |time: Time| (time / (10 * MS)) as usize;
    let received = &world.apps.received[ACCEPTOR];
    let bytes: u64 = received.iter().take(bucket(to)).skip(bucket(from)).sum();
    bytes as f64 / ((to - from) as f64 / 1e9)
}

/// Goodput of a bulk stream in its second second, as a share of `of`.
fn share(paths: Vec<PathSpec>, of: f64) -> f64 {
    let total: f64 = paths.iter().map(|path| path.rate[0]).sum();
    let world = run(setup(paths, vec![StreamSpec::bulk((total * 4.0) as u64)]), 2 * S);
    goodput(&world, S, 2 * S) / of
}

#[test]
fn equal_paths_add_up() {
    for rate in [GIGABIT / 10.0, GIGABIT, GIGABIT * 2.5] {
        let share = share(vec![PathSpec::lan(rate); 2], 2.0 * rate);
        println!("two paths of {rate} B/s: {share:.4} of the sum");
        assert!(share >= 0.95, "two paths of {rate} B/s: {share} of the sum");
    }
    let share = share(vec![PathSpec::lan(GIGABIT / 5.0); 8], 8.0 * GIGABIT / 5.0);
    println!("eight paths: {share:.4} of the sum");
    assert!(share >= 0.95, "eight paths: {share} of the sum");
}

#[test]
fn long_paths_add_up() {
    // One stream's window holds 2 Gb/s for 32 ms, of which the queue takes 8 and gathering credit some.
    for (latency, least) in [(2_500_000, 0.95), (7_500_000, 0.93), (10_000_000, 0.85)] {
        let path = PathSpec { latency, socket: 8 << 20, ..PathSpec::lan(GIGABIT) };
        let share = share(vec![path; 2], 2.0 * GIGABIT);
        println!("two paths with {} ms one way: {share:.4} of the sum", latency as f64 / 1e6);
        assert!(share >= least, "two paths with {latency} ns one way: {share} of the sum");
    }
}

#[test]
fn uneven_paths_add_up() {
    let fast = PathSpec::lan(GIGABIT);
    let four = share(vec![fast, PathSpec::lan(GIGABIT / 4.0)], GIGABIT * 1.25);
    let ten = share(vec![fast, PathSpec::lan(GIGABIT / 10.0)], GIGABIT * 1.1);
    let hundred = share(vec![fast, PathSpec::lan(GIGABIT / 100.0)], GIGABIT);
    println!("4:1: {four:.4} of the sum, 10:1: {ten:.4} of the sum, 100:1: {hundred:.4} of the fast one");
    assert!(four >= 0.93 && ten >= 0.93 && hundred >= 0.97, "{four} {ten} {hundred}");
}

#[test]
fn a_path_that_appears_is_used_in_full() {
    for latency in [50_000, 5_000_000, 15_000_000] {
        let first = PathSpec { latency, socket: 8 << 20, ..PathSpec::lan(GIGABIT) };
        let second = PathSpec { up_at: S, ..first };
        let streams = vec![StreamSpec::bulk(1 << 40); 2];
        let world = run(setup(vec![first, second], streams), 4 * S);
        let share = goodput(&world, 3 * S, 4 * S) / (2.0 * GIGABIT);
        println!("a path with {} ms one way, 2 s after it appeared: {share:.4} of the sum", latency as f64 / 1e6);
        assert!(share >= 0.93, "latency {latency}: {share}");
    }
}

/// How long goodput is below 90 % of `rate`, measured in sliding windows of 50 ms, between `from` and `to`.
fn dip(world: &World, rate: f64, from: Time, to: Time) -> f64 {
    let starts = (from / (10 * MS)..to / (10 * MS)).map(|bucket| bucket * 10 * MS);
    let below = starts.filter(|start| goodput(world, *start, start + 50 * MS) < 0.9 * rate).count();
    below as f64 * 0.01
}

#[test]
fn a_black_hole_costs_less_than_a_second() {
    for (directions, what) in [([true, true], "both ways"), ([true, false], "forth"), ([false, true], "back")] {
        let mut setup = setup(vec![PathSpec::lan(GIGABIT); 2], vec![StreamSpec::bulk(1 << 40)]);
        setup.config.faults = vec![(S, Fault::Hole { path: 1, dirs: directions, lasts: 4 * S })];
        let world = run(setup, 8 * S);
        let dip = dip(&world, GIGABIT, S, 5 * S);
        // From the moment that it is healed until both are used again.
        let healed = goodput(&world, 7 * S, 8 * S) / (2.0 * GIGABIT);
        println!("black hole {what}: below 90 % of what remains for {dip:.2} s; 2 s after healing {healed:.4} of both");
        assert!(dip <= 1.0, "black hole {what}: below 90 % of what remains for {dip} s");
        assert!(healed >= 0.93, "2 s after healing {healed} of both");
    }
}

#[test]
fn a_short_black_hole_closes_nothing() {
    let mut setup = setup(vec![PathSpec::lan(GIGABIT); 2], vec![StreamSpec::bulk(1 << 40)]);
    setup.config.faults = vec![(S, Fault::Hole { path: 1, dirs: [true, true], lasts: 600 * MS })];
    let world = run(setup, 4 * S);
    let closed: u32 = world.ends.iter().map(|end| end.closes).sum();
    let healed = goodput(&world, 3 * S, 4 * S) / (2.0 * GIGABIT);
    println!("a black hole of 0.6 s: {closed} connections closed; then {healed:.4} of both");
    assert!(closed == 0 && healed >= 0.95, "{closed} {healed}");
}

#[test]
fn an_outage_is_not_taken_for_a_death() {
    // The dialling end's carrier flaps, so that it resets connections that the other end takes for healthy; the
    // other path goes dark; and before anything is dialled again, all is.
    for end in [0, 1] {
        let mut stream = StreamSpec::bulk(200_000_000);
        stream.halves[1] = stream.halves[0].clone();
        let mut setup = setup(vec![PathSpec::lan(GIGABIT); 2], vec![stream]);
        setup.config.faults = vec![
            (300 * MS, Fault::Hole { path: 1, dirs: [true, true], lasts: 20 * S }),
            (300 * MS, Fault::Carrier { path: 0, end, lasts: 20 * MS }),
            (345 * MS, Fault::Dark { lasts: 20 * S }),
        ];
        let world = run(setup, 40 * S);
        assert!(
            world.apps.unfinished == 0 && world.ends.iter().all(|end| end.ended.is_none()),
            "{}",
            world.unfinished()
        );
    }
}

#[test]
fn a_lost_carrier_costs_little() {
    let mut setup = setup(vec![PathSpec::lan(GIGABIT); 2], vec![StreamSpec::bulk(1 << 40)]);
    setup.config.faults = vec![(S, Fault::Carrier { path: 1, end: 0, lasts: 2 * S })];
    let world = run(setup, 6 * S);
    let dip = dip(&world, GIGABIT, S, 3 * S);
    let healed = goodput(&world, 5 * S, 6 * S) / (2.0 * GIGABIT);
    println!("carrier lost: below 90 % of what remains for {dip:.2} s; 2 s after healing {healed:.4} of both");
    assert!(dip <= 0.5 && healed >= 0.93, "{dip} {healed}");
}

#[test]
fn all_paths_dark_cost_their_time() {
    for dark in [2 * S, 20 * S] {
        let bytes = (2.0 * GIGABIT * 4.0) as u64;
        let mut setup = setup(vec![PathSpec::lan(GIGABIT); 2], vec![StreamSpec::bulk(bytes)]);
        setup.config.faults = vec![(S, Fault::Dark { lasts: dark })];
        let world = run(setup, 40 * S);
        let took = world.apps.ends[ACCEPTOR].apps[&0].over_at.expect("it came to its end");
        let added = took as f64 / 1e9 - 4.0;
        println!("dark for {} s: {added:.2} s longer", dark / S);
        assert!(added <= dark as f64 / 1e9 + 1.0, "dark for {} s: {added} s longer", dark / S);
    }
}

fn slowest(world: &World) -> Time {
    *world.apps.ends[0].apps[&0].round_trips.iter().max().expect("messages came back")
}

#[test]
fn a_small_stream_does_not_wait_behind_bulk() {
    for (paths, what) in [
        (vec![PathSpec::lan(GIGABIT)], "one path"),
        (vec![PathSpec::lan(GIGABIT); 2], "two paths"),
        (vec![PathSpec::lan(GIGABIT / 10.0); 2], "two slow paths"),
        (vec![PathSpec::lan(GIGABIT), PathSpec::lan(GIGABIT / 10.0)], "uneven paths"),
        (vec![PathSpec { latency: 5_000_000, socket: 8 << 20, ..PathSpec::lan(GIGABIT) }; 2], "long paths"),
    ] {
        let mut echo = StreamSpec::echo(200, 10 * MS, 100);
        echo.open_at = S;
        let idle = run(setup(paths.clone(), vec![echo.clone()]), 4 * S);
        let busy = run(setup(paths, vec![echo, StreamSpec::bulk(1 << 40), StreamSpec::bulk(1 << 40)]), 3 * S);
        let (idle, busy) = (slowest(&idle), slowest(&busy));
        println!(
            "{what}: a message and its answer take at most {} us idle, {} us under bulk",
            idle / 1000,
            busy / 1000
        );
        // Acknowledgements that were gathered make a slow path look faster by about a chunk.
        let most = idle + (QUEUE_TIME_MAX + ACK_DELAY).as_nanos() as Time + MS;
        assert!(busy <= most, "{what}: {busy} ns under bulk, {idle} ns idle");
    }
}

#[test]
fn a_small_stream_does_not_feel_the_loss_of_a_path() {
    for fault in [
        Fault::Hole { path: 0, dirs: [true, true], lasts: S },
        Fault::Hole { path: 1, dirs: [false, true], lasts: S },
        Fault::Cut { path: 0, dies_after: [0, 0], lasts: S },
        Fault::Carrier { path: 1, end: 0, lasts: S },
    ] {
        let mut echo = StreamSpec::echo(200, 10 * MS, 200);
        echo.open_at = 500 * MS;
        let mut setup = setup(vec![PathSpec::lan(GIGABIT); 2], vec![echo, StreamSpec::bulk(1 << 40)]);
        setup.config.faults = vec![(S, fault)];
        let world = run(setup, 4 * S);
        let slowest = slowest(&world);
        println!("{fault:?}: at most {} us", slowest / 1000);
        assert!(slowest <= 12 * MS, "{fault:?}: {slowest} ns");
    }
}

#[test]
fn streams_share_fairly() {
    let bytes = 20_000_000;
    let mut streams = vec![StreamSpec::bulk(bytes); 6];
    // One reader is slower to take what it gets, yet fast enough.
    streams[5].halves[0].read = Read::Late { after: 5 * MS };
    streams[3].halves[0].write = Write::Bulk { piece: 10_000 };
    let world = run(setup(vec![PathSpec::lan(GIGABIT); 2], streams), 5 * S);
    let ends: Vec<f64> = (0..6)
        .map(|stream| world.apps.ends[ACCEPTOR].apps[&stream].over_at.expect("all came to their end") as f64 / 1e9)
        .collect();
    let (first, last) = (ends.iter().copied().fold(f64::MAX, f64::min), ends.iter().copied().fold(0.0, f64::max));
    let goodput = 6.0 * bytes as f64 / last / (2.0 * GIGABIT);
    println!("six streams end between {first:.3} and {last:.3} s, {goodput:.4} of the sum");
    assert!(first >= 0.9 * last, "{ends:?}");
    assert!(goodput >= 0.93, "{goodput}");
}

#[test]
fn both_ways_at_once_lose_nothing() {
    let mut stream = StreamSpec::bulk(1 << 40);
    stream.halves[1] = stream.halves[0].clone();
    let world = run(setup(vec![PathSpec::lan(GIGABIT); 2], vec![stream]), 2 * S);
    for end in [0, 1] {
        let bytes: u64 = world.apps.received[end].iter().skip(100).take(100).sum();
        let share = bytes as f64 / (2.0 * GIGABIT);
        println!("end {end} receives {share:.4} of both");
        assert!(share >= 0.9, "end {end} receives {share} of both");
    }
}
