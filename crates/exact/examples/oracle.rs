//! Compares repair and search with the proven best in small clusters, overall and by kind of rule: `oracle CASES SEED`
//! tries this many cases, from a seed on.

use std::time::Duration;

use skein_exact::cases::case;
use skein_exact::compare::{Grade, Tally, searched, tally};
use skein_placement::problem::{Group, HostMoves, Problem, Strength};

/// The time for one case. No case takes a second, unless the machine has much else to do.
const TIME: Duration = Duration::from_secs(60);
const GRADES: [Grade; 7] =
    [Grade::Optimal, Grade::Near, Grade::Worse, Grade::Invalid, Grade::Infeasible, Grade::Unproven, Grade::Refuted];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [cases, seed] = &args[..] else { return Err("usage: oracle CASES SEED".into()) };
    let (cases, seed): (u64, u64) = (cases.parse()?, seed.parse()?);
    let seeds = seed..seed.checked_add(cases).ok_or("SEED is too large")?;
    let tally = tally(seeds, TIME, |problem| searched(problem, &problem.initial, seed))?;
    print!("{:24}", "");
    GRADES.iter().for_each(|grade| print!("{:>12}", format!("{grade:?}").to_lowercase()));
    println!("{:>16}", "optimal");
    row("all", &tally, |_| true);
    for (name, has) in KINDS {
        row(name, &tally, has);
    }
    for grade in [Grade::Worse, Grade::Invalid, Grade::Unproven, Grade::Refuted] {
        if let Some(seeds) = tally.get(&grade) {
            println!("{}: {seeds:?}", format!("{grade:?}").to_lowercase());
        }
    }
    Ok(())
}

/// A kind of rule or of cost: its name, and whether a problem has it.
type Kind = (&'static str, fn(&Problem) -> bool);

const KINDS: [Kind; 16] = [
    ("no groups", |p| p.groups.is_empty()),
    ("apart", |p| groups(p, |group| group.apart == Some(Strength::Hard))),
    ("apart, soft", |p| groups(p, |group| is_soft(group.apart))),
    ("together", |p| groups(p, |group| group.together == Some(Strength::Hard))),
    ("together, soft", |p| groups(p, |group| is_soft(group.together))),
    ("spread", |p| groups(p, |group| group.spread.is_some_and(|spread| spread.strength == Strength::Hard))),
    ("spread, soft", |p| groups(p, |group| is_soft(group.spread.map(|spread| spread.strength)))),
    ("needs", |p| groups(p, |group| !group.needs.is_empty())),
    ("among", |p| groups(p, |group| !group.among.is_empty())),
    ("owners", |p| p.guests.iter().any(|guest| guest.owners.is_some())),
    ("preference", |p| p.guests.iter().any(|guest| guest.preference.is_some())),
    ("balance", |p| !p.balances.is_empty()),
    ("transient", |p| p.resources.iter().any(|resource| resource.transient)),
    ("moves of a group cost", |p| p.weights.group_move > 0),
    ("moves cost by host", |p| matches!(p.host_moves, HostMoves::Matrix(_))),
    ("one resource", |p| p.resources.len() == 1),
];

fn groups(problem: &Problem, has: impl Fn(&Group) -> bool) -> bool {
    problem.groups.iter().any(has)
}

fn is_soft(strength: Option<Strength>) -> bool {
    matches!(strength, Some(Strength::Soft(_)))
}

/// Prints, of the cases for which `has` holds, how many have each grade, and how many of those with a valid assignment
/// are optimal.
fn row(name: &str, tally: &Tally, has: impl Fn(&Problem) -> bool) {
    let count = |grade| tally.get(&grade).map_or(0, |seeds| seeds.iter().filter(|seed| has(&case(**seed))).count());
    let counts = GRADES.map(count);
    let feasible = counts.iter().sum::<usize>() - count(Grade::Infeasible);
    print!("{name:24}");
    counts.iter().for_each(|count| print!("{count:12}"));
    println!("{:14.1} %", 100.0 * count(Grade::Optimal) as f64 / feasible.max(1) as f64);
}
