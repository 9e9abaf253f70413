//! Marks of pages, and their sums.
//!
//! The **mark** of what a page holds is a MAC (AEGIS-128X2, draft-irtf-cfrg-aegis-aead) over its content, block and
//! number, under a key that is drawn for each migration. The sum of the marks of a region's pages is the region's
//! **digest** (a multiset hash: Clarke et al., "Incremental Multiset Hash Functions", ASIACRYPT 2003).

use aegis::aegis128x2::Aegis128X2Mac;
use serde::{Deserialize, Serialize};

/// A key for marks. It is drawn for each migration, except for one that builds on an earlier one's marks: without a
/// secret key a guest could search for contents with equal marks.
pub type Key = [u8; 16];

/// The sum of marks, modulo 2^128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(pub u128);

impl Digest {
    pub(crate) fn add(&mut self, mark: u128) {
        self.0 = self.0.wrapping_add(mark);
    }

    pub(crate) fn subtract(&mut self, mark: u128) {
        self.0 = self.0.wrapping_sub(mark);
    }
}

/// Makes marks under one key.
pub(crate) struct Marker(Aegis128X2Mac<16>);

/// What a MAC is made of, so that no two things have the same input.
#[repr(u8)]
enum MarkOf {
    Zeros = 0,
    Content = 1,
    Number = 2,
}

impl Marker {
    pub(crate) fn new(key: &Key) -> Marker {
        Marker(Aegis128X2Mac::new(key))
    }

    /// Returns the mark of a page's content. `content` is `None` for zeros.
    pub(crate) fn mark(&self, block: u16, page: u32, content: Option<&[u8]>) -> u128 {
        let of = if content.is_some() { MarkOf::Content } else { MarkOf::Zeros };
        self.mac(block, of, page, content.unwrap_or_default())
    }

    /// Returns the nth of a series of numbers that are as random as the key.
    pub(crate) fn keyed_number(&self, nth: u32) -> u128 {
        self.mac(0, MarkOf::Number, nth, &[])
    }

    fn mac(&self, block: u16, of: MarkOf, number: u32, content: &[u8]) -> u128 {
        let mut mac = self.0.clone();
        mac.update(content);
        let mut label = [0; 16];
        label[..2].copy_from_slice(&block.to_le_bytes());
        label[2] = of as u8;
        label[4..8].copy_from_slice(&number.to_le_bytes());
        mac.update(&label);
        u128::from_le_bytes(mac.finalize())
    }
}
