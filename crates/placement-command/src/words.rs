//! Puts verdicts into words for people and into JSON for programs.

use serde::Serialize;
use serde_json::{Map, Value, json};
use skein_placement::verdict::{Breach, Cost, Verdict};
use skein_terminal::table;

/// The unit of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The unit of a challenge.
    Plain,
    /// Seconds of migration traffic: costs are millionths of them.
    Seconds,
}

impl Unit {
    /// Returns a cost in this unit.
    pub fn text(self, cost: i64) -> String {
        match self {
            Unit::Plain => cost.to_string(),
            Unit::Seconds => format!("{:.1} s", cost as f64 / 1e6),
        }
    }
}

/// The outcome of an assignment.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the assignment breaks and costs.
    pub verdict: Verdict,
    /// How many failures of hosts are not survived, though each has to be.
    pub failures: u64,
}

impl Outcome {
    /// Returns whether no hard rule is broken, `survive` among them, and every guest is on a host.
    pub fn is_valid(&self) -> bool {
        self.verdict.is_valid() && self.failures == 0
    }
}

/// The kinds of breaches, with their names in JSON and for people.
const KINDS: [(&str, &str); 11] = [
    ("unplaced", "guests on no host"),
    ("not_owner", "guests where they may not be"),
    ("overload", "overloads"),
    ("apart", "guests that share a host"),
    ("together", "guests that are apart"),
    ("spread", "areas too few"),
    ("need", "areas without what is needed"),
    ("among", "guests outside their hosts"),
    ("uneven", "guests spread unevenly"),
    ("avoid", "guests where others keep apart"),
    ("survive", "failures not survived"),
];

/// The last kind, which the judge does not know.
const SURVIVE: usize = KINDS.len() - 1;

fn kind(breach: &Breach) -> usize {
    match breach {
        Breach::Unplaced { .. } => 0,
        Breach::NotOwner { .. } => 1,
        Breach::Overload { .. } => 2,
        Breach::Apart { .. } => 3,
        Breach::Together { .. } => 4,
        Breach::Spread { .. } => 5,
        Breach::Need { .. } => 6,
        Breach::Among { .. } => 7,
        Breach::Uneven { .. } => 8,
        Breach::Avoid { .. } => 9,
    }
}

/// Returns how many breaches of each kind of hard rule there are.
fn broken(outcome: &Outcome) -> [i64; KINDS.len()] {
    let mut counts = [0; KINDS.len()];
    outcome.verdict.hard.iter().for_each(|breach| counts[kind(breach)] += breach.count());
    counts[SURVIVE] = i64::try_from(outcome.failures).unwrap_or(i64::MAX);
    counts
}

/// Returns the parts of a cost, with their names in JSON and for people.
fn parts(cost: &Cost) -> [(&'static str, &'static str, i64); 7] {
    [
        ("load", "load", cost.load),
        ("balance", "balance", cost.balance),
        ("guest_moves", "guests moved", cost.guest_moves),
        ("group_moves", "groups moved", cost.group_moves),
        ("host_moves", "moves by where to", cost.host_moves),
        ("preferences", "preferences", cost.preferences),
        ("rules", "soft rules", cost.rules),
    ]
}

/// Returns two outcomes side by side. What is 0 in both is left out.
pub fn beside(before: &Outcome, after: &Outcome, unit: Unit) -> String {
    let mut rows = Vec::new();
    let mut row = |name: &str, cells: [String; 2]| {
        let [before, after] = cells;
        rows.push([name.to_owned(), before, after]);
    };
    let both = |tell: &dyn Fn(&Outcome) -> String| [tell(before), tell(after)];
    row("valid", both(&|outcome| if outcome.is_valid() { "yes" } else { "no" }.to_owned()));
    for ((name, before), after) in KINDS.iter().map(|(_, name)| name).zip(broken(before)).zip(broken(after)) {
        if (before, after) != (0, 0) {
            row(&format!("  {name}"), [before.to_string(), after.to_string()]);
        }
    }
    row("cost", both(&|outcome| unit.text(outcome.verdict.cost.total())));
    for ((_, name, before), (.., after)) in parts(&before.verdict.cost).into_iter().zip(parts(&after.verdict.cost)) {
        if (before, after) != (0, 0) {
            row(&format!("  {name}"), [unit.text(before), unit.text(after)]);
        }
    }
    row("moves", both(&|outcome| outcome.verdict.moves.to_string()));
    table(["", "INITIAL", "FOUND"], &rows)
}

/// An outcome, for programs.
#[derive(Serialize)]
pub struct Judged {
    valid: bool,
    /// The number of breaches by kind.
    breaches: Value,
    /// The cost in all, and by cause.
    cost: Value,
    moves: usize,
}

impl Judged {
    /// Returns the outcome for programs.
    pub fn new(outcome: &Outcome) -> Judged {
        let breaches: Map<String, Value> =
            KINDS.iter().zip(broken(outcome)).map(|((name, _), count)| ((*name).to_owned(), count.into())).collect();
        let verdict = &outcome.verdict;
        let mut cost = json!({ "total": verdict.cost.total() });
        parts(&verdict.cost).into_iter().for_each(|(name, _, of)| cost[name] = of.into());
        Judged { valid: outcome.is_valid(), breaches: breaches.into(), cost, moves: verdict.moves }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nothing_is_left_out() {
        let before = Verdict { hard: vec![Breach::Apart { group: 0, host: 0, members: 3 }], ..Verdict::default() };
        let before = Outcome { verdict: before, failures: 0 };
        let cost = Cost { load: 1_500_000, ..Cost::default() };
        let after = Outcome { verdict: Verdict { cost, moves: 2, ..Verdict::default() }, failures: 0 };
        let told = beside(&before, &after, Unit::Seconds);
        let rows: Vec<Vec<&str>> = told
            .lines()
            .skip(1)
            .map(|line| line.trim().split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(
            rows,
            [
                ["valid", "no", "yes"],
                ["guests that share a host", "2", "0"],
                ["cost", "0.0 s", "1.5 s"],
                ["load", "0.0 s", "1.5 s"],
                ["moves", "0", "2"]
            ]
        );
        let json = serde_json::to_value(Judged::new(&before)).unwrap();
        assert_eq!((&json["valid"], &json["breaches"]["apart"]), (&false.into(), &2.into()));
        assert_eq!(serde_json::to_value(Judged::new(&after)).unwrap()["cost"]["load"], 1_500_000);
    }

    #[test]
    fn a_failure_that_is_not_survived_is_a_breach() {
        let outcome = |failures| Outcome { verdict: Verdict::default(), failures };
        let told = beside(&outcome(2), &outcome(1), Unit::Seconds);
        let row = |name: &str| told.lines().find(|line| line.contains(name)).map(|line| line.trim_start().to_owned());
        assert_eq!(row("valid"), Some("valid                    no       no".to_owned()), "{told}");
        assert_eq!(row("failures"), Some("failures not survived  2        1".to_owned()), "{told}");
        let json = serde_json::to_value(Judged::new(&outcome(1))).unwrap();
        assert_eq!((&json["valid"], &json["breaches"]["survive"]), (&false.into(), &1.into()));
    }
}
