//! Named benchmark cases, the movers they compare, statistics and the report.

pub mod carry;
pub mod case;
pub mod control;
pub mod figure;
pub mod goodput;
pub mod iperf;
pub mod mover;
pub mod ping;
pub mod process;
pub mod record;
pub mod report;
pub mod site;
pub mod stats;
pub mod units;
pub mod usage;
pub mod watch;
