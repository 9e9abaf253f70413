//! Finds rules that can never hold together, wherever guests are. They are reported when they are made.
//!
//! Whatever is found is certainly a clash. Not every clash is found, since that is as hard as placing all guests. Hosts
//! that are offline or in maintenance count as available: they come back, and rules stay.
//!
//! | file | finds |
//! |---|---|
//! | `fences` | guests for which fences leave too few hosts |
//! | `one_host` | guests that have to be on one host, and cannot |
//! | `areas` | guests that cannot be in as many areas, or as evenly in them, as a rule asks |
//! | `near` | groups that need each other near and cannot be, or that are apart and cannot be |

mod areas;
mod bonds;
mod fences;
mod finder;
mod matching;
mod near;
mod one_host;
mod report;

pub use self::report::Clash;
pub(super) use self::report::unset;

use self::finder::Finder;
use super::names::Names;
use skein_placement::problem::{Problem, Strength};

/// Returns all clashes that are found.
pub(super) fn find(problem: &Problem, names: &Names) -> Vec<Clash> {
    let mut finder = Finder::new(problem, names);
    finder.nowhere();
    finder.bound();
    for (group, of) in (0..).zip(&problem.groups) {
        if of.apart == Some(Strength::Hard) {
            finder.apart(group);
        }
        if let Some(spread) = of.spread.filter(|spread| spread.strength == Strength::Hard) {
            finder.spread(group, spread.level, spread.areas_min as usize);
        }
        finder.among(group, &of.among);
        for need in of.needs.iter().filter(|need| need.strength == Strength::Hard) {
            finder.need(group, need.of, need.level);
        }
        for avoid in of.avoids.iter().filter(|avoid| avoid.strength == Strength::Hard) {
            finder.avoid(group, avoid.of, avoid.level);
        }
        if let Some(even) = of.even.as_ref().filter(|even| even.strength == Strength::Hard) {
            finder.even(group, even.level, even.skew_max);
        }
    }
    finder.found
}
