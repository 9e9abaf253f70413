//! How fast a program reads memory that lies on the same pages as the RAM of a guest.
//!
//! An emulated guest (TCG) does not feel the pages that its RAM lies on: it is slow for other reasons. Under KVM a
//! guest does, as the CPU walks the host's page tables for each address that it has not cached. So a program of the
//! host reads in the guest's place, from memory with the same share of huge pages as the guest's RAM has: one word
//! after the other, each at a place that follows from the last, over far more than a TLB reaches with pages of 4 KiB.

mod mapping;

use std::{io, time::Duration};

use nix::{errno::Errno, time::ClockId};
use serde::{Deserialize, Serialize};

pub use mapping::Filling;

use crate::{free_memory, page_sizes::PageSizes};
use mapping::{Backing, Mapping};

/// How much memory is read from. A second-level TLB of today has 2048 to 4096 entries: 8 to 16 MiB of small pages.
pub const WORKING_SET_BYTES: usize = 1 << 30;

/// How many words are read in a pass: a sixth of a second.
const READS: u64 = 1_000_000;

/// How often each memory is read, taking turns. The least time counts: whatever else the machine does only adds.
const PASSES: u64 = 7;

/// By how much less memory may be on huge pages than was asked for.
const MISSING_SHARE_MAX: f64 = 0.01;

/// What a read takes, in nanoseconds of CPU, by what the memory is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryReads {
    /// As the guest's RAM was when the guest had been started.
    pub started_ns: f64,
    /// As the guest's RAM is after the migration.
    pub moved_ns: f64,
    /// Private memory on huge pages alone.
    pub huge_ns: f64,
    /// Shared memory, a memfd, on the pages that the kernel gives it.
    pub shared_ns: f64,
}

/// The pages of a guest's RAM, for memory to be made like it.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// The pages when the guest had been started.
    pub started: PageSizes,
    /// The pages after the migration.
    pub moved: PageSizes,
    /// Who filled the RAM that the guest was moved to.
    pub filling: Filling,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum ReadsError {
    /// The kernel gave no memory.
    #[error("memory to read from, {bytes} bytes")]
    Memory {
        /// How many bytes.
        bytes: usize,
        /// What the kernel said.
        source: Errno,
    },
    /// The kernel does not say what pages there are.
    #[error("the pages of memory to read from")]
    Pages(#[source] io::Error),
    /// The kernel has not enough huge pages. They are taken from what is free in one piece.
    #[error("{has:.2} of the memory is on huge pages instead of {asked:.2}: free some memory, or allow huge pages")]
    FewHugePages {
        /// The share that was asked for.
        asked: f64,
        /// The share that there is.
        has: f64,
    },
    /// A clock failed.
    #[error("the time of a thread")]
    Clock(#[source] Errno),
}

/// Measures reads of memory like a guest's RAM, and beside it of both kinds that there are.
///
/// # Errors
/// [`ReadsError`].
pub fn measure(model: &Model) -> Result<MemoryReads, ReadsError> {
    // What the host keeps of files makes room.
    free_memory::reclaim(4 * WORKING_SET_BYTES as u64);
    free_memory::gather();
    measure_with(model, WORKING_SET_BYTES, READS)
}

fn measure_with(model: &Model, bytes: usize, reads: u64) -> Result<MemoryReads, ReadsError> {
    let private = |huge_share| Backing::Private { huge_share };
    let kinds = [
        (private(model.started.huge_share()), Filling::ByOwner),
        (private(model.moved.huge_share()), model.filling),
        (private(1.0), Filling::ByOwner),
        (Backing::Shared, Filling::ByOwner),
    ];
    let mut mappings = Vec::new();
    for (backing, filling) in kinds {
        let mapping = Mapping::new(backing, bytes, filling).map_err(|source| ReadsError::Memory { bytes, source })?;
        if let Backing::Private { huge_share: asked } = backing {
            let has = mapping.page_sizes().map_err(ReadsError::Pages)?.huge_share();
            if has < asked - MISSING_SHARE_MAX {
                return Err(ReadsError::FewHugePages { asked, has });
            }
        }
        mappings.push(mapping);
    }
    let mut least = [Duration::MAX; 4];
    for pass in 0..PASSES {
        for turn in 0..mappings.len() {
            let at = (turn + pass as usize) % mappings.len();
            let begun = cpu_time()?;
            std::hint::black_box(read(mappings[at].words(), reads, pass));
            least[at] = least[at].min(cpu_time()? - begun);
        }
    }
    let [started_ns, moved_ns, huge_ns, shared_ns] = least.map(|time| time.as_secs_f64() * 1e9 / reads as f64);
    Ok(MemoryReads { started_ns, moved_ns, huge_ns, shared_ns })
}

/// Returns the CPU that this thread has had.
fn cpu_time() -> Result<Duration, ReadsError> {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().map(Duration::from).map_err(ReadsError::Clock)
}

/// Reads that many words, each at a place that follows from what was read before. Returns what came of it. The number
/// of words is a power of two.
fn read(words: &[u64], reads: u64, seed: u64) -> u64 {
    let mask = words.len() - 1;
    (0..reads).fold(seed, |state, _| {
        // A linear congruential generator (Knuth's MMIX), to which is added what was read. Its high bits are the best.
        let state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.wrapping_add(words[(state >> 24) as usize & mask])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_decides_what_is_read_next() {
        let mut words = vec![1; 1 << 12];
        let first = read(&words, 1000, 7);
        assert_eq!(first, read(&words, 1000, 7), "the same memory and seed");
        assert_ne!(first, read(&words, 1000, 8));
        words.fill(2);
        assert_ne!(first, read(&words, 1000, 7));
        // All of the memory is read from.
        let one_differs = |at: usize| {
            let mut words = vec![1; 1 << 12];
            words[at] = 2;
            read(&words, 1 << 17, 7)
        };
        let alike = read(&[1; 1 << 12], 1 << 17, 7);
        assert!([0, 1, 1000, (1 << 12) - 1].iter().all(|at| one_differs(*at) != alike));
    }

    /// Checks what can be on any machine: a guest whose RAM has no huge pages is read from memory without.
    #[test]
    fn memory_is_made_like_the_guests() {
        let small = PageSizes { resident_bytes: 1 << 20, huge_bytes: 0 };
        let huge = PageSizes { resident_bytes: 1 << 21, huge_bytes: 1 << 21 };
        let model = Model { started: small, moved: huge, filling: Filling::ByAgent };
        match measure_with(&model, 8 * mapping::HUGE_PAGE_BYTES, 1000) {
            Ok(reads) => {
                let all = [reads.started_ns, reads.moved_ns, reads.huge_ns, reads.shared_ns];
                assert!(all.iter().all(|ns| (0.1..1e6).contains(ns)), "{reads:?}");
            }
            Err(ReadsError::FewHugePages { asked, has }) => assert!(asked == 1.0 && has < 0.99),
            Err(other) => panic!("{other}"),
        }
    }
}
