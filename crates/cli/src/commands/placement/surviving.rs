//! A search for what survives failing hosts, where the file asks for that.
//!
//! The search itself knows nothing of failures. Where what it finds does not survive them, it searches again with a
//! part of each host kept free; and then guests are moved one by one. Each try is judged by the true problem, and the
//! best is taken.

use std::time::Duration;

use skein_placement::cluster::{Compiled, failing};
use skein_placement::problem::{HostId, Problem};
use skein_placement::score::Score;
use skein_placement::survive::{mend, reserving, survive};
use skein_placement::verdict::judge;

use super::search::{Budget, Found, Options};

/// How much is kept free, as a part of what the guests of the failed hosts need on average.
const SPARE_FACTORS: [f64; 3] = [1.0, 0.6, 1.4];
/// What part of the time is for the first search, and for each further one.
const FIRST_SEARCH_SHARE: f64 = 0.4;
const FURTHER_SEARCH_SHARE: f64 = 0.2;

/// What is found by a search, of which several are made if failures are not survived.
pub fn solve(
    compiled: &Compiled,
    options: &Options,
    mut search: impl FnMut(&Problem, &Options) -> anyhow::Result<Found>,
) -> anyhow::Result<Found> {
    let problem = &compiled.problem;
    let Some(rule) = compiled.survive else { return search(problem, options) };
    let hosts = failing(compiled);
    let part = |part: f64| match options.budget {
        Budget::Time(most) => Options { budget: Budget::Time(most.mul_f64(part)), ..*options },
        Budget::Steps(_) => *options,
    };
    let mut best = search(problem, &part(FIRST_SEARCH_SHARE))?;
    let mut least = rank(compiled, &best.assignment);
    let mut elapsed = best.elapsed;
    for factor in SPARE_FACTORS {
        if least.1 == 0 || best.is_interrupted {
            break;
        }
        let mut found = search(&reserving(problem, &hosts, rule.failures, factor), &part(FURTHER_SEARCH_SHARE))?;
        elapsed += found.elapsed;
        let interrupted = found.is_interrupted;
        found.assignment = mend(problem, &found.assignment, &hosts, rule);
        let told = rank(compiled, &found.assignment);
        if told < least {
            (best, least) = (found, told);
        }
        best.is_interrupted = interrupted;
    }
    if least.1 > 0 && !best.is_interrupted {
        let mended = mend(problem, &best.assignment, &hosts, rule);
        if rank(compiled, &mended) < least {
            best.assignment = mended;
        }
    }
    Ok(Found { elapsed: elapsed.max(Duration::ZERO), ..best })
}

/// How good an assignment is, with its failures, and how many these are: less is better.
pub fn rank(compiled: &Compiled, at: &[HostId]) -> (Score, usize) {
    let problem = &compiled.problem;
    let score = judge(problem, at).score();
    let Some(rule) = compiled.survive else { return (score, 0) };
    let failures = survive(problem, at, &failing(compiled), rule.failures).failures.len();
    (score + rule.strength.score(failures as i64), failures)
}
