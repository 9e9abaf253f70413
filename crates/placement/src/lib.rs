//! Decides where guests run: which placement is best, what is broken in the current one, and how to get from one to the
//! other.
//!
//! | module | decides |
//! |---|---|
//! | [`problem`] | nothing: it holds what is to be decided, in numbers |
//! | [`verdict`] | what an assignment breaks and costs, computed from scratch |
//! | [`state`] | what one more change would break and cost, in time that does not grow with the cluster |
//! | [`bound`] | how many moves any placement needs at least |
//! | [`search`] | which assignment to take |
//! | [`survive`] | whether all guests find room if hosts fail |
//! | [`schedule`] | the order in which guests move to where they are to be |
//! | [`fleet`] | nothing: it makes realistic clusters from a seed, to try things on |
//! | [`policy`] | what to do as the load changes: which guests to move, which hosts may sleep |
//!
//! The crate reads no files and no clocks, starts no threads, and takes all randomness from a seed. This is on purpose:
//! the same problem, seed and budget give the same answer.

#![forbid(unsafe_code)]

pub mod bits;
pub mod bound;
#[cfg(test)]
mod cases;
pub mod dice;
pub mod fleet;
pub mod policy;
pub mod problem;
pub mod schedule;
pub mod score;
pub mod search;
pub mod state;
pub mod survive;
pub mod verdict;
