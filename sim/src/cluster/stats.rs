//! What runs came to, for reports.

use std::collections::BTreeMap;

/// What a run came to, or several.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub actions: u64,
    pub virtual_ns: u64,
    /// How often each kind of fault happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// How many migrations ended in each way.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// The bytes of guests' memory that arrived whole.
    pub bytes: u64,
    /// How many alarms there were of guests in doubt.
    pub in_doubt: u64,
    /// The longest time that a guest was stopped though its QEMUs lived.
    pub stopped_max_ns: u64,
}

impl Stats {
    pub fn add(&mut self, other: &Stats) {
        self.actions += other.actions;
        self.virtual_ns += other.virtual_ns;
        self.bytes += other.bytes;
        self.in_doubt += other.in_doubt;
        self.stopped_max_ns = self.stopped_max_ns.max(other.stopped_max_ns);
        for (sum, of) in [(&mut self.faults, &other.faults), (&mut self.outcomes, &other.outcomes)] {
            of.iter().for_each(|(what, count)| *sum.entry(what).or_default() += count);
        }
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |of: &BTreeMap<&'static str, u64>| {
            of.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
        };
        let hours = self.virtual_ns as f64 / 3.6e12;
        writeln!(
            f,
            "{hours:.2} virtual hours, {} actions, {} MB of guests moved",
            self.actions,
            self.bytes / 1_000_000
        )?;
        writeln!(f, "migrations: {}; alarms {}", list(&self.outcomes), self.in_doubt)?;
        writeln!(f, "longest stop of a guest: {:.3} s", self.stopped_max_ns as f64 / 1e9)?;
        write!(f, "faults: {}", list(&self.faults))
    }
}
