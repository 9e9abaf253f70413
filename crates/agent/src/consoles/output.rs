//! Keeps the last of what a VM wrote to its console.

use std::collections::VecDeque;

use skein_api::CONSOLE_OUTPUT_BYTES_MAX;

/// The last [`CONSOLE_OUTPUT_BYTES_MAX`] bytes of an output, each at its position in all of it.
#[derive(Debug, Default)]
pub(super) struct Output {
    kept: VecDeque<u8>,
    /// The bytes that were ever written.
    written: u64,
}

impl Output {
    /// Adds what was written.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        self.kept.extend(&bytes[bytes.len().saturating_sub(CONSOLE_OUTPUT_BYTES_MAX)..]);
        let excess = self.kept.len().saturating_sub(CONSOLE_OUTPUT_BYTES_MAX);
        self.kept.drain(..excess);
    }

    /// Returns the position behind the last byte.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns what is kept from a position on, and where that begins: later, if older bytes are not kept any more.
    pub(super) fn since(&self, position: u64) -> (u64, Vec<u8>) {
        let first = self.written - self.kept.len() as u64;
        let at = position.clamp(first, self.written);
        (at, self.kept.iter().skip((at - first) as usize).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_not_told_again_and_what_was_lost_is() {
        let mut output = Output::default();
        assert_eq!(output.since(0), (0, vec![]));
        output.push(b"login: ");
        assert_eq!(output.since(0), (0, b"login: ".to_vec()));
        assert_eq!(output.since(0), (0, b"login: ".to_vec()), "an answer may have been lost");
        output.push(b"root");
        assert_eq!(output.since(7), (7, b"root".to_vec()));
        assert_eq!(output.since(11), (11, vec![]));
        assert_eq!(output.since(u64::MAX), (11, vec![]), "a position that cannot be");
    }

    #[test]
    fn what_is_kept_is_bounded_and_says_where_it_begins() {
        let mut output = Output::default();
        for n in 0..100_u8 {
            output.push(&[n; 1000]);
        }
        let (at, kept) = output.since(0);
        assert_eq!((at, kept.len()), (100_000 - CONSOLE_OUTPUT_BYTES_MAX as u64, CONSOLE_OUTPUT_BYTES_MAX));
        assert_eq!((kept[0], kept[kept.len() - 1]), ((at / 1000) as u8, 99));
        output.push(&vec![7; 2 * CONSOLE_OUTPUT_BYTES_MAX]);
        let (at, kept) = output.since(99_999);
        assert_eq!((at, kept.len()), (100_000 + CONSOLE_OUTPUT_BYTES_MAX as u64, CONSOLE_OUTPUT_BYTES_MAX));
        assert!(kept.iter().all(|byte| *byte == 7) && output.written() == 100_000 + 131_072);
    }
}
