//! Controllers on a store, agents with guests, and people who drain hosts, in virtual time.
//!
//! | module | what it is |
//! |---|---|
//! | `host`, `event` | what hosts and controllers' processes are; what happens |
//! | `world` | the heap of what happens, the store, and connections |
//! | `node` | what a controller's process does: its candidacy, its writes, its plans |
//! | `agent` | what an agent does: takes commands, remembers requests, migrates |
//! | `by_hand`, `hands` | people who start and move VMs on a host: what their agents ask; what they do |
//! | `off` | moves of VMs that are off |
//! | `power` | fencing devices, which switch hosts off |
//! | `restore` | a backup that is restored |
//! | `update` | hosts that are updated, and booted |
//! | `watchdog`, `timer` | watchdogs, which reset hosts unless their agents feed them |
//! | `faults` | crashes, pauses, partitions, a store that does not answer |
//! | `check`, `settled` | what must hold, at each step and in the end |
//! | [`scenario`] | a run from a seed |

mod agent;
mod by_hand;
mod check;
mod event;
mod faults;
mod hands;
mod host;
mod node;
mod off;
mod power;
mod restore;
pub mod scenario;
mod settled;
mod timer;
mod update;
mod watchdog;
mod world;

pub use check::Stats;
