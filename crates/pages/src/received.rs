//! A batch as it arrives at the target, and its pages, run by run.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::batch::{BatchForm, PageKind, Run};
use crate::delta::DeltaHead;
use crate::packing::Packing;
use crate::page::PAGE_BYTES;

/// The head of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// What becomes of the batch's pages.
    pub form: BatchForm,
    /// How each page travels.
    pub kinds: Vec<PageKind>,
    /// How the packed part is compressed.
    pub packing: Packing,
    /// The heads of the deltas, in order.
    pub deltas: Vec<DeltaHead>,
    /// Whether the bytes of the deltas are packed, after the packed pages.
    pub changes_packed: bool,
}

impl BatchHead {
    /// Returns how many of the pages travel as `kind`.
    pub fn count(&self, kind: PageKind) -> usize {
        kind.count(&self.kinds)
    }

    /// Returns the bytes of the packed pages, unpacked.
    pub fn packed_page_bytes(&self) -> usize {
        self.count(PageKind::Packed) * PAGE_BYTES
    }

    /// Returns the bytes of the deltas.
    pub fn change_bytes(&self) -> usize {
        self.deltas.iter().map(DeltaHead::bytes).sum()
    }

    /// Returns the bytes of everything packed, unpacked.
    pub fn unpacked_bytes(&self) -> usize {
        self.packed_page_bytes() + if self.changes_packed { self.change_bytes() } else { 0 }
    }
}

/// A batch as it arrived. The lengths of its parts are those that its head says.
#[derive(Clone, Debug)]
pub struct ReceivedBatch {
    /// The head: which pages, and how they travel.
    pub head: BatchHead,
    /// The packed part.
    pub packed: Bytes,
    /// The bytes of the deltas, one after the other, if they are not packed.
    pub changes: Bytes,
    /// The stored pages, one after the other, cut anywhere.
    pub stored: VecDeque<Bytes>,
}

impl ReceivedBatch {
    /// Returns the pages, run by run. Stored pages are taken out of the batch. `unpacked` is the packed part, unpacked
    /// to [`BatchHead::unpacked_bytes`] bytes.
    pub fn runs<'a>(&'a mut self, unpacked: &'a [u8]) -> ReceivedRuns<'a> {
        let head = &self.head;
        let (unpacked, packed_changes) = unpacked.split_at(head.packed_page_bytes());
        ReceivedRuns {
            runs: head.form.place().map_or(&[], |place| &place.runs),
            kinds: &head.kinds,
            first: 0,
            left: if head.form.place().is_none() { head.kinds.len() } else { 0 },
            unpacked,
            deltas: &head.deltas,
            changes: if head.changes_packed { packed_changes } else { &self.changes },
            stored: &mut self.stored,
        }
    }
}

/// The pages of a batch that are still to be handled.
pub struct ReceivedRuns<'a> {
    /// The runs after the current one.
    runs: &'a [Run],
    /// How each of the remaining pages travels.
    kinds: &'a [PageKind],
    /// The number of the next page.
    first: u32,
    /// How many pages of the current run are left.
    left: usize,
    unpacked: &'a [u8],
    deltas: &'a [DeltaHead],
    changes: &'a [u8],
    stored: &'a mut VecDeque<Bytes>,
}

/// Pages that follow each other in a block and travel in the same way.
pub struct ReceivedRun<'a> {
    /// The number of the first page. It has no meaning if the batch does not say where its pages belong.
    pub first: u32,
    /// How many pages.
    pub pages: usize,
    /// The content of the pages.
    pub content: RunContent<'a>,
}

/// The content of the pages of a run.
pub enum RunContent<'a> {
    /// Zeros.
    Zeros,
    /// These bytes, one page after the other. They were packed.
    Unpacked(&'a [u8]),
    /// Bytes in the pieces in which they arrived. All of them have to be taken.
    Stored(StoredPages<'a>),
    /// The earlier content, with changes.
    Changed {
        /// The head for each page.
        deltas: &'a [DeltaHead],
        /// The changed parts of all pages.
        parts: &'a [u8],
    },
}

impl ReceivedRuns<'_> {
    /// Returns the next run. The run lasts until the next call.
    #[expect(
        clippy::should_implement_trait,
        reason = "a run borrows the pieces of stored pages, which no iterator lends"
    )]
    pub fn next(&mut self) -> Option<ReceivedRun<'_>> {
        if self.left == 0 {
            let (run, later) = self.runs.split_first()?;
            (self.runs, self.first, self.left) = (later, run.first, usize::from(run.pages));
        }
        let kind = *self.kinds.first()?;
        let pages = self.kinds[..self.left].iter().take_while(|other| **other == kind).count();
        let first = self.first;
        self.kinds = &self.kinds[pages..];
        self.left -= pages;
        self.first = first.wrapping_add(pages as u32);
        let content = match kind {
            PageKind::Zero => RunContent::Zeros,
            PageKind::Packed => RunContent::Unpacked(split_off(&mut self.unpacked, pages * PAGE_BYTES)),
            PageKind::Stored => RunContent::Stored(StoredPages { pieces: self.stored, left: pages }),
            PageKind::Delta => {
                let deltas = split_off(&mut self.deltas, pages);
                let bytes = deltas.iter().map(DeltaHead::bytes).sum();
                RunContent::Changed { deltas, parts: split_off(&mut self.changes, bytes) }
            }
        };
        Some(ReceivedRun { first, pages, content })
    }
}

/// Takes the first `count` items of a slice.
fn split_off<'a, T>(slice: &mut &'a [T], count: usize) -> &'a [T] {
    let (first, rest) = slice.split_at(count);
    *slice = rest;
    first
}

