//! Where guests run: what is best, what is wrong, and how to get there.
//!
//! | module | decides |
//! |---|---|
//! | [`problem`] | nothing: it is what is to be decided, in numbers |
//! | [`verdict`] | what an assignment breaks and costs, from scratch |
//! | [`state`] | the same for one change more, in time that does not grow with the cluster |
//! | [`bound`] | how few moves could do |
//! | [`search`] | which assignment to take |
//! | [`survive`] | whether guests find room if hosts fail |
//! | [`schedule`] | in which order guests get to where they are to be |
//! | [`formats`] | what files of others say |
//! | [`cluster`] | what a cluster in words says, from a file or live, in numbers and back, and what is broken, in words |
//! | [`fleet`] | nothing: clusters that look real, from a seed, to try things on |
//! | [`explain`] | why a guest cannot be somewhere, what would help, and why it was moved |
//! | [`policy`] | what to do as the load goes: which guests to move, which hosts may sleep |
//!
//! Absent on purpose: files, clocks, threads, randomness but from a seed. The same problem, seed and budget give the
//! same answer.

#![forbid(unsafe_code)]

pub mod bits;
pub mod bound;
#[cfg(test)]
mod cases;
pub mod cluster;
pub mod dice;
pub mod explain;
pub mod fleet;
pub mod formats;
pub mod policy;
pub mod problem;
pub mod schedule;
pub mod score;
pub mod search;
pub mod state;
pub mod survive;
pub mod verdict;
