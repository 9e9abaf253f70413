//! Cases that are not one migration after the other: a controller and its hosts, and migrations beside others.

mod drain;
pub(crate) mod drain_figure;
mod fleet;
pub(crate) mod fleet_figure;
mod forecast;
pub(crate) mod forecast_figure;
mod hold;
pub(crate) mod hold_figure;
mod options;
mod page;
pub(crate) mod page_figure;
mod probe;
pub(crate) mod probe_figure;
mod rails;
pub(crate) mod rails_figure;
mod rate_limit;
pub(crate) mod rate_limit_figure;
mod share;
pub(crate) mod share_figure;

pub use self::options::ClusterOptions;
use crate::{case::ClusterCase, error::BenchError, results::Part};

/// Runs a case, and tells what happens. Returns the figure's parts.
///
/// # Errors
///
/// [`BenchError`] if the case cannot be run.
pub fn run(case: ClusterCase, options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Part>, BenchError> {
    match case {
        ClusterCase::Drain => drain::run(options, tell).map(|rounds| drain_figure::judge(&rounds)),
        ClusterCase::Hold => hold::run(options, tell).map(|rounds| hold_figure::judge(&rounds)),
        ClusterCase::PageLarge => page::large(options, tell).map(|seen| page_figure::judge_large(Some(&seen))),
        ClusterCase::PageLive => page::live(options, tell).map(|seen| page_figure::judge_live(Some(&seen))),
        ClusterCase::RateLimit => rate_limit::run(options, tell).map(|rounds| rate_limit_figure::judge(&rounds)),
        ClusterCase::Share => share::run(options, tell).map(|rounds| share_figure::judge(&rounds)),
        ClusterCase::MtuLie => probe::lie(options, tell).map(|rounds| probe_figure::judge_lie(&rounds)),
        ClusterCase::SharedBottleneck => probe::shared(options, tell).map(|rounds| probe_figure::judge_shared(&rounds)),
        ClusterCase::ProbeCost => probe::cost(options, tell).map(|rounds| probe_figure::judge_cost(&rounds)),
        ClusterCase::PageClustering => {
            rails::clustering(options, tell).map(|seen| rails_figure::judge_clustering(&seen))
        }
        ClusterCase::ReadWrite => rails::read_write(options, tell).map(|seen| rails_figure::judge_read_write(&seen)),
        ClusterCase::Forecast => forecast::run(options, tell).map(|seen| forecast_figure::judge(&seen)),
        ClusterCase::Fleet => fleet::run(options, tell).map(|seen| fleet_figure::judge(Some(&seen))),
    }
}
