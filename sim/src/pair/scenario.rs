//! A run of one pair of sessions from a seed: how it begins, what goes wrong on the way, how it ends, and how long it
//! may take.

use std::time::Duration;

use skein_session::limits::{OUTAGE_TIME_DEFAULT, PEER_CLOSED_WAIT};
use skein_session::{Ended, Settings, Width};

use super::{HalfSpec, Read, StreamSpec, World, Write};
use crate::network::{Fault, PathSpec};
use crate::rng::Rng;
use crate::world::{ACCEPTOR, Config, DIALER, ENDS, MS, S, Time, US};

/// How a session ends once all its streams have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// One end closes it.
    Goodbye(usize),
    /// One end's process is killed.
    Killed(usize),
    /// All paths are dark for good.
    Dark,
}

/// A run, and what it must come to.
pub struct Scenario {
    pub config: Config,
    pub streams: Vec<StreamSpec>,
    /// When everything that goes wrong is over.
    healed_at: Time,
    /// When every stream must be over.
    deadline: Time,
    ending: Ending,
}

fn bytes(rng: &mut Rng, most: f64) -> u64 {
    match rng.below(10) {
        0 | 1 => 0,
        2 | 3 => rng.between(1, 100),
        4..=6 => rng.log_between(100.0, 100e3) as u64,
        _ => rng.log_between(100e3, most.max(200e3)) as u64,
    }
}

fn path(rng: &mut Rng) -> PathSpec {
    let rate = rng.log_between(1.25e6, 250e6);
    let back = if rng.percent(80) { rate } else { rng.log_between(1.25e6, 250e6) };
    let latency = rng.log_between(20e3, 20e6) as Time;
    PathSpec {
        rate: [rate, back],
        latency,
        jitter: if rng.percent(50) { latency / 2 } else { 0 },
        // No queue takes longer than 50 ms.
        queue: (rng.log_between(16e3, 1e6)).min(rate.min(back) * 0.05) as u64,
        socket: rng.log_between(32e3, 2e6) as u64,
        data_connections: rng.between(1, 4) as usize,
        up_at: if rng.percent(85) { 0 } else { rng.below(3 * S) },
    }
}

fn half(rng: &mut Rng, most: f64) -> HalfSpec {
    let mut bytes = bytes(rng, most);
    let write = match rng.below(10) {
        0..=4 => Write::Bulk { piece: rng.log_between(1.0, 1e6) as u64 },
        5..=7 => {
            let piece = rng.log_between(1.0, 50e3) as u64;
            bytes = bytes.min(piece * rng.between(1, 200));
            Write::Paced { piece, every: rng.log_between(100e3, 10e6) as Time }
        }
        8 => Write::AfterPeer,
        _ => Write::Bulk { piece: 1 << 20 },
    };
    if let Write::Bulk { piece } = write {
        // Megabytes in writes of few bytes test nothing more and take long.
        bytes = bytes.min(piece * if rng.percent(2) { 40_000 } else { 1000 });
    }
    let read = match rng.below(10) {
        0..=6 => Read::Eager,
        7 => Read::Late { after: rng.log_between(100e3, 100e6) as Time },
        _ => {
            let taken = rng.log_between(1e3, 1e6) as u64;
            bytes = bytes.min(taken * 40);
            Read::Slow { every: rng.log_between(1e6, 50e6) as Time, bytes: taken }
        }
    };
    let finish_after = if rng.percent(70) { 0 } else { rng.below(S) };
    HalfSpec { bytes, write, finish_after, read }
}

