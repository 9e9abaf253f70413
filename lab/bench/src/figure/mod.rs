//! Judges whether a case's figure was reached. This is pure: runs and yardsticks go in, words and a verdict come out.

mod cost;
mod data;
mod faults;
mod guest;
mod part;
mod throughput;
mod time;

use data::completed;
pub use data::{Data, throughput_bps};
use part::Limit::AtLeast;
pub(crate) use part::{Limit, Measured, least, most, part};

use crate::{
    mover::Mover,
    results::{CaseResult, Part, Run, Skipped, Total},
    stats::{Summary, median},
};

/// One part of a figure. `stage` is the name of the case's stage that it looks at; "" is the only one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant's comment speaks of all its fields")]
pub enum Check {
    /// The goodput is at least this share of what iperf3 got on all links together.
    OfIperf3 { stage: &'static str, share: f64 },
    /// The goodput is at least this share of the links' nominal sum.
    OfLinks { stage: &'static str, share: f64 },
    /// The same as [`Check::OfLinks`] for each direction by itself.
    EachWay { stage: &'static str, share: f64 },
    /// The total time is at most this many times the peer's.
    TimeOf { stage: &'static str, peer: Mover, at_most: f64 },
    /// The first migration's total time is at most this many times that of the peer's first: a guest moves on as the
    /// first one left it.
    FirstTimeOf { stage: &'static str, peer: Mover, at_most: f64 },
    /// The total time is at most this many times that of the best of the peers that came to an end. If none did, it is
    /// compared with the time after which the first was called off.
    TimeOfBest { stage: &'static str, peers: &'static [Mover], at_most: f64 },
    /// The total time as a multiple of the same mover's in stage `idle` is at most this many times the least such
    /// multiple of the peers.
    MultipleOfBest { stage: &'static str, idle: &'static str, peers: &'static [Mover], at_most: f64 },
    /// Every migration takes at most this long.
    TotalAtMost { stage: &'static str, seconds: f64 },
    /// The goodput is at least this many times the peer's.
    GoodputOf { stage: &'static str, peer: Mover, at_least: f64 },
    /// The goodput is at least this many times that of the same mover in another stage.
    GoodputOfStage { stage: &'static str, other: &'static str, at_least: f64 },
    /// The CPU of the mover at both ends per GB is at most this many times the peer's.
    CpuOf { stage: &'static str, peer: Mover, at_most: f64 },
    /// The CPU of the mover at both ends per GB is at most this many times that of the same mover in another stage.
    CpuOfStage { stage: &'static str, other: &'static str, at_most: f64 },
    /// The CPU of QEMU's part in the migration and the mover together, per GB, is at most this many times the peer's.
    AllCpuOf { stage: &'static str, peer: Mover, at_most: f64 },
    /// What all links carry in both directions is at most this many times the peer's.
    WireOf { stage: &'static str, peer: Mover, at_most: f64 },
    /// What all links carry in both directions in a later round is at most this many times what they carried in the
    /// first.
    WireBack { stage: &'static str, at_most: f64 },
    /// The pages that NICs write straight into the guest's RAM are at least this share of those that are not zero.
    WrittenAtLeast { stage: &'static str, share: f64 },
    /// The CPU that a migration costs the guests at work on its host is at most this many times the peer's.
    LostOf { stage: &'static str, peer: Mover, at_most: f64 },
    /// The anonymous memory of the mover at each end grows by at most this share of the guest's RAM, over the least
    /// that it had before any migration.
    GrowthAtMost { stage: &'static str, share: f64 },
    /// The anonymous memory of the mover at the source grows by at most this share of the guest's RAM more than in
    /// another stage.
    GrowthOver { stage: &'static str, without: &'static str, share: f64 },
    /// The guest rewrites at most this share less than before the migration.
    GuestSlowedAtMost { stage: &'static str, share: f64 },
    /// The downtime that the guest sees is at most this long.
    GapAtMost { stage: &'static str, millis: f64 },
    /// The downtime that the guest sees is at most `factor` times `downtime-limit` and `slack_ms` more in this share of
    /// all runs.
    GapKept { stage: &'static str, factor: f64, slack_ms: f64, share: f64 },
    /// The downtime that the guest sees is at most the larger of `factor` times and `slack_ms` more than the best of
    /// the peers'.
    GapOf { stage: &'static str, peers: &'static [Mover], factor: f64, slack_ms: f64 },
    /// The hosts give at most this many times what the guest's RAM held before, at either end and in addition to that.
    AllocatedAtMost { stage: &'static str, factor: f64 },
    /// Memory on the pages that the guest's RAM has is read at least this many times as fast as memory on those that
    /// the peer's has when it is started: as the guest is started, and after each move.
    ReadsOf { stage: &'static str, peer: Mover, at_least: f64 },
    /// The memory of the mover at each end is at most this many bytes.
    MemoryAtMost { stage: &'static str, bytes: u64 },
    /// After a fault, the links that remain are used to less than 90 % for at most this long.
    BelowAtMost { stage: &'static str, seconds: f64 },
    /// After healing, the links concerned are used again within this time.
    UsedAgainWithin { stage: &'static str, seconds: f64 },
    /// The total time is at most this much longer than in an undisturbed stage.
    Adds { stage: &'static str, undisturbed: &'static str, seconds: f64 },
    /// The 99th percentile of the small stream's round trip beside bulk is at most this much over its idle median.
    LatencyOver { stage: &'static str, millis: f64 },
    /// The last of the guests that moved together takes at most this many times as long as the first.
    FinishWithin { stage: &'static str, factor: f64 },
    /// The bytes that the mover copies at both ends, for each of those that are moved, are at most this many times the
    /// peer's.
    CopiesOf { stage: &'static str, peer: Mover, at_most: f64 },
    /// The bytes that the target's threads copy of pages that NICs write are at most so many.
    TargetCopiesAtMost { stage: &'static str, bytes: u64 },
    /// Each of the guests that moved together takes at most this share more or less than their mean.
    FinishNearMean { stage: &'static str, share: f64 },
    /// The first byte is on the wire at most this much later than with the peer.
    FirstByteAfter { stage: &'static str, peer: Mover, seconds: f64 },
    /// The links' sum is used to this share within this time of the first byte.
    FullWithin { stage: &'static str, share: f64, seconds: f64 },
    /// The check is about this mover, and not about the case's subject.
    By { mover: Mover, check: &'static Check },
}

/// Judges a case: all its checks, and whether every run of the subject completed with the guest intact.
pub fn judge(case: &str, shows: &str, checks: &[Check], data: Data<'_>, skipped: Vec<Skipped>) -> CaseResult {
    let mut parts: Vec<Part> = checks.iter().map(|check| check.judge(data)).collect();
    let others = checks.iter().filter_map(|check| match check {
        Check::By { mover, .. } => Some(*mover),
        _ => None,
    });
    parts.push(intact(&[data.subject].into_iter().chain(others).collect::<Vec<_>>(), data.runs));
    CaseResult {
        totals: totals(data.runs),
        yardsticks: data.yardsticks.to_vec(),
        skipped,
        ..of_parts(case, shows, parts)
    }
}

/// Returns the result of a case with these parts and no migrations.
pub fn of_parts(case: &str, shows: &str, parts: Vec<Part>) -> CaseResult {
    let met = if parts.iter().any(|p| p.met == Some(false)) {
        Some(false)
    } else {
        parts.iter().all(|p| p.met == Some(true)).then_some(true)
    };
    let join = |word: fn(&Part) -> &str| parts.iter().map(word).collect::<Vec<_>>().join("; ");
    CaseResult {
        case: case.into(),
        shows: shows.into(),
        figure: join(|p| &p.figure),
        measured: join(|p| &p.measured),
        met,
        totals: Vec::new(),
        yardsticks: Vec::new(),
        skipped: Vec::new(),
        complete: true,
        notes: Vec::new(),
        parts,
    }
}

/// Returns the total times by stage and mover, in the order in which these first ran.
pub fn totals(runs: &[Run]) -> Vec<Total> {
    let mut keys: Vec<(&str, Mover)> = Vec::new();
    for run in runs {
        if !keys.contains(&(&run.stage, run.mover)) {
            keys.push((&run.stage, run.mover));
        }
    }
    keys.into_iter()
        .map(|(stage, mover)| {
            let of: Vec<&Run> = runs.iter().filter(|r| r.stage == stage && r.mover == mover).collect();
            Total {
                stage: stage.into(),
                mover,
                total_s: Summary::of(&of.iter().filter_map(|r| completed(r)?.total_s).collect::<Vec<_>>()),
                failed: of.iter().filter(|r| r.error.is_some()).count(),
                called_off: of.iter().filter(|r| r.called_off_s.is_some()).count(),
                cpu_s_per_gb: middle(&of, &Run::cpu_s_per_gb),
                wire_bytes: middle(&of, &|r| Some(r.all_wire_bytes() as f64)),
                wire_per_guest_byte: middle(&of, &Run::wire_per_guest_byte),
            }
        })
        .collect()
}

/// Returns the median over the runs that completed.
fn middle(runs: &[&Run], value: &dyn Fn(&Run) -> Option<f64>) -> Option<f64> {
    median(&runs.iter().filter_map(|r| value(completed(r)?)).collect::<Vec<_>>())
}

impl Check {
    /// Compares a measurement with its bound. Returns both in words, and whether the bound is met.
    pub fn judge(self, data: Data<'_>) -> Part {
        match self {
            Check::OfIperf3 { stage, share } => throughput::of_iperf3(data, stage, share),
            Check::OfLinks { stage, share } => throughput::of_links(data, stage, share),
            Check::EachWay { stage, share } => throughput::each_way(data, stage, share),
            Check::TimeOf { stage, peer, at_most } => time::time_of(data, stage, peer, at_most),
            Check::FirstTimeOf { stage, peer, at_most } => time::first_time_of(data, stage, peer, at_most),
            Check::TimeOfBest { stage, peers, at_most } => time::time_of_best(data, stage, peers, at_most),
            Check::MultipleOfBest { stage, idle, peers, at_most } => {
                time::multiple_of_best(data, stage, idle, peers, at_most)
            }
            Check::TotalAtMost { stage, seconds } => time::total_at_most(data, stage, seconds),
            Check::GoodputOf { stage, peer, at_least } => throughput::goodput_of(data, stage, peer, at_least),
            Check::GoodputOfStage { stage, other, at_least } => {
                throughput::goodput_of_stage(data, stage, other, at_least)
            }
            Check::CpuOf { stage, peer, at_most } => cost::cpu_of(data, stage, peer, at_most),
            Check::CpuOfStage { stage, other, at_most } => cost::cpu_of_stage(data, stage, other, at_most),
            Check::AllCpuOf { stage, peer, at_most } => cost::all_cpu_of(data, stage, peer, at_most),
            Check::WireOf { stage, peer, at_most } => cost::wire_of(data, stage, peer, at_most),
            Check::WireBack { stage, at_most } => cost::wire_back(data, stage, at_most),
            Check::WrittenAtLeast { stage, share } => cost::written_at_least(data, stage, share),
            Check::LostOf { stage, peer, at_most } => cost::lost_of(data, stage, peer, at_most),
            Check::GrowthAtMost { stage, share } => cost::growth_at_most(data, stage, share),
            Check::AllocatedAtMost { stage, factor } => cost::allocated_at_most(data, stage, factor),
            Check::GrowthOver { stage, without, share } => cost::growth_over(data, stage, without, share),
            Check::GuestSlowedAtMost { stage, share } => guest::guest_slowed_at_most(data, stage, share),
            Check::GapAtMost { stage, millis } => guest::gap_at_most(data, stage, millis),
            Check::GapKept { stage, factor, slack_ms, share } => guest::gap_kept(data, stage, factor, slack_ms, share),
            Check::GapOf { stage, peers, factor, slack_ms } => guest::gap_of(data, stage, peers, factor, slack_ms),
            Check::ReadsOf { stage, peer, at_least } => guest::reads_of(data, stage, peer, at_least),
            Check::MemoryAtMost { stage, bytes } => cost::memory_at_most(data, stage, bytes),
            Check::BelowAtMost { stage, seconds } => faults::below_at_most(data, stage, seconds),
            Check::UsedAgainWithin { stage, seconds } => faults::used_again_within(data, stage, seconds),
            Check::Adds { stage, undisturbed, seconds } => time::adds(data, stage, undisturbed, seconds),
            Check::LatencyOver { stage, millis } => faults::latency_over(data, stage, millis),
            Check::FinishWithin { stage, factor } => time::finish_within(data, stage, factor),
            Check::CopiesOf { stage, peer, at_most } => cost::copies_of(data, stage, peer, at_most),
            Check::TargetCopiesAtMost { stage, bytes } => cost::target_copies_at_most(data, stage, bytes),
            Check::FinishNearMean { stage, share } => time::finish_near_mean(data, stage, share),
            Check::FirstByteAfter { stage, peer, seconds } => time::first_byte_after(data, stage, peer, seconds),
            Check::FullWithin { stage, share, seconds } => time::full_within(data, stage, share, seconds),
            Check::By { mover, check } => {
                let part = check.judge(Data { subject: mover, ..data });
                Part { figure: format!("{}: {}", mover.label(), part.figure), ..part }
            }
        }
    }
}

/// Checks that all runs of these movers completed with the guest intact. `movers` are those that the figure is about;
/// the first is the case's subject.
fn intact(movers: &[Mover], runs: &[Run]) -> Part {
    let of: Vec<_> = runs.iter().filter(|r| movers.contains(&r.mover)).collect();
    let good = of.iter().filter(|r| r.intact()).count();
    let measured = match of.len() {
        0 => Err(format!("{} was not run", movers[0].label())),
        n => Ok((good as f64 / n as f64, format!("{good} of {n} complete and intact"))),
    };
    part("every migration completes, every guest finds its memory intact".into(), AtLeast(1.0), measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_reads::MemoryReads;
    use skein_api::{PageCounts, PageFigures};

    use crate::results::{
        ControlLatency, CpuSeconds, EndMemory, FaultSeen, GuestCheck, GuestRam, GuestsWork, MoverMemory,
        MoverPrivateMemory, NicBytes, NicSamples, PrivateMemory, Rewriting, RoundTrips, Samples, Yardstick, tests::run,
    };
    use Mover::*;

    /// Makes a run of 1 GB at `bps` with a total time of `total_s`.
    fn moved(stage: &str, mover: Mover, round: u32, bps: f64, total_s: f64) -> Run {
        Run {
            round,
            first_byte_s: Some(0.5),
            last_byte_s: Some(0.5 + 8e9 / bps),
            total_s: Some(total_s),
            link_bps: vec![Some(1_000_000_000); 2],
            ..run("case", stage, mover)
        }
    }

    fn yardstick(stage: &str, bps: &[f64]) -> Vec<Yardstick> {
        vec![Yardstick { stage: stage.into(), iperf3_bps: bps.into(), wire_bps: bps.into() }]
    }

    fn met(check: Check, runs: &[Run]) -> Option<bool> {
        check.judge(Data { subject: SkeinTls, runs, yardsticks: &[] }).met
    }

    #[test]
    fn share_of_iperf3_is_judged_by_the_median() {
        let check = Check::OfIperf3 { stage: "", share: 0.95 };
        let yardsticks = yardstick("", &[940e6, 940e6]);
        let with = |rates: [f64; 3]| {
            let runs: Vec<_> = rates.iter().zip(1..).map(|(&r, n)| moved("", SkeinTls, n, r, 5.0)).collect();
            check.judge(Data { subject: SkeinTls, runs: &runs, yardsticks: &yardsticks })
        };
        let good = with([1e9, 1.80e9, 1.81e9]);
        assert_eq!(good.met, Some(true), "{good:?}");
        assert_eq!(good.measured, "95.7 % (1.80 Gb/s of 1.88 Gb/s)");
        assert_eq!(with([1.78e9, 1.78e9, 1.81e9]).met, Some(false));
        let unmeasured = check.judge(Data { subject: SkeinTls, runs: &[], yardsticks: &yardsticks });
        assert_eq!((unmeasured.met, unmeasured.value), (None, None));
    }

    #[test]
    fn share_of_links_needs_nominal_rates() {
        let check = Check::OfLinks { stage: "", share: 0.93 };
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1.87e9, 5.0)]), Some(true));
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1.85e9, 5.0)]), Some(false));
        let unshaped = Run { link_bps: vec![None], ..moved("", SkeinTls, 1, 1.87e9, 5.0) };
        assert_eq!(met(check, &[unshaped]), None);
    }

    #[test]
    fn guests_that_move_together_are_summed() {
        // Two guests of 1 GB share the time of 1.9 Gb/s for both.
        let pair = |bps: f64, error: Option<String>| {
            let first = moved("", SkeinTls, 1, bps / 2.0, 5.0);
            vec![first.clone(), Run { guest: 1, error, ..first }]
        };
        let check = Check::OfLinks { stage: "", share: 0.93 };
        assert_eq!(met(check, &pair(1.9e9, None)), Some(true));
        assert_eq!(met(check, &pair(1.8e9, None)), Some(false));
        assert_eq!(met(check, &pair(1.9e9, Some("gone".into()))), None);
    }

    #[test]
    fn each_direction_counts_by_itself() {
        let check = Check::EachWay { stage: "", share: 0.9 };
        let back = |bps| Run { source: "b".into(), target: "a".into(), ..moved("", SkeinTls, 1, bps, 5.0) };
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1.85e9, 5.0), back(1.82e9)]), Some(true));
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1.95e9, 5.0), back(1.75e9)]), Some(false));
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1.95e9, 5.0)]), None);
    }

    #[test]
    fn the_first_migration_by_itself() {
        let first = Check::FirstTimeOf { stage: "", peer: QemuMultifd, at_most: 0.5 };
        let later = |seconds: f64| Run { round: 2, ..moved("", SkeinTls, 1, 8e9, seconds) };
        let peer = moved("", QemuMultifd, 1, 8e9, 10.0);
        assert_eq!(met(first, &[moved("", SkeinTls, 1, 8e9, 5.0), later(50.0), peer.clone()]), Some(true));
        assert_eq!(met(first, &[moved("", SkeinTls, 1, 8e9, 6.0), later(1.0), later(1.0), peer.clone()]), Some(false));
        assert_eq!(met(first, &[later(1.0), peer]), None);
    }

    #[test]
    fn against_peers() {
        let runs =
            |own: f64, peer: f64| [moved("", SkeinTls, 1, 8e9 / own, own), moved("", QemuMultifd, 1, 8e9 / peer, peer)];
        let time = Check::TimeOf { stage: "", peer: QemuMultifd, at_most: 0.55 };
        assert_eq!(met(time, &runs(5.0, 10.0)), Some(true));
        assert_eq!(met(time, &runs(6.0, 10.0)), Some(false));
        let goodput = Check::GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.6 };
        assert_eq!(met(goodput, &runs(10.0, 7.0)), Some(true));
        assert_eq!(met(goodput, &runs(10.0, 5.0)), Some(false));
        assert_eq!(met(goodput, &runs(10.0, 5.0)[..1]), None);
        assert_eq!(
            time.judge(Data { subject: SkeinTls, runs: &runs(1.0, 2.0)[..1], yardsticks: &[] }).measured,
            "QEMU multifd was not measured"
        );
    }

    #[test]
    fn a_slow_link_beside_a_fast_one() {
        let check = Check::GoodputOfStage { stage: "beside", other: "alone", at_least: 0.97 };
        let runs = |beside: f64| [moved("beside", SkeinTls, 1, beside, 9.0), moved("alone", SkeinTls, 1, 940e6, 9.0)];
        assert_eq!(met(check, &runs(930e6)), Some(true));
        assert_eq!(met(check, &runs(900e6)), Some(false));
    }

    #[test]
    fn cpu_is_the_movers_at_both_ends() {
        let check = Check::CpuOf { stage: "", peer: Ssh, at_most: 1.0 / 3.0 };
        let with = |mover, source, target| {
            let mut run = moved("", mover, 1, 1e9, 8.0);
            (run.cpu_source_s.mover, run.cpu_target_s.mover) = (source, target);
            run
        };
        assert_eq!(met(check, &[with(SkeinTls, 0.5, 0.5), with(Ssh, 2.0, 2.0)]), Some(true));
        assert_eq!(met(check, &[with(SkeinTls, 0.5, 0.9), with(Ssh, 2.0, 2.0)]), Some(false));
    }

    #[test]
    fn cpu_of_all_is_qemus_and_the_movers_at_both_ends() {
        let check = Check::AllCpuOf { stage: "", peer: QemuMultifd, at_most: 1.15 };
        let with = |mover, qemu, own| {
            let mut run = moved("", mover, 1, 1e9, 8.0);
            run.cpu_source_s = CpuSeconds { qemu, guest: 9.0, mover: own };
            run.cpu_target_s = run.cpu_source_s;
            run
        };
        assert_eq!(met(check, &[with(SkeinTls, 0.5, 0.6), with(QemuMultifd, 1.0, 0.0)]), Some(true));
        assert_eq!(met(check, &[with(SkeinTls, 0.6, 0.6), with(QemuMultifd, 1.0, 0.0)]), Some(false));
    }

    #[test]
    fn wire_bytes_are_those_of_all_links_both_ways() {
        let check = Check::WireOf { stage: "", peer: MptcpMultifdZstd, at_most: 0.92 };
        let with = |mover, bytes: [u64; 2]| {
            let nic = |(host, tx_bytes): (&str, u64)| NicBytes {
                host: host.into(),
                nic: "nic0".into(),
                tx_bytes,
                rx_bytes: 7,
            };
            Run { wire_bytes: ["a", "b"].into_iter().zip(bytes).map(nic).collect(), ..moved("", mover, 1, 1e9, 8.0) }
        };
        assert_eq!(met(check, &[with(SkeinTls, [90, 2]), with(MptcpMultifdZstd, [99, 1])]), Some(true));
        assert_eq!(met(check, &[with(SkeinTls, [90, 3]), with(MptcpMultifdZstd, [99, 1])]), Some(false));
    }

    #[test]
    fn a_trip_back_is_held_against_the_first() {
        let check = Check::WireBack { stage: "", at_most: 0.3 };
        let with = |round, tx_bytes| {
            let nic = NicBytes { host: "a".into(), nic: "nic0".into(), tx_bytes, rx_bytes: 7 };
            Run { wire_bytes: vec![nic], ..moved("", SkeinTls, round, 1e9, 8.0) }
        };
        assert_eq!(met(check, &[with(1, 100), with(2, 30), with(3, 29)]), Some(true));
        assert_eq!(met(check, &[with(1, 100), with(2, 30), with(3, 32)]), Some(false));
        assert_eq!(met(check, &[with(1, 100)]), None);
    }

    #[test]
    fn guests_at_work_lose_what_they_would_have_got() {
        let check = Check::LostOf { stage: "", peer: SkeinAgentsTcp, at_most: 1.05 };
        let with = |mover, window_s, used_s| Run {
            guests_work: Some(GuestsWork { cores: 2, cores_before: 2.0, window_s, used_s }),
            ..moved("", mover, 1, 1e9, 8.0)
        };
        // 4 s are lost either way, in less time; then more are.
        assert_eq!(met(check, &[with(SkeinTls, 4.0, 4.0), with(SkeinAgentsTcp, 8.0, 12.0)]), Some(true));
        assert_eq!(met(check, &[with(SkeinTls, 4.0, 3.7), with(SkeinAgentsTcp, 8.0, 12.0)]), Some(false));
        assert_eq!(met(check, &[with(SkeinTls, 4.0, 4.0), with(SkeinAgentsTcp, 8.0, 16.0)]), None);
        assert_eq!(met(check, &[with(SkeinTls, 4.0, 4.0), moved("", SkeinAgentsTcp, 1, 1e9, 8.0)]), None);
        // A run during which something else used the cores does not count.
        let mut disturbed = with(SkeinTls, 4.0, 3.0);
        disturbed.guests_work.as_mut().unwrap().cores_before = 1.0;
        let runs = [with(SkeinTls, 4.0, 4.0), disturbed, with(SkeinAgentsTcp, 8.0, 12.0)];
        assert_eq!((met(check, &runs), met(check, &runs[1..])), (Some(true), None));
    }

    #[test]
    fn memory_grows_from_that_of_an_idle_mover() {
        let check = Check::GrowthAtMost { stage: "", share: 0.01 };
        let with = |source: [u64; 2], target: [u64; 2]| {
            let end = |[before, most]: [u64; 2]| PrivateMemory { before_bytes: before << 20, most_bytes: most << 20 };
            Run {
                guest_memory_bytes: 1000 << 20,
                private_memory: Some(MoverPrivateMemory { source: end(source), target: end(target) }),
                ..moved("", SkeinTls, 1, 1e9, 8.0)
            }
        };
        assert_eq!(met(check, &[with([10, 20], [11, 13])]), Some(true));
        assert_eq!(met(check, &[with([10, 12], [11, 21])]), Some(false));
        // The memory that the first migration left is not what the second begins with.
        assert_eq!(met(check, &[with([10, 20], [10, 20]), with([20, 21], [20, 21])]), Some(false));
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1e9, 8.0)]), None);
    }

    #[test]
    fn memory_is_as_fast_as_its_pages() {
        let check = Check::ReadsOf { stage: "", peer: QemuMultifd, at_least: 0.98 };
        let with = |mover, started_ns, moved_ns| {
            let memory_reads = Some(MemoryReads { started_ns, moved_ns, huge_ns: 160.0, shared_ns: 200.0 });
            Run { memory_reads, ..moved("", mover, 1, 1e9, 8.0) }
        };
        let peer = with(QemuMultifd, 161.0, 200.0);
        assert_eq!(met(check, &[with(SkeinTls, 162.0, 161.0), peer.clone()]), Some(true));
        assert_eq!(met(check, &[with(SkeinTls, 161.0, 165.0), peer.clone()]), Some(false), "slower where it moved to");
        assert_eq!(met(check, &[with(SkeinTls, 165.0, 161.0), peer.clone()]), Some(false), "slower as it was started");
        // A run of another moment, when the machine was slower, is held against its own memory on huge pages.
        let mut slow = with(SkeinTls, 320.0, 322.0);
        slow.memory_reads.as_mut().unwrap().huge_ns = 320.0;
        assert_eq!(met(check, &[slow, peer.clone()]), Some(true));
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1e9, 8.0), peer]), None);
        assert_eq!(met(check, &[with(SkeinTls, 160.0, 160.0)]), None);
    }

    #[test]
    fn memory_that_hosts_give_for_a_guest() {
        let check = Check::AllocatedAtMost { stage: "", factor: 1.2 };
        let with = |source: [u64; 2], target: [u64; 2]| {
            let end = |[before, most]: [u64; 2]| PrivateMemory { before_bytes: before << 20, most_bytes: most << 20 };
            let guest_ram = Some(GuestRam { source: end(source), target: end(target) });
            Run { guest_ram, ..moved("", SkeinTls, 1, 1e9, 8.0) }
        };
        assert_eq!(met(check, &[with([100, 100], [0, 110])]), Some(true));
        assert_eq!(met(check, &[with([100, 100], [0, 130])]), Some(false), "zeros were written");
        assert_eq!(met(check, &[with([100, 800], [0, 100])]), Some(false), "holes were filled");
        assert_eq!(met(check, &[with([100, 100], [0, 110]), with([100, 230], [0, 100])]), Some(false), "the worst run");
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1e9, 8.0)]), None);
    }

    #[test]
    fn a_check_of_another_mover() {
        let of_peer = Check::GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.8 };
        let check =
            Check::By { mover: SkeinPlain, check: &Check::GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.8 } };
        let runs =
            [moved("", SkeinTls, 1, 1e9, 8.0), moved("", SkeinPlain, 1, 5e9, 8.0), moved("", QemuMultifd, 1, 6e9, 8.0)];
        assert_eq!((met(of_peer, &runs), met(check, &runs)), (Some(false), Some(true)));
        let part = check.judge(Data { subject: SkeinTls, runs: &runs, yardsticks: &[] });
        assert_eq!(part.figure, "Skein, plain data: throughput at least 0.8 x QEMU multifd");
        // The guests of that mover have to be intact, too.
        let mut corrupt = runs.clone();
        corrupt[1].guest_verdict = None;
        let judged =
            |runs: &[Run]| judge("x", "…", &[check], Data { subject: SkeinTls, runs, yardsticks: &[] }, vec![]);
        assert_eq!((judged(&runs).met, judged(&corrupt).met), (Some(true), Some(false)));
    }

    #[test]
    fn gap_is_held_against_the_best_peer() {
        let check = Check::GapOf { stage: "idle", peers: &[QemuMultifd, MptcpMultifd], factor: 1.2, slack_ms: 15.0 };
        let with = |mover, gap| Run { guest_switchover_ms: Some(gap), ..moved("idle", mover, 1, 1e9, 8.0) };
        // If the best peer has 40 ms, 55 ms are allowed by slack. If it has 100 ms, 120 ms are allowed by factor.
        let of = |own, multifd, mptcp| {
            met(check, &[with(SkeinTls, own), with(QemuMultifd, multifd), with(MptcpMultifd, mptcp)])
        };
        assert_eq!(of(54.0, 40.0, 60.0), Some(true));
        assert_eq!(of(56.0, 40.0, 60.0), Some(false));
        assert_eq!(of(119.0, 200.0, 100.0), Some(true));
        assert_eq!(of(121.0, 200.0, 100.0), Some(false));
        assert_eq!(met(check, &[with(SkeinTls, 1.0)]), None);
    }

    #[test]
    fn the_best_peer_is_the_fastest_that_ended() {
        let check = Check::TimeOfBest { stage: "", peers: &[MptcpMultifdZstd, QemuXbzrle, QemuTcp], at_most: 0.8 };
        let of = |mover, total_s| moved("", mover, 1, 1e9, total_s);
        let endless = |mover, after| Run {
            error: Some("not done".into()),
            called_off_s: Some(after),
            total_s: None,
            ..of(mover, 1.0)
        };
        let judged = |runs: &[Run]| check.judge(Data { subject: SkeinTls, runs, yardsticks: &[] });
        // A peer that did not end is not the best, even if it was given up early. A peer that was not run is not
        // missed.
        let runs = [of(SkeinTls, 4.0), of(MptcpMultifdZstd, 6.0), of(QemuXbzrle, 5.2), endless(QemuTcp, 3.0)];
        assert_eq!(judged(&runs).measured, "0.769 x (4.00 s against 5.20 s of QEMU xbzrle)");
        assert_eq!((judged(&runs).met, met(check, &runs[..2]), met(check, &runs[..1])), (Some(true), Some(true), None));
        assert_eq!(met(check, &[of(SkeinTls, 4.2), of(QemuXbzrle, 5.2)]), Some(false));
        // Some runs of the peer ended: those count.
        assert_eq!(met(check, &[of(SkeinTls, 4.0), endless(QemuXbzrle, 60.0), of(QemuXbzrle, 4.5)]), Some(false));
        // No peer ended. The check is met if it would be met by an end at that moment; otherwise the answer is not
        // known.
        let against_endless = |own| judged(&[of(SkeinTls, own), endless(QemuTcp, 61.0), endless(QemuXbzrle, 60.0)]);
        assert_eq!(against_endless(48.0).met, Some(true));
        assert_eq!(
            against_endless(30.0).measured,
            "less than 0.500 x (30.0 s; QEMU xbzrle did not end in 60.0 s, nor any other)"
        );
        assert_eq!((against_endless(49.0).met, against_endless(49.0).value), (None, None));
        // The subject has to end.
        let lost = judged(&[endless(SkeinTls, 60.0), of(QemuXbzrle, 5.2)]);
        assert_eq!((lost.met, lost.measured.as_str()), (None, "Skein, TLS did not end"));
        let all = [endless(SkeinTls, 60.0), of(QemuXbzrle, 5.2)];
        let data = Data { subject: SkeinTls, runs: &all, yardsticks: &[] };
        assert_eq!(judge("hot", "…", &[check], data, vec![]).met, Some(false));
        assert_eq!(totals(&all)[0].called_off, 1);
    }

    #[test]
    fn multiples_of_each_movers_own_idle_time() {
        let check =
            Check::MultipleOfBest { stage: "torture", idle: "idle", peers: &[QemuMultifd, Mptcp], at_most: 0.6 };
        let of = |stage, mover, total_s| moved(stage, mover, 1, 1e9, total_s);
        let with = |own, peers: &[Run]| {
            let runs = [&[of("idle", SkeinTls, 5.0), of("torture", SkeinTls, own)], peers].concat();
            check.judge(Data { subject: SkeinTls, runs: &runs, yardsticks: &[] })
        };
        // Both are 2 x. Mptcp is the faster of the two, and 3 x.
        let peers = [
            ("idle", QemuMultifd, 10.0),
            ("torture", QemuMultifd, 40.0),
            ("idle", Mptcp, 6.0),
            ("torture", Mptcp, 18.0),
        ];
        let peers = peers.map(|(stage, mover, total_s)| of(stage, mover, total_s));
        assert_eq!(with(9.0, &peers).measured, "0.600 x (1.80 x against 3.00 x of QEMU over MPTCP)");
        assert_eq!((with(8.9, &peers).met, with(9.1, &peers).met), (Some(true), Some(false)));
        let endless = Run { error: Some("not done".into()), called_off_s: Some(30.0), ..peers[3].clone() };
        assert_eq!(with(9.1, &[peers[2].clone(), endless.clone()]).met, Some(true));
        assert_eq!(with(16.0, &[peers[2].clone(), endless.clone()]).met, None);
        assert_eq!(with(9.1, &[endless]).met, None);
    }

    #[test]
    fn the_longest_migration_has_to_end_in_time() {
        let check = Check::TotalAtMost { stage: "", seconds: 60.0 };
        let of = |total_s| moved("", SkeinTls, 1, 1e9, total_s);
        assert_eq!(met(check, &[of(20.0), of(60.0)]), Some(true));
        assert_eq!(met(check, &[of(20.0), of(20.0), of(61.0)]), Some(false));
        let endless = Run { error: Some("not done".into()), called_off_s: Some(120.0), total_s: None, ..of(1.0) };
        assert_eq!(met(check, &[of(20.0), endless]), Some(false));
        assert_eq!(met(check, &[]), None);
    }

    #[test]
    fn a_slowed_guest_rewrites_less() {
        let check = Check::GuestSlowedAtMost { stage: "", share: 0.5 };
        let with = |pages| {
            let rewriting = Some(Rewriting { before_pages_per_s: 1000.0, window_s: 10.0, pages });
            Run { rewriting, ..moved("", SkeinTls, 1, 1e9, 8.0) }
        };
        assert_eq!(met(check, &[with(5001.0)]), Some(true));
        assert_eq!(met(check, &[with(4999.0)]), Some(false));
        assert_eq!(met(check, &[with(11_000.0)]), Some(true));
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1e9, 8.0)]), None);
    }

    #[test]
    fn downtime_is_held_against_its_limit() {
        let at_most = Check::GapAtMost { stage: "", millis: 60.0 };
        let kept = Check::GapKept { stage: "", factor: 1.3, slack_ms: 15.0, share: 0.9 };
        let with =
            |gap| Run { downtime_limit_ms: 50, guest_switchover_ms: Some(gap), ..moved("", SkeinTls, 1, 1e9, 8.0) };
        assert_eq!((met(at_most, &[with(60.0)]), met(at_most, &[with(61.0)])), (Some(true), Some(false)));
        // 80 ms are allowed, and more once in ten times.
        let mut runs = vec![with(80.0); 9];
        runs.push(with(500.0));
        assert_eq!(met(kept, &runs), Some(true));
        runs[0] = with(80.1);
        assert_eq!(met(kept, &runs), Some(false));
        runs[0] = Run { error: Some("no".into()), ..with(10.0) };
        let part = kept.judge(Data { subject: SkeinTls, runs: &runs, yardsticks: &[] });
        assert_eq!((part.met, part.measured.as_str()), (Some(false), "8 of 10 runs, the longest 500 ms"));
        assert_eq!((met(at_most, &[]), met(kept, &[])), (None, None));
    }

    #[test]
    fn memory_of_the_source_over_that_of_another_stage() {
        let check = Check::GrowthOver { stage: "deltas", without: "none", share: 0.05 };
        let with = |stage, source: [u64; 2], target: [u64; 2]| {
            let end = |[before, most]: [u64; 2]| PrivateMemory { before_bytes: before << 20, most_bytes: most << 20 };
            Run {
                guest_memory_bytes: 1000 << 20,
                private_memory: Some(MoverPrivateMemory { source: end(source), target: end(target) }),
                ..moved(stage, SkeinTls, 1, 1e9, 8.0)
            }
        };
        // It is 10 MiB without. Of the target only what it had before counts.
        let none = with("none", [10, 20], [11, 90]);
        assert_eq!(met(check, &[with("deltas", [12, 70], [10, 300]), none.clone()]), Some(true));
        assert_eq!(met(check, &[with("deltas", [12, 71], [10, 12]), none.clone()]), Some(false));
        assert_eq!(met(check, &[none]), None);
    }

    #[test]
    fn memory_of_the_worse_end() {
        let check = Check::MemoryAtMost { stage: "", bytes: 200_000_000 };
        let with = |source: u64, target: u64| {
            let end =
                |bytes| EndMemory { anonymous_bytes: bytes / 2, locked_bytes: 0, socket_bytes: bytes - bytes / 2 };
            Run {
                memory: Some(MoverMemory { source: end(source), target: end(target) }),
                ..moved("", SkeinTls, 1, 1e9, 8.0)
            }
        };
        assert_eq!(met(check, &[with(199_000_000, 1)]), Some(true));
        assert_eq!(met(check, &[with(1, 1), with(3, 201_000_000)]), Some(false));
        assert_eq!(met(check, &[moved("", SkeinTls, 1, 1e9, 8.0)]), None);
    }

    #[test]
    fn faults() {
        let below = Check::BelowAtMost { stage: "", seconds: 1.0 };
        let again = Check::UsedAgainWithin { stage: "", seconds: 2.0 };
        let with = |below_90_s, used_again_s, went_on_s| Run {
            faults: vec![FaultSeen {
                kind: "carrier".into(),
                links: vec![1],
                at_s: 2.0,
                healed_s: Some(5.0),
                below_90_s,
                used_again_s,
                went_on_s,
            }],
            ..moved("", SkeinTls, 1, 1e9, 8.0)
        };
        assert_eq!(met(below, &[with(Some(0.4), Some(1.0), Some(4.0))]), Some(true));
        assert_eq!(met(below, &[with(Some(1.4), Some(1.0), Some(4.0))]), Some(false));
        assert_eq!(met(again, &[with(Some(0.4), Some(1.0), Some(4.0))]), Some(true));
        assert_eq!(met(again, &[with(Some(0.4), Some(2.5), Some(4.0))]), Some(false));
        // A link that is not used again is a miss, not missing data. A transfer that ended too early is missing data.
        let never = again.judge(Data { subject: SkeinTls, runs: &[with(Some(0.4), None, Some(4.0))], yardsticks: &[] });
        assert_eq!((never.met, never.value), (Some(false), None));
        assert_eq!(met(again, &[with(Some(0.4), None, Some(1.9))]), None);
        assert_eq!(met(again, &[with(Some(0.4), None, None)]), None);
    }

    #[test]
    fn darkness_adds_its_own_length() {
        let check = Check::Adds { stage: "dark", undisturbed: "light", seconds: 21.0 };
        let runs = |dark: f64| [moved("dark", SkeinTls, 1, 1e9, dark), moved("light", SkeinTls, 1, 1e9, 8.0)];
        assert_eq!(met(check, &runs(28.9)), Some(true));
        assert_eq!(met(check, &runs(29.1)), Some(false));
    }

    #[test]
    fn latency_over_idle() {
        let check = Check::LatencyOver { stage: "", millis: 10.0 };
        let with = |p99_us| {
            let round_trips = |p99_us| RoundTrips { count: 9, median_us: 500.0, p99_us, max_us: p99_us };
            let control = ControlLatency { idle: round_trips(900.0), loaded: round_trips(p99_us) };
            Run { control: Some(control), ..moved("", SkeinTls, 1, 1e9, 8.0) }
        };
        assert_eq!(met(check, &[with(10_400.0)]), Some(true));
        assert_eq!(met(check, &[with(10_600.0)]), Some(false));
    }

    #[test]
    fn finish_times_of_guests_that_moved_together() {
        let check = Check::FinishWithin { stage: "", factor: 1.1 };
        let pair = |late: f64| [moved("", SkeinTls, 1, 1e9, 10.0), moved("", SkeinTls, 1, 1e9, late)];
        assert_eq!(met(check, &pair(10.9)), Some(true));
        assert_eq!(met(check, &pair(11.2)), Some(false));
        assert_eq!(met(check, &pair(11.2)[..1]), None);
    }

    #[test]
    fn bytes_that_are_copied() {
        let with = |mover, counts: PageCounts| {
            let pages = PageFigures { counts, ..PageFigures::default() };
            Run { pages: Some(pages), ..moved("", mover, 1, 1e9, 5.0) }
        };
        let page = 4096;
        // Over TCP each page is copied four times.
        let tcp = PageCounts { pages: 100, stored_pages: 100, copied_bytes: 100 * page, ..PageCounts::default() };
        let rails = |written_pages, target_copied_bytes| PageCounts {
            stored_pages: 100 - written_pages,
            written_pages,
            target_copied_bytes,
            ..tcp
        };
        let copies = Check::CopiesOf { stage: "", peer: QemuMultifd, at_most: 0.5 };
        let runs = |own| [with(SkeinTls, own), with(QemuMultifd, tcp)];
        assert_eq!(met(copies, &runs(rails(80, 20 * page))), Some(true));
        assert_eq!(met(copies, &runs(rails(20, 80 * page))), Some(false));
        let target = Check::TargetCopiesAtMost { stage: "", bytes: 0 };
        assert_eq!(met(target, &runs(rails(80, 20 * page))), Some(true));
        assert_eq!(met(target, &runs(rails(80, 42 * page))), Some(false), "20 pages are written, and read back");
        assert_eq!(met(target, &runs(rails(80, 0))), None, "the target was not asked");
    }

    #[test]
    fn guests_finish_near_their_mean_or_not() {
        let check = Check::FinishNearMean { stage: "", share: 0.1 };
        let three = |last: f64| [9.5, 10.0, last].map(|total| moved("", SkeinTls, 1, 1e9, total));
        assert_eq!(met(check, &three(10.5)), Some(true));
        assert_eq!(met(check, &three(12.5)), Some(false));
        assert_eq!(met(check, &three(10.5)[..1]), None);
    }

    #[test]
    fn the_first_byte_and_the_full_rate() {
        let first = Check::FirstByteAfter { stage: "", peer: QemuMultifd, seconds: 0.05 };
        let at = |mover, first_byte_s| Run { first_byte_s: Some(first_byte_s), ..moved("", mover, 1, 1e9, 5.0) };
        assert_eq!(met(first, &[at(SkeinTls, 0.30), at(QemuMultifd, 0.28)]), Some(true));
        assert_eq!(met(first, &[at(SkeinTls, 0.40), at(QemuMultifd, 0.28)]), Some(false));
        assert_eq!(met(first, &[at(SkeinTls, 0.40)]), None);

        let full = Check::FullWithin { stage: "", share: 0.9, seconds: 0.3 };
        // Each step is 50 ms, from the first byte at 0.5 s on; two links of 1 Gb/s, of which this is one.
        let with = |slow_steps: usize| {
            let t_s: Vec<f64> = (0..60).map(|step| f64::from(step) * 0.05).collect();
            let rate = |step: usize| if step < 10 + slow_steps { 0.4e9 } else { 0.99e9 };
            let tx_bps: Vec<f64> = (0..60).map(rate).collect();
            let nic = |link| NicSamples {
                host: "a".into(),
                nic: format!("nic{link}"),
                link,
                tx_bps: tx_bps.clone(),
                rx_bps: vec![0.0; 60],
            };
            let samples = Samples { t_s, nics: vec![nic(0), nic(1)], cores: Vec::new(), uses: Vec::new() };
            Run { samples: Some(samples), source: "a".into(), ..moved("", SkeinTls, 1, 1e9, 5.0) }
        };
        assert_eq!(met(full, &[with(2)]), Some(true));
        assert_eq!(met(full, &[with(9)]), Some(false));
        assert_eq!(met(full, &[with(9), with(2), with(2)]), Some(true), "the median counts");
        assert_eq!(met(full, &[with(9), with(9), with(2)]), Some(false));
        assert_eq!(met(full, &[Run { link_bps: vec![None], ..with(2) }]), None);
    }

    #[test]
    fn a_case_is_met_only_with_every_guest_intact() {
        let checks = [Check::OfLinks { stage: "", share: 0.93 }];
        let judged = |runs: &[Run]| {
            judge("one-nic", "…", &checks, Data { subject: SkeinTls, runs, yardsticks: &[] }, vec![]).met
        };
        let good = moved("", SkeinTls, 1, 1.9e9, 5.0);
        assert_eq!(judged(std::slice::from_ref(&good)), Some(true));
        let corrupt = Run {
            guest_verdict: Some(GuestCheck { ok: false, pages: 9, bad_pages: 1, bad_blocks: 0 }),
            ..good.clone()
        };
        assert_eq!(judged(&[good.clone(), corrupt]), Some(false));
        let unverified = Run { guest_verdict: None, ..good.clone() };
        assert_eq!(judged(&[unverified]), Some(false));
        let failed = Run { error: Some("no".into()), ..good.clone() };
        assert_eq!(judged(&[good, failed]), Some(false));
        assert_eq!(judged(&[]), None);
    }

    #[test]
    fn totals_keep_order_and_count_failures() {
        let failed = Run { error: Some("no".into()), ..moved("", Ssh, 1, 1e9, 7.0) };
        let totals = totals(&[moved("", SkeinTls, 1, 1e9, 5.0), failed, moved("", SkeinTls, 2, 1e9, 6.0)]);
        assert_eq!(totals.len(), 2);
        assert_eq!(totals[0].total_s.as_ref().unwrap().values, [5.0, 6.0]);
        assert_eq!((totals[1].mover, totals[1].failed, &totals[1].total_s), (Ssh, 1, &None));
    }
}
