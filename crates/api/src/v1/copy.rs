//! Tells how far the copy of a guest is, and over which paths the copy goes.

use std::fmt;

use serde::{Deserialize, Serialize};
use skein_network::{RdmaCounters, SentAndReceived};
use skein_units::{about_bytes, about_seconds, decimal};

use super::request::Transport;

/// Holds the bytes of a page.
const PAGE_BYTES: u64 = 4096;

/// How far the copy of a guest is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CopyProgress {
    /// The guest's RAM, in bytes.
    pub total_bytes: u64,
    /// The bytes that are left to send.
    pub remaining_bytes: u64,
    /// About how many bytes these take on the wire, in the first round, by samples of the guest's RAM: zeros take none,
    /// and what compresses takes less. `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_wire_bytes: Option<u64>,
    /// The bytes that were sent so far, over all rounds.
    pub transferred_bytes: u64,
    /// The number of the pass over the RAM, from 1.
    pub round: u64,
    /// The bytes that the guest dirtied a second in the last round. QEMU counts a page once in a round.
    pub dirty_bytes_per_s: u64,
    /// The bits sent a second, of late.
    pub bits_per_s: u64,
    /// Whether the copy converges, and when; `None`: not known.
    #[serde(default)]
    pub converges: Option<Convergence>,
    /// The per cent by which the guest is throttled for the copy.
    #[serde(default)]
    pub throttle_percent: u8,
    /// Where the bytes went; at the source only.
    #[serde(default)]
    pub pages: Option<PageFigures>,
}

impl CopyProgress {
    /// Returns the milliseconds until the guest is moved, or until its first round is over, as far as can be told.
    pub fn left_ms(&self) -> Option<u64> {
        let seconds = match self.converges {
            Some(Convergence::FirstRound { seconds } | Convergence::In { seconds }) => seconds,
            Some(Convergence::Never(_)) => return None,
            None if self.bits_per_s > 0 => self.remaining_bytes as f64 * 8.0 / self.bits_per_s as f64,
            None => return None,
        };
        Some((seconds * 1e3) as u64)
    }
}

/// The rates at which a guest writes and is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CopyRates {
    /// The bytes of pages that the guest writes a second, throttled as it is.
    pub dirties_bytes_per_s: u64,
    /// The bytes of the guest that are moved a second, however many they are on the wire.
    pub moves_bytes_per_s: u64,
}

impl fmt::Display for CopyRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |bytes: u64| decimal(bytes as f64, "B");
        write!(f, "dirties {}/s, moves {}/s", rate(self.dirties_bytes_per_s), rate(self.moves_bytes_per_s))
    }
}

/// Whether the copy of a guest converges. In words: `converges in about 12 s`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Convergence {
    /// What the guest writes is known when the first round is over.
    FirstRound {
        /// The seconds until the first round is over.
        seconds: f64,
    },
    /// The copy converges.
    In {
        /// The seconds until the guest is moved.
        seconds: f64,
    },
    /// The copy does not converge.
    Never(CopyRates),
}

impl fmt::Display for Convergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstRound { seconds } => write!(f, "first round over in about {}", about_seconds(*seconds)),
            Self::In { seconds } => write!(f, "converges in about {}", about_seconds(*seconds)),
            Self::Never(rates) => write!(f, "will not converge: {rates}"),
        }
    }
}

/// What became of a guest's pages on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PageFigures {
    /// The transport of the pages.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub transport: Transport,
    /// Whether the target's agent writes the pages into the guest's RAM itself, and both ends compare the RAM; `None`:
    /// not decided.
    pub direct: Option<bool>,
    /// The reason, in words, why the target's agent does not write the guest's RAM; empty if it does. If `direct` is
    /// true all the same, the agent writes smaller blocks than the guest's RAM.
    #[serde(default)]
    pub why_not_direct: String,
    /// The RAM that was not compared while the guest stood still, though without KVM QEMU may lose sight of what the
    /// guest writes there, and the reason, in words; empty: there is none.
    #[serde(default)]
    pub not_compared: String,
    /// The bytes of pages that were sent again because the guest wrote to them. QEMU sends each page once at first, so
    /// these are the bytes beyond the guest's RAM.
    #[serde(default)]
    pub again_bytes: u64,
    /// The counts of pages by kind. In JSON their fields stand beside the others.
    #[serde(flatten)]
    pub counts: PageCounts,
}

