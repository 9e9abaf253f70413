//! Judges a controller with a thousand hosts. This is pure.

use skein_lab_fleet::{FleetSeen, Latencies, Window};
use skein_units::measured;

use crate::figure::{
    Limit::{AtLeast, AtMost},
    Measured, part,
};
use crate::results::Part;

/// The most CPU that the controller may use in usual life, in cores.
const CORES: f64 = 1.0;
/// The most memory that it may have in RAM, in bytes.
const RAM_BYTES: f64 = 1e9;
/// The most that a read may take, and an event, in milliseconds, at the 99th percentile.
const READ_MS: f64 = 50.0;
const EVENT_MS: f64 = 200.0;
/// The most time until a controller that was killed shows what agents know, in seconds.
const CONSISTENT_S: f64 = 10.0;

/// Returns the figure's parts. `None`: nothing was measured.
pub fn judge(seen: Option<&FleetSeen>) -> Vec<Part> {
    let of = |measure: fn(&FleetSeen) -> Measured| seen.map_or_else(|| Err("nothing was measured".into()), measure);
    vec![
        part(format!("the controller uses at most {CORES:.0} core in usual life"), AtMost(CORES), of(cores)),
        part(format!("and has at most {} in RAM, ever", measured::bytes(RAM_BYTES)), AtMost(RAM_BYTES), of(ram)),
        part(
            format!("reads take at most {READ_MS:.0} ms (p99, the quietest window)"),
            AtMost(READ_MS),
            of(|seen| quietest(seen, |window| window.reads)),
        ),
        part(
            format!("events are at most {EVENT_MS:.0} ms old (p99, the quietest window)"),
            AtMost(EVENT_MS),
            of(|seen| quietest(seen, |window| window.events)),
        ),
        part("no subscriber lacks an event".into(), AtMost(0.0), of(missed)),
        part(
            format!("after kill -9 amid drains the controller shows what agents know within {CONSISTENT_S:.0} s"),
            AtMost(CONSISTENT_S),
            of(consistent),
        ),
        part("and no operation is forgotten: all come to their end".into(), AtLeast(1.0), of(ended)),
        part("drained hosts are empty".into(), AtLeast(1.0), of(drained)),
        part("no guest runs twice, and all are shown where they are at the end".into(), AtMost(0.0), of(odd)),
    ]
}

fn windows(seen: &FleetSeen) -> Result<&[Window], String> {
    if seen.windows.is_empty() { Err("there was no window".into()) } else { Ok(&seen.windows) }
}

/// The most of all windows: CPU time does not depend on what else the machine does.
fn cores(seen: &FleetSeen) -> Measured {
    let all = windows(seen)?;
    let most = all.iter().map(|window| window.cores).fold(0.0, f64::max);
    let reports = all.iter().map(|window| window.reports_per_s).fold(f64::INFINITY, f64::min);
    let (hosts, guests) = (seen.hosts, seen.guests);
    Ok((
        most,
        format!("{most:.2} cores ({hosts} hosts, {guests} guests, {reports:.0} reports/s; loads: {})", seen.loads),
    ))
}

fn ram(seen: &FleetSeen) -> Measured {
    let bytes = seen.ram_max_bytes as f64;
    Ok((bytes, measured::bytes(bytes)))
}

fn quietest(seen: &FleetSeen, of: fn(&Window) -> Latencies) -> Measured {
    let all = windows(seen)?;
    if all.iter().any(|window| of(window).count == 0) {
        return Err("none came in a window".into());
    }
    let p99 = |window: &Window| of(window).p99_ms;
    let least = all.iter().map(p99).fold(f64::INFINITY, f64::min);
    let each: Vec<String> = all
        .iter()
        .map(|window| format!("{} at a load average of {:.1}", measured::millis(p99(window)), window.load_average))
        .collect();
    Ok((least, format!("{} ({})", measured::millis(least), each.join(", "))))
}

fn missed(seen: &FleetSeen) -> Measured {
    let missed: u64 = windows(seen)?.iter().map(|window| window.events_missed).sum();
    Ok((missed as f64, format!("{missed} lacking")))
}

fn consistent(seen: &FleetSeen) -> Measured {
    let recovery = seen.recovery.as_ref().ok_or("it was not killed")?;
    Ok(match recovery.consistent_s {
        Some(took_s) => (took_s, measured::seconds(took_s)),
        None => (f64::INFINITY, format!("never: {}", recovery.last_odd)),
    })
}