fn fault(rng: &mut Rng, paths: usize, longest: Time) -> Fault {
    let lasts = rng.log_between(5e6, longest as f64) as Time;
    let path = rng.below(paths as u64) as usize;
    let end = rng.below(2) as usize;
    match rng.below(12) {
        0 | 1 => Fault::Hole { path, dirs: [true, true], lasts },
        2 | 3 => Fault::Hole { path, dirs: [end == DIALER, end == ACCEPTOR], lasts },
        4 | 5 => {
            let mut dies = || if rng.percent(50) { 0 } else { rng.below(2 * S) };
            Fault::Cut { path, dies_after: [dies(), dies()], lasts }
        }
        6 => Fault::Carrier { path, end, lasts },
        7 => Fault::Pause { end, lasts: lasts.min(4 * S) },
        8 => Fault::Slow { path, share: *rng.pick(&[0.5, 0.1, 0.03]), lasts },
        9 => {
            let mut after = || if rng.percent(70) { 0 } else { rng.below(3 * S) };
            Fault::Kill { pick: after(), after: [after(), after()] }
        }
        10 => Fault::Announce { end, number: rng.below(200) as u8 },
        _ => Fault::Dark { lasts },
    }
}

fn stream(rng: &mut Rng, most: f64) -> StreamSpec {
    let opener = rng.below(2) as usize;
    let mut halves = [half(rng, most), half(rng, most)];
    if halves.iter().all(|half| half.write == Write::AfterPeer) {
        halves[0].write = Write::Bulk { piece: 5000 };
    }
    StreamSpec {
        opener,
        open_at: if rng.percent(50) { 0 } else { rng.below(2 * S) },
        name_bytes: if rng.percent(90) { 0 } else { rng.below(1000) as usize },
        halves,
        reset: rng.percent(15).then(|| (rng.below(2) as usize, rng.below(3 * S))),
        width: [Width::All, Width::All, Width::Path, Width::Connection][rng.below(4) as usize],
    }
}

/// Draws streams with at most about a second of traffic in all.
fn streams(rng: &mut Rng, paths: &[PathSpec]) -> Vec<StreamSpec> {
    let rate: f64 = paths.iter().map(slower_rate).sum();
    let crowd = rng.percent(4);
    let number = if crowd { rng.between(40, 80) } else { rng.between(1, 12) };
    let most = (rate / number as f64 / 2.0).min(8e6);
    (0..number).map(|_| stream(rng, most)).collect()
}

/// Draws what goes wrong, and when.
fn faults(rng: &mut Rng, paths: usize) -> Vec<(Time, Fault)> {
    let mut faults = Vec::new();
    let storm = rng.percent(10);
    for _ in 0..if storm { rng.between(10, 40) } else { rng.between(1, 6) } {
        faults.push((rng.below(4 * S), fault(rng, paths, 3 * S)));
    }
    if rng.percent(5) {
        faults.push((rng.below(2 * S), Fault::Dark { lasts: rng.between(5 * S, 30 * S) }));
    }
    if rng.percent(5) {
        faults.extend(addresses_that_change(rng));
    }
    if rng.percent(10) {
        faults.extend(flapping(rng, paths));
    }
    faults
}

/// Draws addresses that come and go with NICs.
fn addresses_that_change(rng: &mut Rng) -> Vec<(Time, Fault)> {
    let at = rng.below(2 * S);
    let announcement = |rng: &mut Rng| {
        let number = rng.below(200) as u8;
        (at + rng.below(50 * MS), Fault::Announce { end: rng.below(2) as usize, number })
    };
    (0..rng.between(2, 20)).map(|_| announcement(rng)).collect()
}

/// Draws a path that flaps.
fn flapping(rng: &mut Rng, paths: usize) -> Vec<(Time, Fault)> {
    let mut faults = Vec::new();
    let (path, mut at) = (rng.below(paths as u64) as usize, 0);
    for _ in 0..rng.between(5, 20) {
        let lasts = rng.log_between(20e6, 1e9) as Time;
        let dies_after = [rng.below(100 * MS), rng.below(100 * MS)];
        let flap = [
            Fault::Cut { path, dies_after, lasts },
            Fault::Hole { path, dirs: [true, true], lasts },
            Fault::Carrier { path, end: rng.below(2) as usize, lasts },
        ];
        faults.push((at, *rng.pick(&flap)));
        at += lasts + rng.log_between(20e6, 1e9) as Time;
    }
    faults
}

