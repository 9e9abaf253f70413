//! Two agents, their disks, their QEMUs and the network between them.
//!
//! | file | what |
//! |---|---|
//! | `state` | the state of all of them |
//! | `faults`, `planted` | what may go wrong, and the errors that are planted |
//! | `step`, `possible`, `take` | what may happen next, when, and what becomes of the state then |
//! | `records`, `orders`, `crashes`, `qemus` | the same for the disks, the orders, agents and hosts, and the QEMUs |
//! | `wanted`, `observe` | what the two ends want, and what the checks ask of a state |
//! | `display` | a state in a line of a trace |

mod crashes;
mod display;
mod faults;
mod observe;
mod orders;
mod planted;
mod possible;
mod qemus;
mod records;
mod state;
mod step;
mod take;
mod wanted;

pub use self::faults::{Budget, Error};
pub use self::state::World;
pub use self::step::{End, Step, Write};
