//! Measures each policy on PlanetLab's days with 100 hosts.

use skein_lab_placement::replay::{Kind, ReplayReport, Setup};

use super::super::replay::{days, play};
use super::rows::Bench;

/// The longest overload that a move could end, in minutes, and the most moves of one guest.
const LONGEST_MIN: u32 = 10;
const GUEST_MOVES_MAX: u32 = 3;
/// Skein's policy, and those that have to move and overload more.
const KINDS: [Kind; 3] = [Kind::Ours, Kind::Greedy, Kind::Thresholds];

pub fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(dir) = bench.directory("planetlab")? else { return Ok(()) };
    let mut days = days(&dir)?;
    if days == [dir] {
        return bench.row("planetlab", "skipped: there are no days: unpack the archive".into(), String::new(), None);
    }
    days.truncate(if bench.quick { 1 } else { days.len() });
    for day in days {
        let setup = Setup { seed: bench.seed, ..Setup::default() };
        let reports = play(&day, &setup, &KINDS, &bench.interrupt)?;
        let (ours, others) = reports.split_first().expect("a report for each");
        let is_less = |other: &ReplayReport| ours.moves < other.moves && ours.overload_min < other.overload_min;
        let met =
            ours.longest_min <= LONGEST_MIN && ours.guest_moves_max <= GUEST_MOVES_MAX && others.iter().all(is_less);
        let beside = others.iter().map(|other| format!("{}: {}", name(other), result_text(other))).collect::<Vec<_>>();
        let day = day.file_name().unwrap_or_default().to_string_lossy().into_owned();
        bench.row(&day, result_text(ours), beside.join("; "), Some(met))?;
    }
    Ok(())
}

fn name(report: &ReplayReport) -> &'static str {
    match report.policy {
        Kind::Greedy => "greedy",
        Kind::Thresholds => "thresholds",
        Kind::Ours | Kind::Still | Kind::GreedyOften => "ours",
    }
}

fn result_text(report: &ReplayReport) -> String {
    format!(
        "{:.0} min overloaded, {} min longest in hindsight, {} by what was known, {} moves, {} of one guest",
        report.overload_min, report.longest_min, report.left_alone_min, report.moves, report.guest_moves_max
    )
}
