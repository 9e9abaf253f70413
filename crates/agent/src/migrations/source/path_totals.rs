//! Adds up what each path carried during a copy. Pure.

use std::collections::BTreeMap;

use skein_api::{PATHS_CARRIED, rdma_words};
use skein_network::RdmaCounters;
use skein_units::about_bytes;

use super::links::PathSample;

/// Bounds the paths that are followed.
const PATHS_MAX: usize = 16;

/// What a path carried.
#[derive(Debug, Default)]
struct PathTotal {
    bytes: u64,
    /// The bytes that had been sent when the path was last looked at.
    sent_bytes: u64,
    was_over_rdma: bool,
    /// What the RDMA device had carried when the path was first seen to go over RDMA, and when it was last seen.
    rdma: Option<(RdmaCounters, RdmaCounters)>,
}

/// What each path carried, by its NIC and its far address.
#[derive(Debug, Default)]
pub(super) struct PathTotals(BTreeMap<(String, String), PathTotal>);

impl PathTotals {
    /// Takes in the paths as they are now.
    pub(super) fn look(&mut self, paths: &[PathSample]) {
        for path in paths {
            let key = (path.nic.clone(), path.remote.clone());
            if self.0.len() == PATHS_MAX && !self.0.contains_key(&key) {
                continue;
            }
            let first = || PathTotal { sent_bytes: path.sent_bytes, ..PathTotal::default() };
            let total = self.0.entry(key).or_insert_with(first);
            // A session that is new counts from zero.
            let since = path.sent_bytes.checked_sub(total.sent_bytes).unwrap_or(path.sent_bytes);
            total.bytes = total.bytes.saturating_add(since);
            total.sent_bytes = path.sent_bytes;
            total.was_over_rdma |= path.is_over_rdma;
            if let Some(now) = &path.rdma {
                let (_, last) = total.rdma.get_or_insert_with(|| (now.clone(), now.clone()));
                last.clone_from(now);
            }
        }
    }

    /// Returns a line for the event log; `None`: nothing was carried.
    pub(super) fn told(&self) -> Option<String> {
        let carried = self.0.iter().filter(|(_, total)| total.bytes > 0 || total.was_over_rdma);
        let words = carried.map(|((nic, remote), total)| {
            let over = match (&total.rdma, total.was_over_rdma) {
                (Some((first, last)), _) => format!(", over RDMA ({})", rdma_words(&last.since(first))),
                (None, true) => ", over RDMA".into(),
                (None, false) => String::new(),
            };
            format!("{nic} > {remote} {}{over}", about_bytes(total.bytes))
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
    fn what_was_sent_before_does_not_count_and_a_new_session_does() {
        let mut totals = PathTotals::default();
        assert_eq!(totals.told(), None);
        for sent in [100 * MIB, 150 * MIB, 10 * MIB, 30 * MIB] {
            totals.look(&[path("eth0", sent), path("eth1", 7)]);
        }
        assert_eq!(totals.told().as_deref(), Some("paths carried: eth0 > 10.0.0.2 80 MiB"));
    }

    #[test]
    fn what_went_over_rdma_is_what_the_device_counted_meanwhile() {
        let rdma = |sent| {
            let bytes = Some(SentAndReceived { sent, received: 0 });
            Some(RdmaCounters { device: "mlx5_0".into(), bytes, ..RdmaCounters::default() })
        };
        let over = |rdma| PathSample { is_over_rdma: true, rdma, ..path("eth0", MIB) };
        let mut totals = PathTotals::default();
        totals.look(&[path("eth0", 0), PathSample { nic: "eth1".into(), ..over(None) }]);
        totals.look(&[over(rdma(5 * MIB))]);
        totals.look(&[over(rdma(9 * MIB))]);
        totals.look(&[PathSample { rdma: None, ..over(None) }]);
        assert_eq!(
            totals.told().as_deref(),
            Some(
                "paths carried: eth0 > 10.0.0.2 1 MiB, over RDMA (mlx5_0: 4 MiB sent, 0 KiB received); \
                 eth1 > 10.0.0.2 0 KiB, over RDMA"
            )
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