/// The counts of what became of a guest's pages at the source, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PageCounts {
    /// The pages that were sent, over all rounds: zero, packed, stored, unchanged or as deltas.
    pub pages: u64,
    /// The pages of zeros among those: next to nothing on the wire.
    pub zero_pages: u64,
    /// The pages that were compressed …
    pub packed_pages: u64,
    /// … and their bytes after compression, with those of the compressed deltas.
    pub packed_bytes: u64,
    /// The pages that went uncompressed.
    pub stored_pages: u64,
    /// The pages that NICs wrote straight into the target guest's RAM, over RDMA.
    #[serde(default)]
    pub written_pages: u64,
    /// The pages that the guest had written to and that hold what the target has: next to nothing on the wire.
    pub unchanged_pages: u64,
    /// The pages of which only the changed parts went …
    pub delta_pages: u64,
    /// … the bytes of these parts that went uncompressed, with what says where they belong …
    pub delta_bytes: u64,
    /// … and the bytes of these parts that were compressed, before compression.
    pub packed_delta_bytes: u64,
    /// The pages that were sent again because the target's copy differed.
    pub repaired_pages: u64,
    /// The pages that the guest had written to last and that QEMU missed. They were sent from the guest's RAM. (Without
    /// KVM only.)
    #[serde(default)]
    pub missed_pages: u64,
    /// The bytes that are no pages: headers, devices' state.
    pub other_bytes: u64,
    /// The bytes that the source's threads have copied from QEMU and between buffers, without those to the network.
    #[serde(skip_serializing_if = "is_zero")]
    pub copied_bytes: u64,
    /// The bytes that the target's threads have copied to and from the guest's RAM; left out where nothing goes over
    /// RDMA, as the target is not asked then.
    #[serde(skip_serializing_if = "is_zero")]
    pub target_copied_bytes: u64,
    /// The pages among the uncompressed for which there was no CPU in time.
    pub late_pages: u64,
    /// The microseconds of CPU that compressing took, of all threads.
    pub packing_us: u64,
    /// The level of zstd that most batches were compressed with; `None`: LZ4.
    pub zstd_level: Option<i32>,
    /// The microseconds from QEMU's last page until the target had said that it holds the same RAM. The guest stands
    /// still meanwhile, and the last pages' way to the target is included. `None`: nothing was compared, or not yet.
    pub compared_us: Option<u64>,
}

impl PageCounts {
    /// Returns the bytes of the pages in the guest.
    pub fn guest_bytes(&self) -> u64 {
        bytes(self.pages)
    }

    /// Returns how many of these bytes are zeros.
    pub fn zero_bytes(&self) -> u64 {
        bytes(self.zero_pages)
    }

    /// Returns the bytes that were compressed, before compression.
    pub fn unpacked_bytes(&self) -> u64 {
        bytes(self.packed_pages).saturating_add(self.packed_delta_bytes)
    }

    /// Returns the bytes of pages that went as deltas.
    pub fn changed_bytes(&self) -> u64 {
        bytes(self.delta_pages)
    }

    /// Returns the bytes of pages that were unchanged.
    pub fn unchanged_bytes(&self) -> u64 {
        bytes(self.unchanged_pages)
    }

    /// Returns the bytes that went uncompressed.
    pub fn stored_bytes(&self) -> u64 {
        bytes(self.stored_pages)
    }

