//! Hosts, agents and guests, and how a round is run with them.

mod asks;
mod boot;
mod faults;
mod judge;
mod outcome;
mod round;
mod state;

pub use self::outcome::{Done, Failure, Harm};
pub use self::state::{NICS, World};
