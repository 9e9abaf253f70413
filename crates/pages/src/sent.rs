//! What the source has sent of each page, and what the target needs of it next.
//!
//! Besides the [`Ledger`] that both ends have, a source that sends [deltas](crate::delta) stores hashes of the parts of
//! pages, as far as its memory allows. It may also **hold back** pages that the guest writes anew again and again: see
//! [`SentPages::set_held_pages_max`]. If the target has kept the guest's RAM of an earlier trip, pages are built on
//! that.
//!
//! With hashes of all pages this costs 149 bytes for a page of 4096 (3.6 %), for regions that have any page but
//! untouched zeros. [`ledger`](crate::ledger) explains the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::delta::DeltaHead;
use crate::held::HeldPages;
use crate::kept::KeptPages;
use crate::ledger::{Ledger, LedgerError, RegionGuard};
use crate::mark::Key;
use crate::page::{REGION_PAGES, VERSION_KEPT};
use crate::region::{Region, RegionId};
use crate::sketch::{self, SKETCHES_BYTES, Sketches};

/// What the target needs of a page that QEMU has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToSend {
    /// Nothing: this version or a newer one was sent before.
    Nothing,
    /// Nothing for now, because the page is held back. The target is told that the page is what it has.
    Hold(DeltaHead),
    /// What changed of the page. A delta without parts means that the target has the same.
    Delta(DeltaHead),
    /// The whole page.
    Whole {
        /// The version before this one that was sent, if there was one.
        before: Option<u32>,
        /// The mark of the page.
        mark: u128,
    },
}

/// Which pages are hashed, so that a delta can be made when they are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashing {
    /// Pages that are sent again. Hashing takes CPU, and most pages are sent once.
    OnlyResent,
    /// Pages that are sent for the first time, too: there is time to hash them.
    Ahead,
}

/// What the source has sent of each page. Threads may share this; each region has a lock.
pub struct SentPages {
    ledger: Ledger,
    deltas: Option<DeltaMemory>,
    kept: Option<KeptPages>,
}

/// What is needed to make deltas.
struct DeltaMemory {
    /// The seed of the hashes.
    seed: u64,
    /// How many more bytes hashes may take.
    left: AtomicU64,
    /// Whether hashes may take as much as all pages need. Then it need not show first which pages are written again.
    is_enough: bool,
    held: HeldPages,
}

impl DeltaMemory {
    /// Takes memory for the hashes of one more region. Returns whether there was enough.
    fn take(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(SKETCHES_BYTES)).is_ok()
    }
}

/// A page as QEMU has sent it.
struct NewPage<'a> {
    block: u16,
    number: u32,
    version: u32,
    /// The content. `None`: zeros.
    content: Option<&'a [u8]>,
}

impl SentPages {
    /// Returns a record of blocks with so many pages each, none of which was sent yet. All pages go whole.
    pub fn new(key: &Key, blocks: impl IntoIterator<Item = u32>) -> SentPages {
        SentPages { ledger: Ledger::new(key, blocks), deltas: None, kept: None }
    }

    /// Makes deltas, for which hashes may take at most `bytes_max` bytes.
    pub fn with_deltas(mut self, bytes_max: u64) -> SentPages {
        self.deltas = Some(DeltaMemory {
            seed: self.ledger.keyed_number(u32::MAX) as u64,
            left: AtomicU64::new(bytes_max),
            is_enough: bytes_max >= self.ledger.regions() as u64 * SKETCHES_BYTES,
            held: HeldPages::default(),
        });
        self
    }

    /// Builds on what the target kept. `marks`: the marks of the kept pages, made under the same key.
    pub fn with_kept(mut self, marks: Arc<Ledger>) -> SentPages {
        self.kept = Some(KeptPages::new(marks));
        self
    }

    /// Returns what both ends know of the pages.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns whether deltas are made.
    pub fn has_deltas(&self) -> bool {
        self.deltas.is_some()
    }

    /// Returns whether pages are built on what the target keeps.
    pub fn builds_on_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Stops building pages on what the target kept.
    pub fn doubt_kept(&self) {
        self.kept.iter().for_each(KeptPages::doubt);
    }

    /// Sets how many pages may be held back at most.
    pub fn set_held_pages_max(&self, pages: u64) {
        self.deltas.iter().for_each(|deltas| deltas.held.set_most(pages));
    }

