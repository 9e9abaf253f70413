//! Controllers on a store, agents with guests, and people who drain hosts, in virtual time.
//!
//! | module | what it is |
//! |---|---|
//! | `world` | the heap of what happens, and who is there |
//! | `node` | a controller's process: its candidacy, its writes, its plans |
//! | `agent` | a host with its agent and guests: takes commands, remembers requests, migrates |
//! | `faults` | crashes, pauses, partitions, a store that does not answer |
//! | `check` | what must hold, at each step and in the end |
//! | [`scenario`] | a run from a seed |

mod agent;
mod check;
mod faults;
mod node;
pub mod scenario;
mod world;

pub use check::Stats;
