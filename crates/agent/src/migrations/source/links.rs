//! Measures how full the links are that a copy takes. Pure.

use std::collections::BTreeSet;

use skein_network::RdmaCounters;

/// Links are full if they carry at least this share of what they can.
const FULL_LINK_SHARE: f64 = 0.6;
/// The weight of a new sample in the average of what the links carry.
const CARRIED_DECAY_SHARE: f64 = 0.1;

/// A path to the target, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathSample {
    /// The name of this host's NIC.
    pub(super) nic: String,
    /// The address at the other end.
    pub(super) remote: String,
    /// The port at the other end, and the path's number in its session.
    pub(super) remote_port: u16,
    pub(super) number: u32,
    /// How many connections the path is to have, and why, in words; empty: not known.
    pub(super) connections: String,
    /// Whether the path may carry bulk.
    pub(super) is_usable: bool,
    /// The bits a second that the path carried recently; `None`: not known yet.
    pub(super) carried_bits_per_s: Option<u64>,
    /// The bytes sent over the path so far.
    pub(super) sent_bytes: u64,
    /// Whether data goes over RDMA.
    pub(super) is_over_rdma: bool,
    /// What the RDMA device has carried, where the path goes over RDMA and the device counts that.
    pub(super) rdma: Option<RdmaCounters>,
    /// The bytes received over the path so far.
    pub(super) received_bytes: u64,
    /// The bytes on the way.
    pub(super) inflight_bytes: u64,
}

/// What the links that carry a copy do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkUse {
    /// The number of NICs that carry the copy.
    pub(super) nics: u32,
    /// Whether the NICs carry nearly what they can.
    pub(super) is_full: bool,
}

/// Watches the links from sample to sample.
#[derive(Debug, Default)]
pub(super) struct LinkWatch {
    /// The average of what the paths carry.
    carried_bits_per_s: f64,
    nics: BTreeSet<String>,
    /// The bits a second that the NICs say they can carry; `None`: not all of them say.
    nics_bits_per_s: Option<f64>,
}

impl LinkWatch {
    /// Takes in the paths as they are now. `speed` returns what NICs can carry together. It is called if the NICs are
    /// others than before.
    pub(super) fn sample(
        &mut self,
        paths: &[PathSample],
        speed: impl FnOnce(&BTreeSet<String>) -> Option<f64>,
    ) -> LinkUse {
        let usable = || paths.iter().filter(|path| path.is_usable);
        let carried: u64 = usable().filter_map(|path| path.carried_bits_per_s).sum();
        self.carried_bits_per_s += (carried as f64 - self.carried_bits_per_s) * CARRIED_DECAY_SHARE;
        let nics: BTreeSet<String> = usable().map(|path| path.nic.clone()).collect();
        if nics != self.nics {
            self.nics_bits_per_s = speed(&nics);
            self.nics = nics;
        }
        // Virtual NICs have no speed. They count as full.
        let is_full = self.nics_bits_per_s.is_none_or(|speed| self.carried_bits_per_s >= FULL_LINK_SHARE * speed);
        LinkUse { nics: self.nics.len() as u32, is_full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(nic: &str, mbit: u64) -> PathSample {
        PathSample {
            nic: nic.into(),
            is_usable: true,
            carried_bits_per_s: Some(mbit * 1_000_000),
            ..PathSample::default()
        }
    }

    #[test]
    fn links_are_full_when_they_carry_most_of_what_they_can_for_a_while() {
        let mut watch = LinkWatch::default();
        let paths = [path("a", 900), path("a", 0), PathSample { is_usable: false, ..path("b", 900) }];
        let mut asked = 0;
        let mut looks = 0;
        let full = loop {
            looks += 1;
            let links = watch.sample(&paths, |nics| {
                asked += 1;
                assert_eq!(nics.iter().collect::<Vec<_>>(), ["a"]);
                Some(1e9)
            });
            assert_eq!(links.nics, 1);
            if links.is_full || looks == 50 {
                break links.is_full;
            }
        };
        assert_eq!((full, looks, asked), (true, 11, 1), "one burst is none");
        let more = [path("a", 900), path("b", 0)];
        assert_eq!(watch.sample(&more, |_| Some(2e9)), LinkUse { nics: 2, is_full: false });
        assert_eq!(watch.sample(&more[..1], |_| None), LinkUse { nics: 1, is_full: true }, "nobody knows");
    }
}
