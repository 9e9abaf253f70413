//! Named benchmark cases, the movers that they compare, statistics and the report.

pub mod agents;
pub mod bench;
pub mod boot;
pub mod busy;
pub mod carry;
pub mod case;
pub mod cluster;
pub mod control_latency;
pub mod error;
pub mod figure;
mod free_memory;
pub mod goodput;
mod huge_shared_memory;
mod inflicted_fault;
pub mod iperf;
pub mod killed;
pub mod machine;
pub mod measured_page;
pub mod memory_reads;
pub mod migration;
pub mod mover;
pub mod page_sizes;
pub mod ping;
pub mod process;
pub mod report;
pub mod residents;
pub mod results;
pub mod rewriting;
pub mod run;
pub mod site;
pub mod stats;
mod tick;
pub mod usage;
pub mod watch;

/// Returns an error with all its causes, each once.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |e| e.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