    /// Returns how many pages are held back now.
    pub fn held_pages(&self) -> u64 {
        self.deltas.as_ref().map_or(0, |deltas| deltas.held.now())
    }

    /// Returns how many times a page was not sent because it was held back, over all rounds.
    pub fn held_back_pages(&self) -> u64 {
        self.deltas.as_ref().map_or(0, |deltas| deltas.held.spared())
    }

    /// Returns all pages that are held back, by region, and stops holding pages for good.
    pub fn release(&self) -> Vec<(RegionId, Vec<u32>)> {
        self.set_held_pages_max(0);
        let release = |(id, mut region): (RegionId, RegionGuard<'_>)| {
            let held = region.held.clone();
            let pages = held.into_iter().filter(|nth| region.release(usize::from(*nth)));
            let pages: Vec<u32> = pages.map(|nth| id.region * REGION_PAGES as u32 + u32::from(nth)).collect();
            (!pages.is_empty()).then_some((id, pages))
        };
        let released: Vec<_> = self.ledger.known().filter_map(release).collect();
        self.deltas.iter().for_each(|deltas| deltas.held.clear());
        released
    }

    /// Notes pages that QEMU has sent, with their contents (`None`: zeros). Returns what the target needs of each page;
    /// an empty list without [deltas](Self::with_deltas), because all pages go whole then.
    ///
    /// # Errors
    /// There is no such page.
    pub fn note_and_diff<'a>(
        &self,
        block: u16,
        version: u32,
        pages: impl IntoIterator<Item = (u32, Option<&'a [u8]>)>,
        hashing: Hashing,
    ) -> Result<Vec<ToSend>, LedgerError> {
        let Some(deltas) = &self.deltas else {
            return self.ledger.note_whole_pages(block, version, pages).map(|()| Vec::new());
        };
        let mut to_send = Vec::new();
        self.ledger.each(block, pages, |region, nth, number, content| {
            let page = NewPage { block, number, version, content };
            to_send.push(self.note_page(deltas, region, nth, &page, hashing));
        })?;
        Ok(to_send)
    }

    /// Returns whether a version of each of these pages is still the newest that was noted.
    ///
    /// # Errors
    /// There is no such page.
    pub fn are_newest(
        &self,
        block: u16,
        version: u32,
        pages: impl IntoIterator<Item = u32>,
    ) -> Result<bool, LedgerError> {
        let mut are_newest = true;
        self.ledger.each(block, pages.into_iter().map(|page| (page, None)), |region, nth, _, _| {
            are_newest &= region.version(nth) == Some(version);
        })?;
        Ok(are_newest)
    }

    /// Notes the nth page of a region.
    fn note_page(
        &self,
        deltas: &DeltaMemory,
        region: &mut Region,
        nth: usize,
        page: &NewPage<'_>,
        hashing: Hashing,
    ) -> ToSend {
        // A version that is not sent must not become the base of a delta.
        if !region.is_newer(nth, page.version) {
            return ToSend::Nothing;
        }
        if region.is_held(nth)
            && let Some(head) = deltas.held.hold_on(region, nth, page.version)
        {
            return ToSend::Hold(head);
        }
        let mark = self.ledger.mark(page.block, page.number, page.content);
        let before = region.version(nth);
        let is_same = before.is_some() && region.mark(nth) == mark;
        let is_kept = before.is_none() && self.is_kept(page, mark);
        let base = before.or(is_kept.then_some(VERSION_KEPT));
        let known = region.sketches.as_ref().and_then(|sketches| sketches.get(nth));
        let mut changed = (is_same || is_kept).then_some(0);
        let mut sketch = known.filter(|_| is_same).copied();
        let is_hashed = before.is_some() || (hashing == Hashing::Ahead && deltas.is_enough);
        if let Some(content) = page.content
            && !is_same
            && is_hashed
        {
            let now = sketch::sketch(content, deltas.seed);
            changed = changed.or_else(|| known.map(|before| sketch::changed(before, &now)));
            sketch = Some(now);
        }
        let head = base.zip(changed).map(|(base, changed)| DeltaHead { base, mark, changed });
        let head = head.filter(|head| page.content.is_some() && head.is_valid());
        let goes_whole_again = head.is_none() && base.is_some() && page.content.is_some();
        if goes_whole_again && let Some(head) = deltas.held.hold(region, nth, page.version) {
            return ToSend::Hold(head);
        }
        region.set(nth, page.version, mark);
        if sketch.is_some() && region.sketches.is_none() && deltas.take() {
            region.sketches = Some(Sketches::new());
        }
        if let (Some(sketches), Some(sketch)) = (&mut region.sketches, sketch) {
            sketches.set(nth, sketch);
        }
        head.map_or(ToSend::Whole { before, mark }, ToSend::Delta)
    }

