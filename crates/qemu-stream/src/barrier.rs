//! Barriers: which of two records of one page is the newer.

use crate::main_channel::{Barrier, MainItem};
use crate::multifd::Packet;

/// Counts the barriers of one connection, the main channel or a multifd channel. Their number is the **version** of the
/// pages that come next there: of two records of one page, on whichever connections, the one with the higher version is
/// the newer. That is what the target's QEMU keeps, too: at a barrier it reads on nowhere before it has read everything
/// before it everywhere (`multifd_recv_sync_main`).
///
/// # What a barrier is
///
/// On a multifd channel a packet with SYNC; before QEMU 9.0 it may have pages, which are *before* the barrier
/// (`multifd_recv_thread`).
///
/// On main, by the machine type (`multifd-flush-after-each-section`, on up to 8.0, in `hw_compat_8_0`):
///
/// | multifd | machine type | barrier |
/// |---|---|---|
/// | yes | 8.1 and later | each MULTIFD_FLUSH, one for a scan of all RAM (`find_dirty_block`) |
/// | yes | 8.0 and earlier | each EOS, one for a section |
/// | no | any | each EOS; with QEMU 8.1 and machine types from 8.1 on, each MULTIFD_FLUSH, which it sends needlessly |
///
/// A machine type's name does not always tell (distributions have their own), but the stream does: the first section of
/// `ram`, which has no pages, ends with `MULTIFD_FLUSH EOS` in the one case and with `EOS` in the other
/// (`ram_save_setup`). So the first such word is the kind that counts ([`Barriers::by`]).
///
/// # Why a page is taken once between two of them
///
/// Read in `migration/ram.c` and `multifd.c` of QEMU 7.2 and 10.0. A page is taken when its dirty bit is cleared, and
/// the bits are set again only by a sync with KVM's or TCG's log (`migration_bitmap_sync`). No sync happens within a
/// section: `ram_save_iterate` holds the bitmap's lock. A scan of all RAM may see a sync, between two of its sections;
/// but it only moves forward, so what it has passed comes again after the flush at the end of RAM. The channels'
/// threads keep to it: whoever sets SYNC waits until each channel has written it, and with it all pages before.
///
/// The exceptions:
///
/// - Before QEMU 9.0, `multifd_queue_page` may queue a page twice: as the last of a full packet, and again as the first
///   of the next, on any channel, if the first was sent before it looked whether it was full (seen at most packets of
///   7.2). So **two records of one page may have the same version**, and their contents may differ. Either may be kept,
///   and the other dropped: the guest wrote between them, after the dirty bit was cleared, so the page comes again with
///   a higher version; and not at the end, when the guest stands still.
/// - With the old capability `compress`, before 9.1, a page may be written to main a section later than it was taken,
///   but before it is taken again (`flush_compressed_data`). So two records of it may have one version there; the later
///   is the newer.
/// - When a RAM block is added or removed in the middle of a scan, `ram_state_reset` begins it anew without a barrier.
///   QEMU itself does not order the channels' pages then. Plugging in memory is refused during a migration.
///
/// # At the end
///
/// At [`MainItem::RamEnd`], main and all channels have the same count. Except with QEMU 9.0 to 9.2 and
/// [`Barrier::Flush`]: each channel then ends with one SYNC for which main has no word (QEMU's change "Further remove
/// the SYNC on complete", for 10.0, says so, and why it did no harm). No page follows it. So all pages before the end
/// have been seen when each channel's count is **at least** main's.
///
/// In postcopy all this ends: pages are sent as the target asks for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Barriers {
    count: u64,
    by: Option<Barrier>,
}

impl Barriers {
    /// Returns the counter at the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many barriers there were: the version of a page that comes now.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns which words of the main channel are barriers. `None`: the first section of `ram` has not told yet.
    pub fn by(&self) -> Option<Barrier> {
        self.by
    }

    /// Counts an item of the main channel.
    pub fn item(&mut self, item: &MainItem) {
        let word = match item {
            MainItem::Barrier(word) => *word,
            MainItem::RamEnd => Barrier::EndOfSection,
            _ => return,
        };
        self.count += u64::from(*self.by.get_or_insert(word) == word);
    }

    /// Counts a packet of a multifd channel. The packet's own pages have the version from before it.
    pub fn packet(&mut self, packet: &Packet) {
        self.count += u64::from(packet.is_sync());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::main_channel::Opaque;

    fn counts(items: &[MainItem]) -> Vec<u64> {
        let mut barriers = Barriers::new();
        let count = |item| {
            barriers.item(item);
            barriers.count()
        };
        items.iter().map(count).collect()
    }

    #[test]
    fn the_first_section_says_which_words_count() {
        let (flush, end) = (MainItem::Barrier(Barrier::Flush), MainItem::Barrier(Barrier::EndOfSection));
        let page = MainItem::Zero { block: 0, offset: 0, named: true };
        let opaque = MainItem::Opaque(Opaque::End);
        let rounds =
            [&flush, &end, &page, &end, &page, &flush, &end, &flush, &MainItem::RamEnd, &opaque].map(MainItem::clone);
        assert_eq!(counts(&rounds), [1, 1, 1, 1, 1, 2, 2, 3, 3, 3]);
        let sections = [&MainItem::Blocks, &end, &page, &end, &page, &MainItem::RamEnd].map(MainItem::clone);
        assert_eq!(counts(&sections), [0, 1, 1, 2, 2, 3]);
    }
}
