//! Tells a rate from what was counted of a transfer.

use skein_api::{MeasuredRate, UsedCpu};

use super::order::{AgentLoad, Count};

/// Says which part of a transfer counts, in per cent from its end: before that TCP and the session find the path's
/// rate.
const COUNTED_PERCENT: u64 = 60;
/// Says into how many parts that is divided, to see by how much they differ.
const PARTS: u64 = 4;
/// A host's cores are taken if so many per cent of their time are in use.
const BUSY_PERCENT: u64 = 90;

/// Returns the rate of a transfer; `None`: too little was counted.
pub(super) fn measured(counts: &[Count]) -> Option<MeasuredRate> {
    let (first, last) = (counts.first()?, counts.last()?);
    let length = last.us.checked_sub(first.us).filter(|length| *length > 0)?;
    let begin = last.us - length / 100 * COUNTED_PERCENT;
    let rate = |from: &Count, to: &Count| {
        let us = to.us.checked_sub(from.us).filter(|us| *us > 0)?;
        u64::try_from(u128::from(to.bytes.checked_sub(from.bytes)?) * 8_000_000 / u128::from(us)).ok()
    };
    let at = |us: u64| counts.iter().find(|count| count.us >= us);
    let marks: Vec<&Count> = (0..=PARTS).filter_map(|part| at(begin + (last.us - begin) / PARTS * part)).collect();
    let parts: Vec<u64> = marks.windows(2).filter_map(|pair| rate(pair[0], pair[1])).collect();
    let spread = parts.iter().max()? - parts.iter().min()?;
    let bits_per_s = rate(marks.first()?, last)?;
    // Fewer parts than there should be tell less of how much they differ, and one alone tells nothing.
    let unknown = if (parts.len() as u64) < PARTS { bits_per_s / parts.len() as u64 } else { 0 };
    Some(MeasuredRate { bits_per_s, spread_bits_per_s: spread.max(unknown) })
}

/// Returns whether other programs than the agent held a host's cores, so that what was measured meanwhile says more of
/// them than of the network.
pub(super) fn others_hold_cores(load: AgentLoad) -> bool {
    let busy = load.busy_ms.saturating_mul(100) >= load.cores_ms.saturating_mul(BUSY_PERCENT);
    load.cores_ms > 0 && busy && load.agent_us / 500 < load.busy_ms
}

/// Returns whether paths can carry so much together: what waits for a path that goes down comes at once later, and
/// seems to be a rate that no path has. `alone`: what the NICs of these paths carry, each alone.
pub(super) fn is_plausible(together: u64, alone: u64) -> bool {
    together <= alone.saturating_mul(2)
}

/// Returns the CPU time that went into a transfer of so many bytes within so many microseconds.
pub(super) fn used(load: AgentLoad, bytes: u64, us: u64) -> UsedCpu {
    let share = |part: u64, of: u64| part.saturating_mul(100).checked_div(of).unwrap_or(0);
    UsedCpu {
        ms_per_gb: u64::try_from(u128::from(load.agent_us) * 1_000_000 / u128::from(bytes.max(1))).unwrap_or(u64::MAX),
        host_percent: share(load.busy_ms, load.cores_ms).min(100) as u8,
        agent_percent: u32::try_from(share(load.agent_us, us)).unwrap_or(u32::MAX),
    }
}

/// Returns how many of a million segments were sent again; `None`: too few were sent to tell.
pub(super) fn repeated_ppm(load: AgentLoad) -> Option<u64> {
    (load.segments >= 100).then(|| load.repeated.saturating_mul(1_000_000) / load.segments)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slow_beginning_does_not_count() {
        let count = |ms: u64| Count { us: ms * 1000, bytes: if ms < 100 { ms * 100 } else { (ms - 90) * 12_500 } };
        let counts: Vec<Count> = (0..=25).map(|nth| count(nth * 10)).collect();
        let rate = measured(&counts).unwrap();
        assert_eq!((rate.bits_per_s, rate.spread_bits_per_s), (100_000_000, 0));
        assert_eq!(measured(&counts[..1]), None);
        assert_eq!(measured(&[]), None);
        let halting = |ms: u64| Count { us: ms * 1000, bytes: ms.min(200) * 12_500 };
        let rate = measured(&(0..=25).map(|nth| halting(nth * 10)).collect::<Vec<_>>()).unwrap();
        assert!((60_000_000..75_000_000).contains(&rate.bits_per_s), "{rate:?}");
        assert_eq!(rate.spread_bits_per_s, 100_000_000);
    }

    #[test]
    fn too_few_counts_leave_a_rate_unsure() {
        let counts: Vec<Count> = (0..=25).map(|nth| Count { us: nth * 10_000, bytes: nth * 125_000 }).collect();
        let of = |few: &[Count]| measured(few).unwrap();
        assert!(of(&counts).is_sure() && of(&counts).spread_bits_per_s == 0);
        assert_eq!(measured(&[counts[0], counts[25]]), None, "no part of it counts");
        let one = of(&[counts[0], counts[12], counts[25]]);
        assert_eq!((one.bits_per_s, one.is_sure()), (100_000_000, false));
        let two = of(&[counts[0], counts[14], counts[18], counts[25]]);
        assert_eq!((two.bits_per_s, two.spread_bits_per_s), (100_000_000, 50_000_000));
    }

    #[test]
    fn cores_are_held_by_others_if_the_agent_uses_little_of_them() {
        let load = |busy_ms, agent_ms: u64| AgentLoad {
            agent_us: agent_ms * 1000,
            busy_ms,
            cores_ms: 1000,
            ..AgentLoad::default()
        };
        assert!(others_hold_cores(load(950, 100)));
        assert!(!others_hold_cores(load(950, 600)), "the agent does");
        assert!(!others_hold_cores(load(800, 100)), "some are free");
        assert!(!others_hold_cores(AgentLoad::default()), "the kernel does not say");
    }

    #[test]
    fn cpu_time_is_told_by_the_gigabyte() {
        let load = AgentLoad { agent_us: 50_000, busy_ms: 240, cores_ms: 500, ..AgentLoad::default() };
        assert_eq!(used(load, 100_000_000, 250_000), UsedCpu { ms_per_gb: 500, host_percent: 48, agent_percent: 20 });
        assert_eq!(used(AgentLoad::default(), 0, 0), UsedCpu::default());
        assert_eq!(repeated_ppm(AgentLoad { segments: 1000, repeated: 5, ..load }), Some(5000));
        assert_eq!(repeated_ppm(load), None);
    }

    proptest! {
        #[test]
        fn no_counts_panic(list: Vec<(u64, u64)>) {
            let counts: Vec<Count> = list.into_iter().map(|(us, bytes)| Count { us, bytes }).collect();
            let _ = measured(&counts);
        }
    }
}
