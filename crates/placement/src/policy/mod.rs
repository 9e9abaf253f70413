//! What to do as the load goes: which guests to move, which hosts may sleep. Each is asked once a round, and says why.
//!
//! | module | decides |
//! |---|---|
//! | [`forecast`] | what each guest will use, from samples |
//! | [`dynamic`] | which guests to move off hosts that are, or will be, short |
//! | [`power`] | which hosts can sleep, and which have to wake |
//! | [`replay`] | nothing: it measures policies on a recorded day |
//!
//! Absent on purpose: clocks and timers. Time comes in with each call, in seconds from any beginning.

pub mod dynamic;
pub mod forecast;
pub mod power;
pub mod replay;
mod view;

pub use view::{BadView, View};
