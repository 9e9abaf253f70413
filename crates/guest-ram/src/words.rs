//! Bytes copied into and out of memory that others change at the same time.
//!
//! Such memory is a slice of atomics. So it is no data race when two threads of this process, or this process and QEMU,
//! touch the same word. The accesses are relaxed: they give no order. A reader learns through something else (a socket,
//! a lock) that the bytes are there.
//!
//! This is as fast as `memcpy` where memory is the limit. Words are never touched in part: two accesses of different
//! sizes to one place would be a data race again. So bytes that begin or end within a word are merged into the word,
//! and a neighbour's bytes that are written meanwhile are not lost.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes in a word.
pub(crate) const WORD: usize = size_of::<u64>();

/// Copies `data` to the byte `at` and after.
///
/// # Panics
/// If the bytes are not all within `words`.
pub(crate) fn store(words: &[AtomicU64], at: usize, data: &[u8]) {
    let (head, body, tail) = split(at, data.len());
    merge(words, at, &data[..head]);
    let (bulk, rest) = data[head..].split_at(body.len() * WORD);
    for (word, bytes) in words[body.clone()].iter().zip(bulk.as_chunks().0) {
        word.store(u64::from_ne_bytes(*bytes), Relaxed);
    }
    debug_assert_eq!(rest.len(), tail);
    merge(words, body.end * WORD, rest);
}

/// Copies the bytes from `at` on to `out`.
///
/// # Panics
/// If the bytes are not all within `words`.
pub(crate) fn load(words: &[AtomicU64], at: usize, out: &mut [u8]) {
    let (head, body, _) = split(at, out.len());
    let (first, out) = out.split_at_mut(head);
    extract(words, at, first);
    let (bulk, rest) = out.split_at_mut(body.len() * WORD);
    for (word, bytes) in words[body.clone()].iter().zip(bulk.as_chunks_mut().0) {
        *bytes = word.load(Relaxed).to_ne_bytes();
    }
    extract(words, body.end * WORD, rest);
}

/// Splits `len` bytes from `at` on: how many come before the first whole word, the whole words, how many come after.
fn split(at: usize, len: usize) -> (usize, Range<usize>, usize) {
    let head = (at.next_multiple_of(WORD) - at).min(len);
    let first = (at + head).div_ceil(WORD);
    let whole = (len - head) / WORD;
    (head, first..first + whole, (len - head) % WORD)
}

/// Writes `bytes` at `at`, all within one word.
fn merge(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        let begin = at % WORD;
        words[at / WORD].update(Relaxed, Relaxed, |old| {
            let mut word = old.to_ne_bytes();
            word[begin..begin + bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        });
    }
}

/// Reads `out` from `at`, all within one word.
fn extract(words: &[AtomicU64], at: usize, out: &mut [u8]) {
    if !out.is_empty() {
        let begin = at % WORD;
        let word = words[at / WORD].load(Relaxed).to_ne_bytes();
        out.copy_from_slice(&word[begin..begin + out.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: usize = 200;

    fn memory() -> Vec<AtomicU64> {
        (0..BYTES / WORD).map(|_| AtomicU64::new(0)).collect()
    }

    fn all(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect()
    }

    #[test]
    fn all_ranges() {
        let data: Vec<u8> = (1..=255).collect();
        let step = if cfg!(miri) { 7 } else { 1 };
        for at in (0..BYTES).step_by(step) {
            for len in (0..=BYTES - at).step_by(step) {
                let (words, mut model) = (memory(), vec![0; BYTES]);
                store(&words, at, &data[..len]);
                model[at..at + len].copy_from_slice(&data[..len]);
                assert_eq!(all(&words), model, "{len} bytes at {at}");
                let mut out = vec![0; len];
                load(&words, at, &mut out);
                assert_eq!(out, data[..len], "{len} bytes at {at}");
            }
        }
    }

    /// Threads write side by side, at borders within words, while another thread reads.
    #[test]
    fn neighbours_do_not_lose_bytes() {
        let words = memory();
        let borders = [0, 3, 5, 9, 50, 51, 52, 133, BYTES];
        std::thread::scope(|scope| {
            for (number, range) in borders.windows(2).enumerate() {
                let words = &words;
                scope.spawn(move || {
                    for round in 0..if cfg!(miri) { 20 } else { 2000 } {
                        let data = vec![(number * 31 + round) as u8; range[1] - range[0]];
                        store(words, range[0], &data);
                        let mut out = vec![0; data.len()];
                        load(words, range[0], &mut out);
                        assert_eq!(out, data);
                    }
                });
            }
            scope.spawn(|| (0..20).for_each(|_| load(&words, 1, &mut [0; BYTES - 1])));
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, ..Default::default() })]

        /// Behaves as bytes in a `Vec`.
        #[test]
        fn like_a_vec(
            writes in proptest::collection::vec((0..BYTES, proptest::collection::vec(any::<u8>(), 0..BYTES)), 0..20),
        ) {
            let (words, mut model) = (memory(), vec![0; BYTES]);
            for (at, data) in writes {
                let data = &data[..data.len().min(BYTES - at)];
                store(&words, at, data);
                model[at..at + data.len()].copy_from_slice(data);
                prop_assert_eq!(&all(&words), &model);
            }
        }
    }
}
