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
//! | [`cluster`] | agents, disks and QEMUs on many such pairs |
//! | [`control`] | controllers, their store, and agents that migrate as they are told |

#![forbid(unsafe_code)]
#![allow(missing_docs)] // a tool for tests; its names have to do

pub mod cluster;
pub mod control;
pub mod driver;
pub mod network;
pub mod pair;
mod parts;
pub mod rng;
mod time;
pub mod world;

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether `SKEIN_TRACE` asks for a line for each event.
pub fn is_traced() -> bool {
    std::env::var_os("SKEIN_TRACE").is_some()
}

/// A number that the environment gives to a run.
pub fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

/// A run whose panic is a failure as others are.
pub fn caught<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Runs seeds from `first` on, on all cores, while `more` says so of the next; gives what came of each that was run, in
/// order. Stops early when twenty have failed.
pub fn sweep<T: Send>(
    first: u64,
    more: impl Fn(u64) -> bool + Sync,
    run: impl Fn(u64) -> Result<T, String> + Sync,
) -> Vec<(u64, Result<T, String>)> {
    let (next, failed) = (AtomicU64::new(first), AtomicU64::new(0));
    let work = || {
        let mut results = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !more(seed) || failed.load(Ordering::Relaxed) >= 20 {
                return results;
            }
            let result = run(seed);
            failed.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
            results.push((seed, result));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("panics are caught")).collect()
    });
    results.sort_by_key(|(seed, _)| *seed);
    results
}
