//! How long a migration takes.
//!
//! | module | decides |
//! |---|---|
//! | [`forecast`](mod@forecast) | how long a migration will take, and whether it ends, before it begins |
//! | [`convergence`] | whether it ends while it is under way, and what would make it end |
//! | [`time_left`] | how long the rest takes, and how sure that is |
//!
//! Absent on purpose: clocks, guests, what measures the guest's writes and what throttles the guest.

#![forbid(unsafe_code)]

pub mod convergence;
pub mod forecast;
pub mod time_left;

pub use convergence::{Convergence, ConvergenceStep, ConvergenceWatch, CopyRates, CopySample};
pub use forecast::{Forecast, ForecastConvergence, ForecastInputs, forecast, wire_bits_per_s};
pub use time_left::{CopyStanding, TimeLeft, TimeLeftWatch, WireStanding};
