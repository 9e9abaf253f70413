//! The result of a search, in words and in JSON.

use serde_json::{Value, json};
use skein_placement::bound::{Least, moves_min};
use skein_placement::problem::Problem;
use skein_placement::score::Score;
use skein_solver::{Ending, Options, Proof, ProofError, Solution};
use skein_terminal::count;

use crate::words::{Judged, Outcome, Unit, beside};

/// The result of a search.
pub struct Solved<'a> {
    /// What was solved.
    pub problem: &'a Problem,
    /// The unit of its costs.
    pub unit: Unit,
    /// How it was solved.
    pub options: Options,
    /// What was found.
    pub found: &'a Solution,
    /// The outcome of where guests are.
    pub initial: Outcome,
    /// The outcome of what was found.
    pub judged: Outcome,
    /// Why something is always broken, if that is known from elsewhere than the problem.
    pub impossible: Option<String>,
}

impl Solved<'_> {
    /// Returns both outcomes side by side, how it was searched, and what is proven.
    pub fn text(&self) -> String {
        let mut text = beside(&self.initial, &self.judged, self.unit);
        let how = if self.found.ending == Ending::Cancelled { "ended early" } else { "searched" };
        text += &format!(
            "{how}, {:.1} s on {}, seed {}; {}\n",
            self.found.elapsed.as_secs_f64(),
            count(self.options.threads.get(), "thread"),
            self.options.seed,
            self.least_text(),
        );
        if let Some(proof) = &self.found.proof {
            text += &self.proven(proof);
        }
        text
    }

    /// Returns the same for programs, as an object.
    pub fn json(&self) -> Value {
        let least = self.least().ok();
        let moves_min = least.map(|least| json!({ "moves": least.moves, "placements": least.placements }));
        let mut value = json!({
            "initial": Judged::new(&self.initial),
            "found": Judged::new(&self.judged),
            "moves_min": moves_min,
            "seconds": self.found.elapsed.as_secs_f64(),
            "interrupted": self.found.ending == Ending::Cancelled,
            "seed": self.options.seed,
            "threads": self.options.threads,
        });
        match &self.found.proof {
            Some(Ok(proof)) => {
                value["proof"] = json!({ "is_feasible": proof.bound.is_some(), "cost_min": proof.bound })
            }
            Some(Err(error)) => value["proof"] = json!({ "error": error_chain(error) }),
            None => {}
        }
        value
    }

    /// Returns what is needed at least to break nothing, or why something is always broken.
    fn least(&self) -> Result<Least, String> {
        let mut least = moves_min(self.problem);
        if least.is_impossible {
            return Err("a rule asks for more areas than there are, or than it has guests".into());
        }
        if let Some(why) = &self.impossible {
            return Err(why.clone());
        }
        // The bound ignores some rules. If something is broken now, at least one move is needed.
        if least.moves + least.placements == 0 && !self.initial.is_valid() {
            least.moves = 1;
        }
        Ok(least)
    }

    fn least_text(&self) -> String {
        let least = match self.least() {
            Ok(least) => least,
            Err(why) => return format!("something is always broken: {why}"),
        };
        // A bound does not say whether the moves are possible.
        let can = if self.judged.is_valid() { "takes" } else { "would take, if it can be," };
        let (moves, placements) = (count(least.moves, "move"), count(least.placements, "placement"));
        format!("to break nothing {can} {moves} and {placements} at least")
    }

    fn proven(&self, proof: &Result<Proof, ProofError>) -> String {
        let cost = |cost: i64| self.unit.text(cost);
        match proof {
            Err(error) => format!("nothing is proven: {}\n", error_chain(error)),
            Ok(Proof { bound: None, .. }) => "proven: every placement breaks something\n".into(),
            Ok(Proof { bound: Some(bound), .. })
                if self.judged.is_valid() && self.judged.verdict.score() == Score::cost(*bound) =>
            {
                "proven: no placement that breaks nothing costs less\n".into()
            }
            Ok(Proof { bound: Some(bound), .. }) => {
                format!("proven: every placement that breaks nothing costs {} at least\n", cost(*bound))
            }
        }
    }
}

/// Returns an error and its causes in one line.
fn error_chain(error: &ProofError) -> String {
    anyhow::Chain::new(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
