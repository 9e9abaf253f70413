//! The error of a proof.

use skein_placement::problem::Flaw;
use skein_placement::verdict::Breach;
use thiserror::Error;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExactError {
    /// The problem is not valid.
    #[error("the problem is flawed")]
    Flaw(#[from] Flaw),
    /// The start is not an assignment of the problem.
    #[error("the start has {has} guests on hosts of {hosts}, where {wants} guests are on them or nowhere")]
    Start {
        /// How many guests have an existing host in the start, or none.
        has: usize,
        /// How many hosts there are.
        hosts: usize,
        /// How many guests there are.
        wants: usize,
    },
    /// The problem is too large for an exact solver.
    #[error(
        "a model of some {factors} factors, where {most} are allowed, is too large to be proven: \
         like this, {hosts} hosts with {guests} guests would do"
    )]
    TooLarge {
        /// The size of the model: what different guests, hosts, resources and rules make.
        factors: usize,
        /// The largest size.
        most: usize,
        /// A number of hosts with which the problem would not be too large, in proportion.
        hosts: usize,
        /// The number of guests on these hosts.
        guests: usize,
    },
    /// HiGHS gave up, which is a defect of the model that was made for it.
    #[error("HiGHS ended with '{status}'")]
    Solver {
        /// The status, in HiGHS's words.
        status: String,
    },
    /// Amounts differ so much that HiGHS's tolerances hide the small ones.
    #[error("HiGHS's answer breaks {} hard rules, at first {:?}: take larger units", hard.len(), hard.first())]
    Broken {
        /// The hard rules that are broken, by the judge.
        hard: Vec<Breach>,
    },
    /// Amounts or costs differ so much that HiGHS's tolerances hide the small ones.
    #[error(
        "HiGHS says that {}, but something valid costs {cost}: take larger units or smaller weights",
        bound.map_or("nothing is valid".to_owned(), |bound| format!("what is valid costs {bound} at least"))
    )]
    Refuted {
        /// HiGHS's bound.
        bound: Option<i64>,
        /// The cost that the judge found.
        cost: i64,
    },
}
