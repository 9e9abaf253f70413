//! Verdicts as people and programs read them.

use serde::Serialize;
use serde_json::{Map, Value, json};
use skein_placement::verdict::{Breach, Cost, Verdict};

use crate::commands::text::table;

/// What costs are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Of a challenge's own.
    Plain,
    /// Of migration traffic: costs are millionths.
    Seconds,
}

impl Unit {
    /// An amount of it.
    pub fn text(self, cost: i64) -> String {
        match self {
            Unit::Plain => cost.to_string(),
            Unit::Seconds => format!("{:.1} s", cost as f64 / 1e6),
        }
    }
}

/// All that is to be said of an assignment.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What it breaks and costs.
    pub verdict: Verdict,
    /// How many failures of hosts are not survived, though each has to be.
    pub failures: u64,
}

impl Outcome {
    /// Whether no hard rule is broken, `survive` among them, and every guest is somewhere.
    pub fn is_valid(&self) -> bool {
        self.verdict.is_valid() && self.failures == 0
    }
}

/// Kinds of breaches, as JSON and as people call them.
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

/// The last of them, of which the judge knows nothing.
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

/// How often each kind of hard rule is broken.
fn broken(outcome: &Outcome) -> [i64; KINDS.len()] {
    let mut counts = [0; KINDS.len()];
    outcome.verdict.hard.iter().for_each(|breach| counts[kind(breach)] += breach.count());
    counts[SURVIVE] = i64::try_from(outcome.failures).unwrap_or(i64::MAX);
    counts
}

/// What a cost is made of, as JSON and as people call it.
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

/// Two outcomes side by side; what is nothing in both is left out.
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
    /// By kind.
    breaches: Value,
    /// In all, and by what for.
    cost: Value,
    moves: usize,
}

impl Judged {
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
