//! What policies see of the cluster: what guests are expected to use, how long they take to move, who stays.

use std::collections::{BTreeMap, BTreeSet};

use skein_placement::bits::Bits;
use skein_placement::policy::View;
use skein_placement::policy::forecast::Outlook;
use skein_placement::schedule::forecast;
use skein_placement_model::cluster::model::{Cluster, HostState};
use skein_placement_model::cluster::{Compiled, Measure};

/// The resource that guests reserve.
pub(crate) const MEMORY: &str = "memory";
/// The resource that guests use as measured.
pub(crate) const CPU: &str = "cpu";
/// The rate of a migration on a host whose NICs do not tell their speed, in bytes per second: a gigabit.
pub(crate) const RATE_UNKNOWN: f64 = 125e6;

/// What policies see beside the problem.
pub(crate) struct Seen {
    outlooks: Vec<Vec<Outlook>>,
    sends_s: Vec<f64>,
    pinned: Bits,
    closed: Bits,
    now_s: u64,
}

impl Seen {
    /// `outlooks`: what guests are expected to use of a CPU, in thousandths. `rates`: what hosts move, in bytes per
    /// second.
    pub(crate) fn new(
        cluster: &Cluster,
        compiled: &Compiled,
        outlooks: &BTreeMap<String, Outlook>,
        rates: &[(String, f64)],
        now_ms: u64,
    ) -> Seen {
        let (problem, names) = (&compiled.problem, &compiled.names);
        let outlook = |guest: usize, row: usize| {
            let is_measured = names.rows[row].name == CPU && names.rows[row].measure == Measure::Measured;
            let found = outlooks.get(&names.guests[guest]).filter(|_| is_measured).copied();
            found.unwrap_or_else(|| Outlook::fixed(problem.guests[guest].demand[row] as f64))
        };
        let rows = problem.resources.len();
        let rate = |guest: usize| {
            let host = names.hosts.get(problem.initial[guest] as usize);
            let known = rates.iter().find(|(name, _)| Some(name) == host);
            known.map_or(RATE_UNKNOWN, |(_, rate)| *rate).clamp(1e3, 1e15)
        };
        let sends =
            |guest: usize| forecast(&compiled.traffic[guest], rate(guest)).map_or(f64::INFINITY, |of| of.seconds);
        let guests = 0..problem.guests.len();
        let stays: BTreeSet<&str> =
            cluster.guests.iter().filter(|guest| !guest.optimize).map(|guest| guest.name.as_str()).collect();
        let ids = (0..).zip(&names.guests).filter(|(_, name)| stays.contains(name.as_str()));
        let states = (0..).zip(&names.states).filter(|(_, state)| **state != HostState::Online);
        Seen {
            outlooks: guests.clone().map(|guest| (0..rows).map(|row| outlook(guest, row)).collect()).collect(),
            sends_s: guests.map(sends).collect(),
            pinned: ids.map(|(guest, _)| guest).collect(),
            closed: states.map(|(host, _)| host).collect(),
            now_s: now_ms / 1000,
        }
    }

    pub(crate) fn view<'a>(&'a self, compiled: &'a Compiled) -> View<'a> {
        View {
            problem: &compiled.problem,
            place_free: &compiled.names.place_free,
            outlooks: &self.outlooks,
            sends_s: &self.sends_s,
            pinned: &self.pinned,
            closed: &self.closed,
            now_s: self.now_s,
        }
    }
}
