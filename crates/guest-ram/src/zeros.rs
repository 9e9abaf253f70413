//! Looks for zeros in memory that has holes, and makes zeros there. Holes take no memory by that.

use crate::ram::{AccessError, Ram, check_bounds};

/// How many bytes are checked for zeros at once: these fit a core's cache.
const PIECE_BYTES: usize = 16 << 10;
/// The unit in which zeros are written: a guest's page.
const ZEROS: [u8; 4096] = [0; 4096];

/// Memory that has holes, which are zero.
pub(crate) trait Sparse: Ram {
    /// Returns how many bytes from `at` on are known to be of a hole, at most `bytes`. 0: there is data at `at`.
    fn hole(&self, at: u64, bytes: u64) -> Result<u64, AccessError>;

    /// Reads data that [`Sparse::hole`] found.
    fn read_data(&self, at: u64, out: &mut [u8]) -> Result<(), AccessError>;
}

/// Does the work of [`Ram::is_zero`].
pub(crate) fn is_zero(memory: &impl Sparse, offset: u64, bytes: u64) -> Result<bool, AccessError> {
    look(memory, offset, bytes, |_, seen| Ok(seen.chunks(ZEROS.len()).all(|page| page == &ZEROS[..page.len()])))
}

/// Does the work of [`Ram::zero`].
pub(crate) fn zero(memory: &impl Sparse, offset: u64, bytes: u64) -> Result<(), AccessError> {
    look(memory, offset, bytes, |at, seen| {
        for (number, page) in seen.chunks(ZEROS.len()).enumerate() {
            let zeros = &ZEROS[..page.len()];
            if page != zeros {
                memory.write(at + (number * ZEROS.len()) as u64, zeros)?;
            }
        }
        Ok(true)
    })?;
    Ok(())
}

/// Passes the data in `bytes` bytes at `offset` to `see`, piece after piece, each with its offset, until `see` returns
/// false. Returns whether `see` never returned false.
fn look(
    memory: &impl Sparse,
    offset: u64,
    bytes: u64,
    see: impl Fn(u64, &[u8]) -> Result<bool, AccessError>,
) -> Result<bool, AccessError> {
    let end = check_bounds(offset, bytes, memory.bytes())?;
    let mut at = offset;
    let mut buffer = [0; PIECE_BYTES];
    while at < end {
        let hole = memory.hole(at, end - at)?;
        if hole > 0 {
            at += hole;
            continue;
        }
        let piece = &mut buffer[..(end - at).min(PIECE_BYTES as u64) as usize];
        memory.read_data(at, piece)?;
        if !see(at, piece)? {
            return Ok(false);
        }
        at += piece.len() as u64;
    }
    Ok(true)
}