/// Stored pages, in the pieces in which they arrived.
pub struct StoredPages<'a> {
    pieces: &'a mut VecDeque<Bytes>,
    left: usize,
}

impl StoredPages<'_> {
    /// Takes the next pages: all that lie whole in one piece, or one page that was cut, joined.
    pub fn take_whole(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let left = self.left;
        let front = self.front();
        let whole = (front.len() / PAGE_BYTES).min(left);
        if whole > 0 {
            let pages = front.split_to(whole * PAGE_BYTES);
            self.left -= whole;
            return Some(pages);
        }
        let mut torn = BytesMut::with_capacity(PAGE_BYTES);
        self.take_page(|part| torn.extend_from_slice(&part));
        Some(torn.freeze())
    }

    /// Takes the next page, and passes its parts to `to` without joining them. Returns whether there was a page.
    pub fn take_page(&mut self, mut to: impl FnMut(Bytes)) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let mut bytes = PAGE_BYTES;
        while bytes > 0 {
            let front = self.front();
            let part = front.split_to(front.len().min(bytes));
            bytes -= part.len();
            to(part);
        }
        true
    }

    fn front(&mut self) -> &mut Bytes {
        while self.pieces.front().is_some_and(Bytes::is_empty) {
            self.pieces.pop_front();
        }
        self.pieces.front_mut().expect("as many pages as the head says")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::PageRuns;

    proptest! {
        /// Each page comes once, in its place, with its own content, however the runs and the pieces are cut.
        #[test]
        fn runs_are_the_pages_of_the_batch(
            pages in proptest::collection::vec((0u32..40, 0u8..4), 1..=64),
            cuts in proptest::collection::vec(1usize..3 * PAGE_BYTES, 1..20),
            torn: bool,
            changes_packed: bool,
            is_placed: bool,
        ) {
            let all = [PageKind::Zero, PageKind::Packed, PageKind::Stored, PageKind::Delta];
            let kinds: Vec<PageKind> = pages.iter().map(|(_, of)| all[usize::from(*of)]).collect();
            let of_kind = |of| {
                let pages: Vec<usize> = (0..kinds.len()).filter(|nth| kinds[*nth] == of).collect();
                pages.into_iter()
            };
            let delta = |nth: usize| DeltaHead { base: 0, mark: nth as u128, changed: 1 << (nth % 32) };
            let content = |of: PageKind| of_kind(of).flat_map(|nth| [nth as u8; PAGE_BYTES]).collect::<Vec<u8>>();
            let changes: Vec<u8> =
                of_kind(PageKind::Delta).flat_map(|nth| vec![nth as u8; delta(nth).bytes()]).collect();
            let mut stored = Bytes::from(content(PageKind::Stored));
            let mut pieces = VecDeque::new();
            let mut cuts = cuts.iter().cycle();
            while !stored.is_empty() {
                pieces.push_back(stored.split_to((*cuts.next().unwrap()).min(stored.len())));
            }
            let place = PageRuns::new(3, pages.iter().map(|(page, _)| *page));
            let head = BatchHead {
                form: if is_placed { BatchForm::Direct(place) } else { BatchForm::Content },
                kinds: kinds.clone(),
                packing: Packing::None,
                deltas: of_kind(PageKind::Delta).map(delta).collect(),
                changes_packed,
            };
            let (packed_changes, changes) = if changes_packed { (changes, Vec::new()) } else { (Vec::new(), changes) };
            let unpacked = [content(PageKind::Packed), packed_changes].concat();
            let mut batch = ReceivedBatch { head, packed: Bytes::new(), changes: changes.into(), stored: pieces };
            let mut runs = batch.runs(&unpacked);
            let mut nth = 0;
            while let Some(run) = runs.next() {
                for (page, nth) in (0..run.pages as u32).zip(nth..) {
                    prop_assert!(!is_placed || run.first + page == pages[nth].0);
                }
                let is_page = |nth: usize, held: &[u8]| held == [nth as u8; PAGE_BYTES];
                let kind = match run.content {
                    RunContent::Zeros => PageKind::Zero,
                    RunContent::Unpacked(held) => {
                        prop_assert!(held.chunks(PAGE_BYTES).zip(nth..).all(|(held, nth)| is_page(nth, held)));
                        prop_assert_eq!(held.len(), run.pages * PAGE_BYTES);
                        PageKind::Packed
                    }
                    RunContent::Stored(mut stored) => {
                        let mut held = Vec::new();
                        if torn {
                            while stored.take_page(|part| held.extend_from_slice(&part)) {}
                        } else {
                            std::iter::from_fn(|| stored.take_whole()).for_each(|whole| held.extend_from_slice(&whole));
                        }
                        prop_assert!(held.chunks(PAGE_BYTES).zip(nth..).all(|(held, nth)| is_page(nth, held)));
                        prop_assert_eq!(held.len(), run.pages * PAGE_BYTES);
                        PageKind::Stored
                    }
                    RunContent::Changed { deltas, mut parts } => {
                        prop_assert_eq!(deltas.len(), run.pages);
                        for (head, nth) in deltas.iter().zip(nth..) {
                            prop_assert_eq!(*head, delta(nth));
                            prop_assert!(split_off(&mut parts, head.bytes()).iter().all(|byte| *byte == nth as u8));
                        }
                        prop_assert!(parts.is_empty());
                        PageKind::Delta
                    }
                };
                prop_assert!(kinds[nth..nth + run.pages].iter().all(|other| *other == kind));
                nth += run.pages;
            }
            prop_assert_eq!(nth, pages.len());
        }
    }
}
