//! Judges what a rail does by itself. This is pure.

use skein_units::measured;

use crate::figure::{Limit::AtLeast, least, part};
use crate::results::Part;

/// The sizes of operations, in bytes.
pub const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// The size of what a migration writes: the place in [`SIZES`].
const OF_MIGRATIONS: usize = 3;

/// How fast scattered pages of 4 KiB went, in bytes a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Clustering {
    /// With a write for each page.
    pub one_by_one_bps: f64,
    /// With a write for many, the copies at both ends included.
    pub gathered_bps: f64,
}

/// How fast operations of each of the [`SIZES`] went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadWrite {
    /// The rates.
    pub sizes: [Rates; SIZES.len()],
}

/// How fast operations of a size went, in bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Writes of the end that has the bytes.
    pub write_bps: f64,
    /// Reads of the end that is to have them.
    pub read_bps: f64,
}

impl ReadWrite {
    /// Returns all rates, in words.
    pub fn words(&self) -> String {
        let size = |(bytes, of): (usize, &Rates)| {
            let [bytes, write, read] = [bytes as f64, of.write_bps, of.read_bps].map(measured::bytes);
            format!("{bytes}: writes {write}/s, reads {read}/s")
        };
        SIZES.into_iter().zip(&self.sizes).map(size).collect::<Vec<_>>().join("; ")
    }
}

/// Returns the figure's parts of `page-clustering`, by the worst round. Without rounds nothing was measured.
pub fn judge_clustering(rounds: &[Clustering]) -> Vec<Part> {
    let faster = |round: &Clustering| {
        let times = round.gathered_bps / round.one_by_one_bps;
        (times, format!("{times:.1} x ({round})"))
    };
    let figure = "scattered pages that are gathered go at least 2.5 x as fast as page by page";
    vec![part(figure.into(), AtLeast(2.5), least(rounds, faster))]
}

/// Returns the figure's parts of `rdma-read-write`, by the worst round. Without rounds nothing was measured.
pub fn judge_read_write(rounds: &[ReadWrite]) -> Vec<Part> {
    let ratio = |round: &ReadWrite| {
        let of = round.sizes[OF_MIGRATIONS];
        let ratio = of.write_bps / of.read_bps;
        (ratio, format!("{ratio:.2} x ({round})"))
    };
    let figure = "writes of 256 KiB, which migrations use, are at least 0.8 x as fast as reads";
    vec![part(figure.into(), AtLeast(0.8), least(rounds, ratio))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_what_was_seen() {
        let round = |gathered_bps| Clustering { one_by_one_bps: 1e8, gathered_bps };
        assert_eq!(judge_clustering(&[round(3e8)])[0].met, Some(true));
        assert_eq!(judge_clustering(&[round(3e8), round(2e8)])[0].met, Some(false));
        assert_eq!(judge_clustering(&[])[0].met, None);
        let rates = |write_bps| ReadWrite { sizes: [Rates { write_bps, read_bps: 1e9 }; SIZES.len()] };
        let seen = &judge_read_write(&[rates(2e9)])[0];
        assert_eq!(seen.met, Some(true));
        assert!(seen.measured.contains("262 kB: writes 2.00 GB/s, reads 1.00 GB/s"), "{}", seen.measured);
        assert_eq!(judge_read_write(&[rates(7e8)])[0].met, Some(false));
    }
}