    /// Returns the bytes that NICs wrote straight into the target guest's RAM.
    pub fn written_bytes(&self) -> u64 {
        bytes(self.written_pages)
    }

    /// Returns how many of these bytes had no CPU in time.
    pub fn late_bytes(&self) -> u64 {
        bytes(self.late_pages)
    }

    /// Returns the bytes that were sent again because the target's copy differed.
    pub fn repaired_bytes(&self) -> u64 {
        bytes(self.repaired_pages)
    }

    /// Returns the bytes of pages that QEMU missed.
    pub fn missed_bytes(&self) -> u64 {
        bytes(self.missed_pages)
    }

    /// Returns how many bytes a compressed byte on the wire stands for; `None`: nothing was compressed.
    pub fn ratio(&self) -> Option<f64> {
        (self.packed_bytes > 0).then(|| self.unpacked_bytes() as f64 / self.packed_bytes as f64)
    }

    /// Returns the bytes that pages and the rest took on the wire, without framing and encryption.
    pub fn wire_bytes(&self) -> u64 {
        let of_pages = self.packed_bytes.saturating_add(self.stored_bytes()).saturating_add(self.delta_bytes);
        of_pages.saturating_add(self.written_bytes()).saturating_add(self.other_bytes)
    }

    /// Returns the bytes on the wire for each byte of the guest; `None`: no page was sent yet.
    pub fn wire_per_guest_byte(&self) -> Option<f64> {
        (self.pages > 0).then(|| self.wire_bytes() as f64 / self.guest_bytes() as f64)
    }
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES)
}

/// Holds the [`PathView::note`] of a path that never carries data.
pub const EXCLUDED_PATH: &str = "carries no data: its network is excluded";

/// A path between the hosts of a migration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PathView {
    /// The NIC at this end.
    pub nic: String,
    /// The address at the other end.
    pub remote: String,
    /// Whether data goes over the path now.
    pub usable: bool,
    /// The bytes sent since the session began.
    pub sent_bytes: u64,
    /// The bits sent a second, of late.
    pub bits_per_s: u64,
    /// Why the path carries no data, in words; empty: it may carry data.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// How many connections for data the path is to have, and why, in words; empty: it carries none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub connections: String,
    /// How many of the connections for data go over RDMA; left out where none does.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rdma_connections: u32,
    /// What the RDMA device of the NIC at this end has carried since the path came to RDMA, by the device's own
    /// counters; left out where nothing goes over RDMA. A device's counters count all who use that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaCounters>,
}

