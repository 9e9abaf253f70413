//! Pages that travel together.

use bytes::{Bytes, BytesMut};

use crate::delta::DeltaHead;
use crate::page::{PAGE_BYTES, is_zero};
use crate::sent::ToSend;

/// Most pages in a batch: half a full packet of multifd. So many pages pack well together, and are one chunk of a fast
/// path.
pub const BATCH_PAGES_MAX: usize = 64;
/// Bytes of a full batch.
pub const BATCH_BYTES_MAX: usize = BATCH_PAGES_MAX * PAGE_BYTES;

/// Pages that follow each other in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first page: its offset in the block over [`PAGE_BYTES`].
    pub first: u32,
    /// How many pages: 1 and up.
    pub pages: u8,
}

/// Where the pages of a batch belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRuns {
    /// Number of the RAM block, in the order in which both ends were told of the blocks.
    pub block: u16,
    /// The batch's pages in the block, in the order of the batch.
    pub runs: Vec<Run>,
}

impl PageRuns {
    /// Returns the runs of the pages with these numbers.
    pub fn new(block: u16, pages: impl IntoIterator<Item = u32>) -> PageRuns {
        let mut runs: Vec<Run> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some(run) if run.first.checked_add(u32::from(run.pages)) == Some(page) && run.pages < u8::MAX => {
                    run.pages += 1;
                }
                _ => runs.push(Run { first: page, pages: 1 }),
            }
        }
        PageRuns { block, runs }
    }

    /// Returns the numbers of the pages.
    pub fn pages(&self) -> impl Iterator<Item = u32> + Clone {
        self.runs.iter().flat_map(|run| (0..u32::from(run.pages)).map(|nth| run.first.wrapping_add(nth)))
    }
}

/// How a page travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// The page is zeros, and does not travel at all.
    Zero = 0,
    /// The page is compressed, together with the others of its batch.
    Packed = 1,
    /// The page travels as it is.
    Stored = 2,
    /// Only what changed of the page travels: a delta.
    Delta = 3,
}

impl PageKind {
    /// Returns how many of `kinds` are this kind.
    pub fn count(self, kinds: &[PageKind]) -> usize {
        kinds.iter().filter(|kind| **kind == self).count()
    }
}

/// Whether an entry of QEMU's main channel names its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockName {
    /// The entry names its block.
    Given,
    /// The entry does not name its block: the block is that of the entry before.
    AsBefore,
}

/// What becomes of the pages of a batch at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchForm {
    /// The agent writes them into the guest's RAM.
    Direct(PageRuns),
    /// QEMU gets the pages one after the other, as the content of a multifd packet whose header it got before.
    Content,
    /// QEMU gets the pages as entries of its main channel.
    Entries {
        /// Where they belong.
        page_runs: PageRuns,
        /// Whether the first entry names its block.
        name: BlockName,
    },
}

impl BatchForm {
    /// Returns where the pages belong. `None`: the form does not say.
    pub fn place(&self) -> Option<&PageRuns> {
        match self {
            BatchForm::Direct(place) | BatchForm::Entries { page_runs: place, .. } => Some(place),
            BatchForm::Content => None,
        }
    }
}

/// Up to [`BATCH_PAGES_MAX`] pages as QEMU gave them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What becomes of the pages at the target.
    pub form: BatchForm,
    /// The kind of each page: [`PageKind::Zero`], [`PageKind::Stored`] if it has content, or [`PageKind::Delta`].
    pub kinds: Vec<PageKind>,
    /// The content of all pages, one after the other. Empty if no page goes whole.
    pub content: Bytes,
    /// The heads of the deltas, in order.
    pub deltas: Vec<DeltaHead>,
    /// The bytes of the deltas, one after the other.
    pub changes: Bytes,
}

