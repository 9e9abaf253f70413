//! Operations: what a controller does over a while.
//!
//! All that is to be known of an operation is in its record, so that it goes on when another controller takes the lead.
//! A move is begun by a request to the source's agent under a name that is made of the operation, the move and the
//! attempt. The agent knows the name for a day, so the same request may be sent any number of times. A start is asked
//! for in the same way.
//!
//! | module | what |
//! |---|---|
//! | `record` | an operation's record, and what is read from it |
//! | `advance` | where an operation goes from where it is |
//! | `fence` | a lost host is switched off, and proven off |
//! | `sleep`, `wake` | a host that is not needed is shut down, and is switched on again |
//! | `update`, `update_check` | hosts are updated one after the other; whether they can be |
//! | `failover` | guests of a host that died |
//! | `look` | what other hosts have of its VMs, asked once it is off |
//! | `start` | VMs are started, each on one host and once |
//! | `start_by_hand`, `move_by_hand` | whether a person may start a VM on a host, or move a guest |
//! | `life` | VMs are created, stopped, deleted |
//! | `moves` | which moves begin, and what becomes of them |
//! | `off` | VMs that are off are moved |
//! | `left` | how much is left of moves, and how long that takes |
//! | `by_hand` | migrations that somebody began on a host |
//! | `relay` | a migration is switched, limited, called off by its source's agent |
//! | `plans` | which plans are asked for, and what is done with them |

mod advance;
mod by_hand;
mod failover;
mod fence;
mod left;
mod life;
mod look;
mod move_by_hand;
mod moves;
mod off;
mod plans;
mod record;
mod relay;
mod sleep;
mod start;
mod start_by_hand;
mod update;
mod update_check;
mod wake;

pub(crate) use record::{Pending, is_held};
pub(crate) use start::keeps_state;