/// Returns a path's rate in the slower direction.
fn slower_rate(path: &PathSpec) -> f64 {
    path.rate[0].min(path.rate[1])
}

/// Returns when everything that goes wrong is over.
fn healed_at(faults: &[(Time, Fault)]) -> Time {
    faults.iter().map(|(at, fault)| at + fault.lasts()).max().unwrap_or(0)
}

/// Returns when every stream must be over.
fn deadline(config: &Config, streams: &[StreamSpec]) -> Time {
    let up_at = config.paths.iter().map(|path| path.up_at).max().unwrap_or(0);
    // A stream's own time is that of both halves, as one may wait for the other.
    let own_time = |spec: &StreamSpec| {
        spec.open_at + spec.halves.iter().map(own_time).sum::<Time>() + spec.reset.map_or(0, |(_, at)| at)
    };
    let own = streams.iter().map(own_time).max().unwrap_or(0);
    let slowest = config.paths.iter().map(slower_rate).fold(f64::MAX, f64::min);
    let total: u64 = streams.iter().flat_map(|spec| &spec.halves).map(|half| half.bytes).sum();
    let sending_s = total as f64 / slowest;
    // In calm, everything is sent at a good part of the rate. After faults, dead connections have to be noticed (2 s,
    // if they are told from slow ones) and dialled again (1 s).
    if config.calm {
        up_at + own + S + (sending_s * 2e9) as Time
    } else {
        healed_at(&config.faults).max(up_at) + own + 12 * S + (sending_s * 3e9) as Time
    }
}

impl Scenario {
    /// Draws a run. The draws come in one order for ever, or a seed would mean another run.
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let calm = rng.percent(20);
        let paths: Vec<PathSpec> = (0..rng.between(1, 4)).map(|_| path(&mut rng)).collect();
        let streams = streams(&mut rng, &paths);
        let faults = if calm { Vec::new() } else { faults(&mut rng, paths.len()) };
        let config = Config {
            seed,
            settings: Settings::default(),
            epoch: Duration::from_nanos(rng.log_between(1.0, 1e15) as u64),
            paths,
            faults,
            thread_delay: rng.log_between(10e3, 2e6) as Time,
            new_path_ids: rng.percent(50),
            calm,
            sabotage: None,
        };
        let ending = match rng.below(20) {
            end @ (0 | 1) => Ending::Killed(end as usize),
            2 => Ending::Dark,
            n => Ending::Goodbye(n as usize % 2),
        };
        let (healed_at, deadline) = (healed_at(&config.faults), deadline(&config, &streams));
        Scenario { config, streams, healed_at, deadline, ending }
    }

    /// Runs it to the end. The error says what was wrong.
    pub fn run(self) -> Result<World, String> {
        let Scenario { config, streams, healed_at, deadline, ending } = self;
        let calm = config.calm;
        let mut world = World::pair(config, streams);
        world.trace = crate::is_traced().then(String::new);
        world.run(deadline, |world| world.apps.unfinished == 0 || world.gave_up(healed_at));
        if world.apps.unfinished > 0 && !world.gave_up(healed_at) {
            let healed = healed_at as f64 / 1e9;
            let status = ENDS.map(|end| world.ends[end].session.status());
            let unfinished = world.unfinished();
            world.fail(format!(
                "streams wait without end (all was well from {healed} s on):\n{unfinished}\n{status:#?}"
            ));
        }
        // The last acknowledgements take a while, and so do faults after the last stream.
        let quiet = world.now.max(healed_at) + 5 * S;
        world.run(quiet, |world| world.gave_up(healed_at));
        if world.failure.is_none() && world.gave_up(healed_at) {
            world.given_up = true;
            return Ok(world);
        }
        if world.failure.is_none() {
            world.check_empty();
            for end in ENDS {
                if world.ends[end].ended.is_some() {
                    world.fail(format!("end {end} ended: {:?}", world.ends[end].ended));
                }
                if world.ends[end].peer_addresses != world.ends[1 - end].announced {
                    let (is, was) = (&world.ends[end].peer_addresses, &world.ends[1 - end].announced);
                    let why = format!("end {end} takes {is:?} for the peer's addresses, which are {was:?}");
                    world.fail(why);
                }
                if calm && world.ends[end].session.status().resent_bytes > 0 {
                    world.fail("something was sent twice though nothing was lost");
                }
                if calm && world.ends[end].closes > 0 {
                    world.fail("a connection was closed though nothing was wrong");
                }
            }
        }
        if world.failure.is_none() {
            ending.play(&mut world);
        }
        match world.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(world),
        }
    }
}