impl Batch {
    /// Returns a batch of pages with this content.
    ///
    /// # Panics
    /// If `content` is not a whole number of pages, from one to [`BATCH_PAGES_MAX`].
    pub fn new(form: BatchForm, content: Bytes) -> Batch {
        let pages = content.chunks_exact(PAGE_BYTES);
        assert!(pages.remainder().is_empty() && (1..=BATCH_PAGES_MAX).contains(&pages.len()));
        let kinds: Vec<PageKind> =
            pages.map(|page| if is_zero(page) { PageKind::Zero } else { PageKind::Stored }).collect();
        let none = PageKind::Stored.count(&kinds) == 0;
        let content = if none { Bytes::new() } else { content };
        Batch { form, kinds, content, deltas: Vec::new(), changes: Bytes::new() }
    }

    /// Returns the batch with each page as the target needs it. `to_send` has an entry for each page, or is empty: then
    /// all pages go whole. `version` is the version of the batch.
    pub fn with_deltas(mut self, version: u32, to_send: Vec<ToSend>) -> Batch {
        let mut changes = BytesMut::new();
        for (nth, to_send) in to_send.into_iter().enumerate() {
            let head = match to_send {
                ToSend::Whole { .. } => continue,
                ToSend::Nothing => DeltaHead::unchanged(version),
                ToSend::Hold(head) | ToSend::Delta(head) => head,
            };
            if let Some(page) = self.page(nth) {
                head.gather(page, &mut changes);
            }
            self.kinds[nth] = PageKind::Delta;
            self.deltas.push(head);
        }
        self.changes = changes.freeze();
        if PageKind::Stored.count(&self.kinds) == 0 {
            self.content = Bytes::new();
        }
        self
    }

    /// Returns the batch without the content of pages that a rail has written, which are `written`: for the nth page
    /// the mark of what was written, ascending.
    pub fn with_written(mut self, written: &[(usize, u128)]) -> Batch {
        let (mut deltas, mut written) = (self.deltas.into_iter(), written.iter().peekable());
        let mut heads = Vec::new();
        for (nth, kind) in self.kinds.iter_mut().enumerate() {
            if let Some((_, mark)) = written.next_if(|(of, _)| *of == nth) {
                *kind = PageKind::Delta;
                heads.push(DeltaHead::written(*mark));
            } else if *kind == PageKind::Delta {
                heads.extend(deltas.next());
            }
        }
        self.deltas = heads;
        if PageKind::Stored.count(&self.kinds) == 0 {
            self.content = Bytes::new();
        }
        self
    }

    /// Returns the bytes of stored pages and deltas, before compression.
    pub fn bytes(&self) -> usize {
        PageKind::Stored.count(&self.kinds) * PAGE_BYTES + self.changes.len()
    }

    /// Returns a batch of pages that are known to be zero, for the agent to write.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn zeros(place: PageRuns) -> Batch {
        let pages = place.pages().count();
        assert!((1..=BATCH_PAGES_MAX).contains(&pages));
        let kinds = vec![PageKind::Zero; pages];
        Batch {
            form: BatchForm::Direct(place),
            kinds,
            content: Bytes::new(),
            deltas: Vec::new(),
            changes: Bytes::new(),
        }
    }

    /// Returns the content of the nth page. `None`: zeros, or the page does not go whole.
    pub fn page(&self, nth: usize) -> Option<&[u8]> {
        (self.kinds[nth] == PageKind::Stored).then(|| &self.content[nth * PAGE_BYTES..][..PAGE_BYTES])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_a_row_are_one_run() {
        let place = PageRuns::new(3, [7, 8, 9, 11, 10, u32::MAX]);
        assert_eq!(
            place.runs.iter().map(|r| (r.first, r.pages)).collect::<Vec<_>>(),
            [(7, 3), (11, 1), (10, 1), (u32::MAX, 1)]
        );
        assert_eq!(place.pages().collect::<Vec<_>>(), [7, 8, 9, 11, 10, u32::MAX]);
    }
}
