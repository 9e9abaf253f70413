//! What was seen of a fleet's controller.

use serde::Serialize;

use crate::latencies::Latencies;

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetSeen {
    /// The hosts and guests.
    pub hosts: u32,
    /// The guests.
    pub guests: u32,
    /// Where loads are from, in words.
    pub loads: String,
    /// From the controller's start until it showed all hosts and guests of a cluster that it had never seen.
    pub joined_s: f64,
    /// The windows of usual life.
    pub windows: Vec<Window>,
    /// The most memory that the controller has had in RAM, before and after it was killed.
    pub ram_max_bytes: u64,
    /// The drains that were asked for at once.
    pub drains: Vec<Drained>,
    /// How long a round of optimisation over all hosts took to be said, in seconds, and how many moves it has.
    pub optimized: Option<(f64, usize)>,
    /// What became of a controller that was killed.
    pub recovery: Option<Recovery>,
    /// The guests that the controller did not show where their agents had them at the end.
    pub odd_at_end: Vec<String>,
    /// The guests that ever ran on two hosts by their agents' word.
    pub ran_twice: Vec<String>,
}

/// A window of usual life: reports, reads, faults, migrations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Window {
    /// The CPU that the controller used, in cores.
    pub cores: f64,
    /// The reports that agents have sent, a second.
    pub reports_per_s: f64,
    /// From the beginning of a read to the end of its answer.
    pub reads: Latencies,
    /// From an agent's report to the event at a subscriber.
    pub events: Latencies,
    /// The events that subscribers lacked.
    pub events_missed: u64,
    /// The machine's load average over a minute at the window's end.
    pub load_average: f64,
    /// The slowest kind of read, by its 99th percentile.
    pub slowest: String,
}

/// A host that was emptied.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Drained {
    /// From the request to its answer.
    pub answered_s: f64,
    /// From the request until its first guest moved.
    pub planned_s: Option<f64>,
    /// From the request until it was over.
    pub over_s: Option<f64>,
    /// Whether all guests have left.
    pub is_empty: bool,
}

/// What became of a controller that was killed amid drains.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recovery {
    /// The operations that were under way.
    pub under_way: usize,
    /// Those of them that came to an end afterwards.
    pub ended: usize,
    /// Those that were forgotten, or told something else than before.
    pub forgotten: Vec<String>,
    /// From the kill until the controller that was started again showed what agents know.
    pub consistent_s: Option<f64>,
    /// What was odd last, while that took.
    pub last_odd: String,
}