    /// Returns whether the target keeps a page of this mark.
    fn is_kept(&self, page: &NewPage<'_>, mark: u128) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.has(page.block, page.number, mark))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn sent() -> SentPages {
        SentPages::new(&[7; 16], [1000, 3])
    }

    /// Returns a page's content for each number. 0: zeros.
    fn content(fill: u8) -> Option<[u8; 4096]> {
        (fill > 0).then(|| std::array::from_fn(|at| if at / 1000 == usize::from(fill) { fill } else { 9 }))
    }

    fn ledger() -> Ledger {
        Ledger::new(&[7; 16], [1000, 3])
    }

    fn hashing(ahead: bool) -> Hashing {
        if ahead { Hashing::Ahead } else { Hashing::OnlyResent }
    }

    /// Returns the delta as which the page travels.
    fn delta(to_send: ToSend) -> Option<DeltaHead> {
        match to_send {
            ToSend::Hold(head) | ToSend::Delta(head) => Some(head),
            ToSend::Nothing | ToSend::Whole { .. } => None,
        }
    }

    proptest! {
        /// Deltas on what was sent before make the page, whatever may be kept and whenever there is time to hash.
        #[test]
        fn deltas_on_what_was_said_make_the_page(
            notes in proptest::collection::vec((0u32..700, 0u32..6, 0u8..4, any::<bool>()), 1..60),
            memory in 0u64..4,
        ) {
            let sent = sent().with_deltas(memory * SKETCHES_BYTES);
            let mut said: BTreeMap<u32, (u32, Vec<u8>)> = BTreeMap::new();
            for (page, version, fill, ahead) in notes {
                let content = content(fill);
                let content = content.as_ref().map(|content| &content[..]);
                let to_send = sent.note_and_diff(0, version, [(page, content)], hashing(ahead)).unwrap();
                let before = said.get(&page);
                let whole = content.map_or(vec![0; 4096], <[u8]>::to_vec);
                if before.is_some_and(|(known, _)| *known >= version) {
                    prop_assert_eq!(&to_send, &[ToSend::Nothing]);
                    continue;
                }
                let is_same = before.is_some_and(|(_, before)| *before == whole);
                let head = delta(to_send[0]);
                prop_assert_eq!(head.is_some_and(|head| head.changed == 0), is_same && fill > 0);
                if let (Some(head), Some((base, before))) = (head, before) {
                    prop_assert_eq!((head.base, head.mark), (*base, sent.ledger().mark(0, page, content)));
                    let (mut made, mut parts) = (before.clone(), bytes::BytesMut::new());
                    head.gather(&whole, &mut parts);
                    head.apply(&parts, &mut made);
                    prop_assert!(made == whole);
                } else {
                    let is_whole = matches!(to_send[0], ToSend::Whole { .. });
                    prop_assert!(is_whole);
                }
                said.insert(page, (version, whole));
            }
        }
    }

