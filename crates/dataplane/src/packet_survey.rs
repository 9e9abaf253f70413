//! Finds for people how long packets take on a path, and how large those are that pass.
//!
//! All sizes of a round are tried at once, each on a connection of its own: a packet that is lost takes a second to be
//! told from one that is late, so trying one size after the other would take ten.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use skein_link::{Dial, Link, PACKET_BYTES_MIN, PacketProbe};

use crate::path_mtu::pass;

/// Says how many round trips are measured.
const ROUND_TRIPS: usize = 7;
/// Says after how long other sizes are tried beside the largest, beyond four round trips.
const PATIENCE: Duration = Duration::from_millis(150);
/// Holds the sizes of the first round, in bytes: what every path carries, what tunnels leave of Ethernet's packets,
/// Ethernet's own, those with tags, and what switches and NICs are set to.
const SIZES: [u32; 8] = [PACKET_BYTES_MIN, 1400, 1500, 1600, 2048, 4096, 6000, 8000];
/// Says how many sizes between what passes and what is lost the second round tries.
const STEPS: u32 = 7;
/// The size that is assumed of NICs whose MTU is not known.
const MTU_UNKNOWN: u32 = 1500;

/// What was found of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathSurvey {
    /// How long small packets took there and back, the shortest first. Empty: none came back.
    pub round_trips: Vec<Duration>,
    /// The largest packet that went there and came back, in bytes. `None`: not known.
    pub passes: Option<u32>,
    /// The smallest packet that was lost for its size, in bytes. `None`: all that the NICs send pass, or not known.
    pub lost: Option<u32>,
}

/// The sizes that were tried, by what became of them.
#[derive(Default)]
struct Tried {
    passed: BTreeSet<u32>,
    lost: BTreeSet<u32>,
}

impl Tried {
    fn bounds(&self) -> (Option<u32>, Option<u32>) {
        let passes = self.passed.last().copied();
        // A small packet may be lost by chance; what is larger has passed.
        (passes, self.lost.iter().copied().find(|lost| passes.is_none_or(|passes| *lost > passes)))
    }
}

/// Surveys the way between the ends of `dial`. `mtu` is that of the NICs; 0: not known. `found` is told at once when a
/// packet is lost for its size: what passes, and what is lost.
pub(crate) fn survey(link: &dyn Link, dial: &Dial, mtu: u32, found: &dyn Fn(u32, u32)) -> PathSurvey {
    let mut round_trips = Vec::new();
    for _ in 0..ROUND_TRIPS {
        match pass(link, dial, Some(PACKET_BYTES_MIN)) {
            Ok(PacketProbe::Whole { round_trip }) => round_trips.push(round_trip),
            _ => break,
        }
    }
    round_trips.sort();
    let Some(longest) = round_trips.last().copied() else { return PathSurvey::default() };
    let mtu = if mtu == 0 { MTU_UNKNOWN } else { mtu.max(PACKET_BYTES_MIN) };
    let mut tried = Tried::default();
    tried.passed.insert(PACKET_BYTES_MIN);
    let smaller: Vec<u32> = SIZES.into_iter().filter(|bytes| (PACKET_BYTES_MIN + 1..mtu).contains(bytes)).collect();
    try_sizes(link, dial, &[mtu], (&smaller, PATIENCE + 4 * longest), &mut tried);
    if let (Some(passes), Some(lost)) = tried.bounds() {
        found(passes, lost);
        let step = |nth| passes + (lost - passes) * nth / STEPS;
        let between: Vec<u32> = (1..STEPS).map(step).filter(|bytes| *bytes > passes && *bytes < lost).collect();
        // A cable may have been out for a moment: the largest is tried again.
        try_sizes(link, dial, &[&[mtu][..], &between].concat(), (&[], Duration::ZERO), &mut tried);
    }
    let (passes, lost) = tried.bounds();
    PathSurvey { round_trips, passes, lost }
}

/// Tries sizes at once, and others after a time if not all of the first have passed by then.
fn try_sizes(link: &dyn Link, dial: &Dial, first: &[u32], (then, after): (&[u32], Duration), tried: &mut Tried) {
    let (tell, told) = mpsc::sync_channel(first.len() + then.len());
    thread::scope(|scope| {
        let begin = |bytes: u32| {
            let tell = tell.clone();
            let work = move || {
                let _ = tell.send((bytes, pass(link, dial, Some(bytes))));
            };
            thread::Builder::new().name("packets".into()).spawn_scoped(scope, work).is_ok()
        };
        let mut open = first.iter().filter(|bytes| begin(**bytes)).count();
        let mut then = Some(then).filter(|then| !then.is_empty());
        while open > 0 {
            let next = match then {
                Some(_) => told.recv_timeout(after).ok(),
                // Each has a deadline.
                None => told.recv().ok(),
            };
            let is_good = matches!(next, Some((_, Ok(PacketProbe::Whole { .. }))));
            if let Some((bytes, result)) = next {
                open -= 1;
                match result {
                    Ok(PacketProbe::Whole { .. }) => drop(tried.passed.insert(bytes)),
                    Ok(PacketProbe::Lost) => drop(tried.lost.insert(bytes)),
                    Ok(PacketProbe::Unanswered) | Err(_) => {}
                }
            }
            if !is_good && let Some(then) = then.take() {
                open += then.iter().filter(|bytes| begin(**bytes)).count();
            }
        }
    });
}
