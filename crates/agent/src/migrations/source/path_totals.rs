//! Adds up what each path carried during a copy. Pure.

use std::collections::BTreeMap;

use skein_api::{PATHS_CARRIED, rdma_words};
use skein_network::RdmaCounters;
use skein_units::about_bytes;

use super::links::PathSample;

/// Bounds the paths that are followed.
const PATHS_MAX: usize = 32;

/// What a path carried.
#[derive(Debug, Default)]
struct PathTotal {
    bytes: u64,
    /// How many of these while the path's data went over RDMA.
    rdma_bytes: u64,
    /// The bytes that had been sent when the path was last looked at.
    sent_bytes: u64,
    /// What the RDMA device had carried when the path was first seen to go over RDMA, and when it was last seen.
    rdma: Option<(RdmaCounters, RdmaCounters)>,
}

/// A path of a session: its NIC, its far address and port, and its number. Two hosts may have a session each.
type Key = (String, String, u16, u32);

/// What each path carried.
#[derive(Debug, Default)]
pub(super) struct PathTotals(BTreeMap<Key, PathTotal>);

impl PathTotals {
    /// Takes in the paths as they are now.
    pub(super) fn look(&mut self, paths: &[PathSample]) {
        for path in paths {
            let key = (path.nic.clone(), path.remote.clone(), path.remote_port, path.number);
            if self.0.len() == PATHS_MAX && !self.0.contains_key(&key) {
                continue;
            }
            let first = || PathTotal { sent_bytes: path.sent_bytes, ..PathTotal::default() };
            let total = self.0.entry(key).or_insert_with(first);
            // What is less than before is of a session that is new.
            let since = path.sent_bytes.saturating_sub(total.sent_bytes);
            total.bytes = total.bytes.saturating_add(since);
            if path.is_over_rdma {
                total.rdma_bytes = total.rdma_bytes.saturating_add(since);
            }
            total.sent_bytes = path.sent_bytes;
            if let Some(now) = &path.rdma {
                let (_, last) = total.rdma.get_or_insert_with(|| (now.clone(), now.clone()));
                last.clone_from(now);
            }
        }
    }

    /// Returns a line for the event log; `None`: nothing was carried.
    pub(super) fn told(&self) -> Option<String> {
        let mut sums = BTreeMap::<(&str, &str), (u64, u64, Option<RdmaCounters>)>::new();
        for ((nic, remote, ..), total) in &self.0 {
            let (bytes, rdma_bytes, rdma) = sums.entry((nic, remote)).or_default();
            *bytes = bytes.saturating_add(total.bytes);
            *rdma_bytes = rdma_bytes.saturating_add(total.rdma_bytes);
            if let Some((first, last)) = &total.rdma {
                rdma.get_or_insert_with(|| last.since(first));
            }
        }
        let carried = sums.into_iter().filter(|(_, (bytes, ..))| *bytes > 0);
        let words = carried.map(|((nic, remote), (bytes, rdma_bytes, rdma))| {
            let device = rdma.map(|counters| format!(" ({})", rdma_words(&counters))).unwrap_or_default();
            let over = match rdma_bytes {
                0 => String::new(),
                rdma_bytes => format!(", {} of that over RDMA{device}", about_bytes(rdma_bytes)),
            };
            format!("{nic} > {remote} {}{over}", about_bytes(bytes))
        });
        let words: Vec<String> = words.collect();
        (!words.is_empty()).then(|| format!("{PATHS_CARRIED}{}", words.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use skein_network::SentAndReceived;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn path(nic: &str, sent_bytes: u64) -> PathSample {
        PathSample { nic: nic.into(), remote: "10.0.0.2".into(), sent_bytes, ..PathSample::default() }
    }

    #[test]
    fn what_was_sent_before_does_not_count_nor_that_of_another_session() {
        let mut totals = PathTotals::default();
        assert_eq!(totals.told(), None);
        // Each host has dialled the other: the paths have the same NICs and addresses, and their own counts.
        for sent in [100, 150, 170] {
            let other = PathSample { remote_port: 7070, is_over_rdma: true, ..path("eth0", 900 * MIB) };
            totals.look(&[path("eth0", sent * MIB), other, path("eth1", 7)]);
        }
        assert_eq!(totals.told().as_deref(), Some("paths carried: eth0 > 10.0.0.2 70 MiB"));
        // A session that begins anew counts from there.
        totals.look(&[path("eth0", 10 * MIB)]);
        totals.look(&[path("eth0", 30 * MIB)]);
        assert_eq!(totals.told().as_deref(), Some("paths carried: eth0 > 10.0.0.2 90 MiB"));
    }

    #[test]
    fn what_went_over_rdma_is_told_with_what_the_device_counted_meanwhile() {
        let rdma = |sent| {
            let bytes = Some(SentAndReceived { sent, received: 0 });
            Some(RdmaCounters { device: "mlx5_0".into(), bytes, ..RdmaCounters::default() })
        };
        let over = |sent, rdma| PathSample { is_over_rdma: true, rdma, ..path("eth0", sent * MIB) };
        let mut totals = PathTotals::default();
        totals.look(&[path("eth0", 0)]);
        totals.look(&[path("eth0", 2 * MIB)]);
        totals.look(&[over(6, rdma(5 * MIB))]);
        totals.look(&[over(10, rdma(9 * MIB))]);
        totals.look(&[path("eth0", 11 * MIB)]);
        assert_eq!(
            totals.told().as_deref(),
            Some("paths carried: eth0 > 10.0.0.2 11 MiB, 8 MiB of that over RDMA (mlx5_0: 4 MiB sent, 0 KiB received)")
        );
    }

    #[test]
    fn paths_are_bounded() {
        let mut totals = PathTotals::default();
        for n in 0..100 {
            totals.look(&[path(&format!("eth{n}"), 0)]);
        }
        assert_eq!(totals.0.len(), PATHS_MAX);
    }
}
