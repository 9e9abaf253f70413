//! Why there is no answer.

use skein_placement::problem::Flaw;
use skein_placement::verdict::Breach;
use thiserror::Error;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExactError {
    /// The problem is none.
    #[error("the problem is flawed")]
    Flaw(#[from] Flaw),
    /// The start is no assignment of the problem.
    #[error("the start has {has} guests on hosts of {hosts}, where {wants} guests are on them or nowhere")]
    Start {
        /// For how many guests it has a host that there is, or none.
        has: usize,
        /// How many hosts there are.
        hosts: usize,
        /// How many guests there are.
        wants: usize,
    },
    /// It is not for an exact solver.
    #[error(
        "a model of some {factors} factors, where {most} are allowed, is too large to be proven: \
         like this, {hosts} hosts with {guests} guests would do"
    )]
    TooLarge {
        /// What guests that differ, hosts, resources and rules make.
        factors: usize,
        /// How many there may be.
        most: usize,
        /// A number of hosts that would do, if all is as it is here, only less.
        hosts: usize,
        /// A number of guests on these.
        guests: usize,
    },
    /// HiGHS gave up, which is a defect of the model made for it.
    #[error("HiGHS ended with '{status}'")]
    Solver {
        /// In its words.
        status: String,
    },
    /// Amounts are so far apart that HiGHS's tolerances do not tell them.
    #[error("HiGHS's answer breaks {} hard rules, at first {:?}: take larger units", hard.len(), hard.first())]
    Broken {
        /// What the judge found.
        hard: Vec<Breach>,
    },
    /// Amounts or costs are so far apart that HiGHS's tolerances do not tell them.
    #[error(
        "HiGHS says that {}, but something valid costs {cost}: take larger units or smaller weights",
        bound.map_or("nothing is valid".to_owned(), |bound| format!("what is valid costs {bound} at least"))
    )]
    Refuted {
        /// What it says.
        bound: Option<i64>,
        /// What the judge found.
        cost: i64,
    },
}
