//! How busy hosts and VMs were in the last hours: a bounded ring for each, in memory. Pure.

use std::collections::{BTreeMap, VecDeque};

use skein_api::cluster::{History, UnixMs};
use skein_api::{HostLoad, VmLoad};

/// The milliseconds from one value of a host to the next.
pub(crate) const HOST_STEP_MS: u64 = 60_000;
/// A VM has a value as often: there are twenty times as many.
pub(crate) const VM_STEP_MS: u64 = 5 * HOST_STEP_MS;
/// How long values are kept, in milliseconds.
const KEPT_MS: u64 = 6 * 3_600_000;
const SERIES: [&str; 6] = [
    "cpu_millicores",
    "ram_used_bytes",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "net_receive_bytes_per_s",
    "net_send_bytes_per_s",
];

type Values = [f32; SERIES.len()];

/// How busy hosts and VMs were.
#[derive(Debug, Default)]
pub(crate) struct LoadHistory {
    hosts: Rings,
    vms: Rings,
}

#[derive(Debug, Default)]
struct Rings {
    /// The time of the newest values.
    until: UnixMs,
    rings: BTreeMap<String, VecDeque<Option<Values>>>,
}

impl LoadHistory {
    /// Returns whether hosts, and whether VMs, are to be noted now.
    pub(crate) fn are_due(&self, now: UnixMs) -> (bool, bool) {
        // Without any value a note is due as soon as anybody reports.
        let is_due = |rings: &Rings, step_ms| {
            rings.rings.is_empty() || now.0.saturating_sub(rings.until.0) >= step_ms || now < rings.until
        };
        (is_due(&self.hosts, HOST_STEP_MS), is_due(&self.vms, VM_STEP_MS))
    }

    /// Notes how busy hosts are: all that report.
    pub(crate) fn note_hosts(&mut self, now: UnixMs, loads: impl IntoIterator<Item = (String, HostLoad)>) {
        let used = |of: &HostLoad| of.ram_bytes.saturating_sub(of.ram_available_bytes);
        let values = |of: HostLoad| {
            let numbers = [
                of.cpu_millicores,
                used(&of),
                of.disk_read_bytes_per_s,
                of.disk_write_bytes_per_s,
                of.net_receive_bytes_per_s,
                of.net_send_bytes_per_s,
            ];
            numbers.map(|number| number as f32)
        };
        self.hosts.note(now, HOST_STEP_MS, loads.into_iter().map(|(name, load)| (name, values(load))));
    }

    /// Notes how busy VMs are: all whose guests run.
    pub(crate) fn note_vms(&mut self, now: UnixMs, loads: impl IntoIterator<Item = (String, VmLoad)>) {
        let values = |of: VmLoad| {
            let numbers = [
                of.cpu_millicores,
                of.ram_bytes,
                of.disk_read_bytes_per_s,
                of.disk_write_bytes_per_s,
                of.net_receive_bytes_per_s,
                of.net_send_bytes_per_s,
            ];
            numbers.map(|number| number as f32)
        };
        self.vms.note(now, VM_STEP_MS, loads.into_iter().map(|(name, load)| (name, values(load))));
    }

    pub(crate) fn host(&self, name: &str) -> History {
        self.hosts.history(name, HOST_STEP_MS)
    }

    pub(crate) fn vm(&self, name: &str) -> History {
        self.vms.history(name, VM_STEP_MS)
    }
}

impl Rings {
    fn note(&mut self, now: UnixMs, step_ms: u64, values: impl Iterator<Item = (String, Values)>) {
        let most = (KEPT_MS / step_ms) as usize;
        // Steps that nobody noted, as the controller was busy or its clock was set, are unknown.
        let steps = (now.0.saturating_sub(self.until.0) / step_ms).clamp(1, most as u64) as usize;
        let is_first = self.rings.is_empty();
        for ring in self.rings.values_mut() {
            ring.extend(std::iter::repeat_n(None, if is_first { 1 } else { steps }));
        }
        for (name, values) in values {
            let ring = self.rings.entry(name).or_insert_with(|| VecDeque::from([None]));
            if let Some(last) = ring.back_mut() {
                *last = Some(values);
            }
        }
        self.rings.values_mut().for_each(|ring| drop(ring.drain(..ring.len().saturating_sub(most))));
        // What is gone for hours is forgotten.
        self.rings.retain(|_, ring| ring.iter().any(Option::is_some));
        self.until = now;
    }

    fn history(&self, name: &str, step_ms: u64) -> History {
        let ring = self.rings.get(name);
        let series = |(nth, series): (usize, &&str)| {
            let values = ring.into_iter().flatten().map(|values| values.map(|values| values[nth]));
            ((*series).to_owned(), values.collect())
        };
        History { step_ms, until: self.until, series: SERIES.iter().enumerate().map(series).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(cpu_millicores: u64) -> HostLoad {
        HostLoad { cpu_millicores, ram_bytes: 10, ram_available_bytes: 4, ..HostLoad::default() }
    }

    fn at(minute: u64) -> UnixMs {
        UnixMs(1_700_000_000_000 + minute * HOST_STEP_MS)
    }

    #[test]
    fn values_stand_at_their_minutes_and_gaps_are_unknown() {
        let mut history = LoadHistory::default();
        assert_eq!(history.are_due(at(0)), (true, true));
        history.note_hosts(at(0), []);
        assert_eq!(history.are_due(at(0)), (true, true), "nobody reports yet");
        history.note_hosts(at(0), [("a".into(), load(1))]);
        assert_eq!(history.are_due(at(0)), (false, true));
        history.note_hosts(at(1), [("a".into(), load(2)), ("b".into(), load(9))]);
        // Two minutes were missed, and b does not report.
        history.note_hosts(at(4), [("a".into(), load(3))]);
        let a = history.host("a");
        assert_eq!((a.step_ms, a.until), (HOST_STEP_MS, at(4)));
        assert_eq!(a.series["cpu_millicores"], [Some(1.0), Some(2.0), None, None, Some(3.0)]);
        assert_eq!(a.series["ram_used_bytes"].last(), Some(&Some(6.0)));
        assert_eq!(history.host("b").series["cpu_millicores"], [Some(9.0), None, None, None]);
        assert!(history.host("c").series["cpu_millicores"].is_empty());
        assert_eq!(history.vm("a").step_ms, VM_STEP_MS);
    }

    #[test]
    fn no_more_than_hours_are_kept_and_what_is_gone_is_forgotten() {
        let mut history = LoadHistory::default();
        history.note_hosts(at(0), [("gone".into(), load(1))]);
        (1..1000).for_each(|minute| history.note_hosts(at(minute), [("a".into(), load(minute))]));
        assert_eq!(history.host("a").series["cpu_millicores"].len(), 360);
        assert!(history.host("gone").series["cpu_millicores"].is_empty() && history.hosts.rings.len() == 1);
        // A clock that was set back or far ahead.
        history.note_hosts(at(3), [("a".into(), load(1))]);
        assert_eq!(history.host("a").until, at(3));
        history.note_hosts(at(1_000_000), [("a".into(), load(7))]);
        let values = &history.host("a").series["cpu_millicores"];
        assert_eq!((values.len(), values.iter().flatten().count()), (360, 1));
    }
}