fn ended(seen: &FleetSeen) -> Measured {
    let recovery = seen.recovery.as_ref().ok_or("it was not killed")?;
    if recovery.under_way == 0 {
        return Err("no operation was under way".into());
    }
    let share = recovery.ended as f64 / recovery.under_way as f64;
    let share = if recovery.forgotten.is_empty() { share } else { 0.0 };
    let forgotten = recovery.forgotten.first().map(|first| format!("; forgotten: {first}")).unwrap_or_default();
    Ok((share, format!("{} of {}{forgotten}", recovery.ended, recovery.under_way)))
}

fn drained(seen: &FleetSeen) -> Measured {
    let (all, empty) = (seen.drains.len(), seen.drains.iter().filter(|of| of.is_empty).count());
    if all == 0 {
        return Err("no host was drained".into());
    }
    let most = |of: &dyn Fn(&skein_lab_fleet::Drained) -> f64| seen.drains.iter().map(of).fold(0.0, f64::max);
    let answered = measured::seconds(most(&|of| of.answered_s));
    let planned = measured::seconds(most(&|of| of.planned_s.unwrap_or(f64::INFINITY)));
    let optimized = seen.optimized.map(|(took_s, moves)| {
        format!("; a round of optimisation over all hosts is said after {}, {moves} moves", measured::seconds(took_s))
    });
    let words = format!("{empty} of {all}, answered within {answered}, all planned after {planned}");
    Ok((empty as f64 / all as f64, words + &optimized.unwrap_or_default()))
}

fn odd(seen: &FleetSeen) -> Measured {
    let (twice, odd) = (seen.ran_twice.len(), seen.odd_at_end.len());
    let first = seen.ran_twice.iter().chain(&seen.odd_at_end).next().map(|of| format!(": {of}")).unwrap_or_default();
    Ok(((twice + odd) as f64, format!("{twice} ran twice, {odd} are not shown so{first}")))
}

#[cfg(test)]
mod tests {
    use skein_lab_fleet::{Drained, Recovery};

    use super::*;

    fn good() -> FleetSeen {
        let latencies = Latencies { count: 9, p50_ms: 2.0, p99_ms: 40.0, max_ms: 60.0 };
        let window =
            Window { cores: 0.6, reports_per_s: 990.0, reads: latencies, events: latencies, ..Window::default() };
        let over = Drained { answered_s: 0.1, planned_s: Some(2.0), over_s: Some(30.0), is_empty: true };
        let recovery = Recovery { under_way: 4, ended: 4, consistent_s: Some(6.0), ..Recovery::default() };
        FleetSeen {
            hosts: 1000,
            guests: 20_000,
            windows: vec![window.clone(), window],
            ram_max_bytes: 200_000_000,
            drains: vec![over],
            recovery: Some(recovery),
            ..FleetSeen::default()
        }
    }

    fn missed_of(change: impl Fn(&mut FleetSeen)) -> Vec<usize> {
        let mut seen = good();
        change(&mut seen);
        let parts = judge(Some(&seen));
        (0..parts.len()).filter(|n| parts[*n].met != Some(true)).collect()
    }

    #[test]
    fn what_is_missed_is_told() {
        assert_eq!(missed_of(|_| ()), [0; 0]);
        assert_eq!(missed_of(|seen| seen.windows[1].cores = 1.1), [0], "the worst window counts");
        assert_eq!(missed_of(|seen| seen.ram_max_bytes = 2_000_000_000), [1]);
        assert_eq!(missed_of(|seen| seen.windows[1].reads.p99_ms = 90.0), [0; 0], "the quietest window counts");
        assert_eq!(missed_of(|seen| seen.windows.iter_mut().for_each(|of| of.reads.p99_ms = 90.0)), [2]);
        assert_eq!(missed_of(|seen| seen.windows.iter_mut().for_each(|of| of.events.p99_ms = 290.0)), [3]);
        assert_eq!(missed_of(|seen| seen.windows[0].events_missed = 1), [4]);
        assert_eq!(missed_of(|seen| seen.recovery.as_mut().unwrap().consistent_s = None), [5]);
        assert_eq!(missed_of(|seen| seen.recovery.as_mut().unwrap().ended = 3), [6]);
        assert_eq!(missed_of(|seen| seen.recovery.as_mut().unwrap().forgotten.push("x".into())), [6]);
        assert_eq!(missed_of(|seen| seen.drains[0].is_empty = false), [7]);
        assert_eq!(missed_of(|seen| seen.ran_twice.push("v".into())), [8]);
        assert_eq!(missed_of(|seen| seen.odd_at_end.push("v".into())), [8]);
    }

    #[test]
    fn what_was_not_seen_is_not_judged() {
        assert!(judge(None).iter().all(|part| part.met.is_none()));
        assert!(judge(Some(&FleetSeen::default())).iter().filter(|part| part.met.is_none()).count() >= 6);
    }
}
