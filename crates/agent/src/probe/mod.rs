//! Measures the way to another host, over the paths and the session that migrations have.
//!
//! | module | what it is |
//! |---|---|
//! | `order` | what the measuring end asks of the other, and what that says |
//! | `far` | the other end: it counts what comes, sends what is asked for, says how busy its host is |
//! | `transfer` | the measuring end of a transfer |
//! | `run` | what is measured, in which order |
//! | `ends` | what is at the ends of paths, and which NICs have none. Pure |
//! | `rates`, `verdict` | what follows: a rate from a transfer, what is wrong from all rates. Pure |
//! | `store` | what was measured last of each host |
//!
//! Nothing is sent while a migration or a tunnel's connection is under way at either end, and what is sent stops within
//! 20 ms of its beginning. Beside a migration some packets are sent, and no sooner than 5 s after the last probe. What
//! nobody waits for any more stops as well.

mod ends;
mod far;
mod load;
mod order;
mod rates;
mod run;
mod store;
mod transfer;
mod verdict;

pub(crate) use far::serve;
pub(crate) use order::ProbeOrder;
pub(crate) use run::{Around, ProbeError, probe};
pub(crate) use store::ProbeStore;
