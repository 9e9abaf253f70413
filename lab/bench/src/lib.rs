//! Named benchmark cases, the movers they compare, statistics and the report.

pub mod case;
pub mod figure;
pub mod goodput;
pub mod mover;
pub mod record;
pub mod report;
pub mod stats;
pub mod units;