/// Returns what an RDMA device has carried, in words: `mlx5_0: 1.2 GiB sent, 3 MiB received; priority 3: 1.2 GiB sent`.
pub fn rdma_words(counters: &RdmaCounters) -> String {
    let packets = |of: SentAndReceived| format!("{} packets sent, {} received", of.sent, of.received);
    let bytes = |of: SentAndReceived| format!("{} sent, {} received", about_bytes(of.sent), about_bytes(of.received));
    let all = counters.bytes.map(bytes).or_else(|| counters.packets.map(packets));
    let used = counters.priorities.iter().enumerate().filter(|(_, of)| of.sent > 0 || of.received > 0);
    let priorities = used.map(|(priority, of)| format!("priority {priority}: {}", bytes(*of)));
    let words: Vec<String> = all.into_iter().chain(priorities).collect();
    let words = if words.is_empty() { "counts nothing".into() } else { words.join("; ") };
    format!("{}: {words}", counters.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_the_sum_of_its_kinds() {
        let none = PageCounts::default();
        assert_eq!((none.wire_bytes(), none.wire_per_guest_byte(), none.ratio()), (0, None, None));
        let no_page = PageCounts { other_bytes: 11_457, ..none };
        assert_eq!((no_page.wire_bytes(), no_page.wire_per_guest_byte()), (11_457, None));
        let counts = PageCounts {
            pages: 15,
            zero_pages: 2,
            packed_pages: 5,
            packed_bytes: 4096,
            stored_pages: 3,
            unchanged_pages: 1,
            delta_pages: 4,
            delta_bytes: 2048,
            other_bytes: 1024,
            ..none
        };
        let whole = [counts.zero_bytes(), counts.unpacked_bytes(), counts.stored_bytes()];
        let kinds = whole.iter().chain(&[counts.unchanged_bytes(), counts.changed_bytes()]).sum::<u64>();
        assert_eq!(kinds, counts.guest_bytes());
        assert_eq!((counts.wire_bytes(), counts.ratio()), (4 * 4096 + 3072, Some(5.0)));
        assert_eq!(counts.wire_per_guest_byte(), Some(0.31666666666666665));
        let deltas = PageCounts { packed_delta_bytes: 4096, ..counts };
        assert_eq!(deltas.ratio(), Some(6.0), "packed together");
        // The counts may be anything that another agent says.
        let most = PageCounts { pages: u64::MAX, stored_pages: u64::MAX, packed_bytes: u64::MAX, ..none };
        assert_eq!((most.guest_bytes(), most.wire_bytes()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn what_an_rdma_device_counted_is_told_in_words() {
        let both = |sent, received| SentAndReceived { sent, received };
        let counters = RdmaCounters { device: "mlx5_0".into(), ..RdmaCounters::default() };
        assert_eq!(rdma_words(&counters), "mlx5_0: counts nothing");
        // Soft-RoCE counts packets only.
        let packets = RdmaCounters { packets: Some(both(30, 0)), ..counters.clone() };
        assert_eq!(rdma_words(&packets), "mlx5_0: 30 packets sent, 0 received");
        let bytes = RdmaCounters { bytes: Some(both(1_300_000_000, 3 << 20)), ..packets };
        assert_eq!(rdma_words(&bytes), "mlx5_0: 1.2 GiB sent, 3 MiB received", "bytes tell more than packets");
        let idle = RdmaCounters { bytes: Some(both(0, 0)), priorities: vec![both(0, 0); 8], ..bytes };
        assert_eq!(rdma_words(&idle), "mlx5_0: 0 KiB sent, 0 KiB received", "a priority without a byte is left out");
    }

    #[test]
    fn what_went_by_priority_is_told_of_those_that_were_used() {
        let both = |sent, received| SentAndReceived { sent, received };
        let mut priorities = vec![both(0, 0); 8];
        (priorities[0], priorities[3], priorities[7]) = (both(0, 4096), both(1 << 30, 0), both(1 << 20, 2 << 20));
        let bytes = Some(both(3 << 30, 0));
        let counters = RdmaCounters { device: "mlx5_0".into(), bytes, priorities, ..RdmaCounters::default() };
        let used = "priority 0: 0 KiB sent, 4 KiB received; priority 3: 1 GiB sent, 0 KiB received; \
                    priority 7: 1 MiB sent, 2 MiB received";
        assert_eq!(rdma_words(&counters), format!("mlx5_0: 3 GiB sent, 0 KiB received; {used}"));
        // The counts may be anything that a driver or another agent says.
        let most = RdmaCounters {
            bytes: Some(both(u64::MAX, u64::MAX)),
            packets: Some(both(u64::MAX, u64::MAX)),
            priorities: vec![both(u64::MAX, 0), both(0, u64::MAX)],
            ..counters
        };
        let (all, none) = ("16777216 TiB", "0 KiB");
        assert_eq!(
            rdma_words(&most),
            format!(
                "mlx5_0: {all} sent, {all} received; priority 0: {all} sent, {none} received; \
                 priority 1: {none} sent, {all} received"
            )
        );
        let packets = RdmaCounters { bytes: None, priorities: Vec::new(), ..most };
        assert_eq!(rdma_words(&packets), format!("mlx5_0: {0} packets sent, {0} received", u64::MAX));
    }
}
