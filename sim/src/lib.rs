//! Sessions and whole clusters in virtual time: one seed is one exact run.
//!
//! Everything happens in the order of one heap of timed actions for each world; ties go by the order of scheduling, and
//! whatever is random comes from [`rng::Rng`]. There is no clock, no thread and no hash order, so a seed that fails
//! fails again.
//!
//! | module | what it is |
//! |---|---|
//! | [`world`], [`driver`], [`network`] | two sessions, what polls them and dials, paths and connections between them |
//! | [`pair`] | applications that try one pair of sessions |

#![forbid(unsafe_code)]
#![allow(missing_docs)] // a tool for tests; its names have to do

pub mod driver;
pub mod network;
pub mod pair;
pub mod rng;
pub mod world;

/// Whether `SKEIN_TRACE` asks for a line for each event.
pub fn is_traced() -> bool {
    std::env::var_os("SKEIN_TRACE").is_some()
}

/// A number that the environment gives to a run.
pub fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}