impl World {
    /// Returns whether the accepting end took the other for dead while the network was in trouble. It may: a carrier
    /// that flaps has the dialling end reset a healthy path, the last one, and before it can dial again all is dark for
    /// longer than [`PEER_CLOSED_WAIT`]. To the accepting end this looks the same as a process that was killed.
    fn gave_up(&self, healed_at: Time) -> bool {
        self.ends[ACCEPTOR].ended == Some(Ended::PeerGone)
            && self.ends[ACCEPTOR].ended_at < healed_at.saturating_add(2 * S)
    }
}

/// Returns how long a half takes on a network without limits.
fn own_time(half: &HalfSpec) -> Time {
    let writes = match half.write {
        Write::Paced { piece, every } => (half.bytes / piece + 2) * (every + 3 * MS),
        _ => 0,
    };
    let reads = match half.read {
        // Each read takes its quota or more. What fills a window waits for every read.
        Read::Slow { every, bytes } => (half.bytes / bytes + 4) * (every + 100 * US) * 2,
        // One window each time.
        Read::Late { after } => (half.bytes / (32 << 10) + 2) * after,
        Read::Eager => 0,
    };
    writes + reads + half.finish_after
}

impl Ending {
    /// Ends the session, and checks what the other end says.
    fn play(self, world: &mut World) {
        let all_ended = |world: &World| ENDS.into_iter().all(|end| world.ends[end].ended.is_some());
        let begin = world.now;
        world.config.calm = false;
        match self {
            Ending::Goodbye(end) => {
                world.say_goodbye(end);
                world.run(begin + PEER_CLOSED_WAIT.as_nanos() as Time + 2 * S, all_ended);
                // A kernel that still receives bytes for a closed connection resets it, and the goodbye may be lost.
                // Then the dialling end is refused, and the accepting end waits in vain.
                let said = Some(Ended::ClosedByPeer { code: 7, reason: "all done".into() });
                let lost = if end == DIALER { Some(Ended::PeerGone) } else { Some(Ended::Closed) };
                let why = world.ends[1 - end].ended.clone();
                if why != said && why != lost {
                    world.fail(format!("after a goodbye the other end says {why:?}"));
                }
            }
            Ending::Killed(end) => {
                world.die(end);
                let patience = PEER_CLOSED_WAIT.as_nanos() as Time + 2 * S;
                world.run(begin + patience, all_ended);
                let why = world.ends[1 - end].ended.clone();
                if why != Some(Ended::PeerGone) {
                    world.fail(format!("end {end} was killed and the other says {why:?}"));
                }
            }
            Ending::Dark => {
                for path in 0..world.paths.len() {
                    world.darken(path);
                }
                let patience = OUTAGE_TIME_DEFAULT.as_nanos() as Time + 4 * S;
                world.run(begin + patience, all_ended);
                for end in ENDS {
                    let why = world.ends[end].ended.clone();
                    if why != Some(Ended::Outage(OUTAGE_TIME_DEFAULT)) {
                        world.fail(format!("with all paths dark for good end {end} says {why:?}"));
                    }
                }
            }
        }
    }
}