    proptest! {
        /// If a guest comes back, what has not changed is built on the kept pages when it is sent for the first time.
        /// Nothing else is.
        #[test]
        fn pages_that_were_kept_are_not_sent(
            before in proptest::collection::btree_map(0u32..700, 0u8..4, 0..30),
            notes in proptest::collection::vec((0u32..700, 0u8..4, any::<bool>()), 1..60),
            doubted_from in 0usize..90,
        ) {
            let marks = Arc::new(ledger());
            for (page, fill) in &before {
                marks.note_whole_pages(0, 3, [(*page, content(*fill).as_ref().map(|content| &content[..]))]).unwrap();
            }
            let (sent, plain) = (sent().with_deltas(u64::MAX).with_kept(marks), ledger());
            let mut said = BTreeSet::new();
            for (number, (page, fill, ahead)) in notes.into_iter().enumerate() {
                if number == doubted_from {
                    sent.doubt_kept();
                }
                let (content, version) = (content(fill), number as u32);
                let pages = || [(page, content.as_ref().map(|content| &content[..]))];
                let head = delta(sent.note_and_diff(0, version, pages(), hashing(ahead)).unwrap()[0]);
                plain.note_whole_pages(0, version, pages()).unwrap();
                let is_first = said.insert(page);
                let is_kept = is_first && fill > 0 && before.get(&page) == Some(&fill) && number < doubted_from;
                prop_assert_eq!(head.is_some_and(|head| head.base == VERSION_KEPT), is_kept);
                prop_assert!(!is_first || head.is_none_or(|head| is_kept && head.changed == 0 && head.is_valid()));
            }
            // Only what was sent this time counts.
            prop_assert_eq!(sent.ledger().digests(), plain.digests());
        }
    }

    #[test]
    fn hashes_take_no_more_than_they_may() {
        let page = content(1);
        let rewritten = |memory: u64| {
            let sent = SentPages::new(&[7; 16], [4 * REGION_PAGES as u32]).with_deltas(memory);
            let deltas = |version: u32, fill: u8| {
                let page = content(fill).or(page);
                let each = (0..4).map(|region| (region * REGION_PAGES as u32, page.as_ref().map(|page| &page[..])));
                let to_send = sent.note_and_diff(0, version, each, Hashing::Ahead).unwrap();
                to_send.into_iter().filter_map(delta).count()
            };
            (deltas(0, 1), deltas(1, 2), deltas(2, 3), deltas(3, 3))
        };
        assert_eq!(rewritten(0), (0, 0, 0, 4), "what is the same is known by its mark");
        assert_eq!(rewritten(2 * SKETCHES_BYTES), (0, 0, 2, 4), "hashes of what was written again");
        assert_eq!(rewritten(4 * SKETCHES_BYTES), (0, 4, 4, 4));
        assert!(SKETCHES_BYTES as f64 / (REGION_PAGES * 4096) as f64 <= 0.032);
    }

    #[test]
    fn pages_that_are_written_in_every_round_are_held_until_the_end() {
        let source = SentPages::new(&[7; 16], [REGION_PAGES as u32]).with_deltas(u64::MAX);
        let target = Ledger::new(&[7; 16], [REGION_PAGES as u32]);
        let whole = |round: u32, page: u32| vec![(round * 7 + page) as u8 + 1; 4096];
        let send = |round: u32, page: u32| {
            let content = whole(round, page);
            let to_send = source.note_and_diff(0, round, [(page, Some(&content[..]))], Hashing::Ahead).unwrap()[0];
            let head = delta(to_send);
            match head {
                None => target.note_whole_pages(0, round, [(page, Some(&content[..]))]).unwrap(),
                Some(head) => {
                    let mut region = target.region(0, page).unwrap();
                    assert_eq!(
                        (region.version(page as usize), region.mark(page as usize)),
                        (Some(head.base), head.mark)
                    );
                    region.set(page as usize, round, head.mark);
                }
            }
            assert!(matches!(to_send, ToSend::Hold(_) | ToSend::Whole { .. }), "{to_send:?}");
            !matches!(to_send, ToSend::Whole { .. })
        };
        source.set_held_pages_max(2);
        let held: Vec<usize> = (0..6).map(|round| (0..4).filter(|page| send(round, *page)).count()).collect();
        assert_eq!((held, source.held_pages()), (vec![0, 0, 0, 2, 2, 2], 2));
        assert_ne!(source.ledger().digest(), target.digest(), "none may be forgotten");
        source.set_held_pages_max(1);
        assert_eq!(((0..4).filter(|page| send(6, *page)).count(), source.held_pages()), (1, 1));
        let released = source.release();
        assert_eq!((&released[..], source.held_pages()), (&[(RegionId { block: 0, region: 0 }, vec![1])][..], 0));
        assert_eq!(source.ledger().digest(), target.digest(), "of what was sent before it was held");
        assert!(!send(7, 1));
        assert_eq!(source.ledger().digest(), target.digest());
        assert!(source.release().is_empty());
    }
}
