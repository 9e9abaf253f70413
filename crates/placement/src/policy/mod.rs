//! Decides what to do as the load changes: which guests to move, and which hosts may sleep. Each policy is asked once a
//! round, and gives its reasons.
//!
//! | module | decides |
//! |---|---|
//! | [`forecast`] | what each guest will use, from samples |
//! | [`dynamic`] | which guests to move off hosts that are, or will be, short |
//! | [`power`] | which hosts can sleep, and which have to wake |
//!
//! The module has no clocks and timers on purpose. The time comes with each call, in seconds from any beginning.

pub mod dynamic;
pub mod forecast;
pub mod power;
mod view;

pub use view::{BadView, View};
