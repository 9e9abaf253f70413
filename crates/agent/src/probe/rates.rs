//! Tells a rate from what was counted of a transfer.

use skein_api::{MeasuredRate, UsedCpu};

use super::order::{AgentLoad, Count};

/// Says which part of a transfer counts, in per cent from its end: before that TCP and the session find the path's
/// rate.
const COUNTED_PERCENT: u64 = 60;
/// Says into how many parts that is divided, to see by how much they differ.
const PARTS: u64 = 4;

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
    Some(MeasuredRate { bits_per_s: rate(marks.first()?, last)?, spread_bits_per_s: spread })
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
