//! Keeps buffers for use again: fresh memory costs a page fault for every 4 KiB, 0.25 s a GB.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use skein_link::{BufferSource, LinkEnd};
use skein_pages::packing::PageCompressor;
use skein_pages::page_record::PAGE_RECORD_BYTES_MAX;
use skein_session::limits::{CHUNK_BYTES_MAX, INFLIGHT_MAX};

/// Bounds small buffers. Up to this, malloc is as fast, with memory that it has.
const SMALL_BYTES: usize = 64 << 10;
/// Bounds the free buffers kept of each size, in bytes: as much as may be on its way on a path, 32 MiB.
const FREE_BYTES_MAX: usize = INFLIGHT_MAX as usize;
/// Holds the sizes of buffers: a chunk, or a batch with what packing may add.
const CLASSES: [usize; 2] = [CHUNK_BYTES_MAX / 2, PageCompressor::OUT_BYTES];
const _: () = assert!(PageCompressor::OUT_BYTES >= CHUNK_BYTES_MAX);
/// An uncompressed batch fits into a chunk, so that none of its pages is torn.
const _: () = assert!(PAGE_RECORD_BYTES_MAX <= CHUNK_BYTES_MAX);

/// A stock of free buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    free: Arc<[Mutex<Vec<Vec<u8>>>; 2]>,
}

/// A buffer that goes back to its pool when nothing holds a piece of it any more.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    pool: Pool,
}

impl Pool {
    /// Returns a buffer of `len` bytes with any contents.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let class = CLASSES.iter().position(|&size| len > SMALL_BYTES && len <= size);
        let bytes = match class {
            Some(class) => {
                let free = self.free[class].lock().pop();
                free.unwrap_or_else(|| vec![0; CLASSES[class]])
            }
            None => vec![0; len],
        };
        Buffer { bytes, len, pool: self.clone() }
    }
}

impl BufferSource for Pool {
    fn filled(&self, bytes: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<(), LinkEnd>) -> Result<Bytes, LinkEnd> {
        let mut buffer = self.take(bytes);
        fill(buffer.as_mut())?;
        Ok(buffer.freeze())
    }
}

impl Buffer {
    /// Shortens the buffer.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer shareable.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(class) = CLASSES.iter().position(|&size| size == self.bytes.len()) else { return };
        let mut free = self.pool.free[class].lock();
        if free.len() < FREE_BYTES_MAX / CLASSES[class] {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_when_the_last_piece_goes() {
        let pool = Pool::default();
        let mut buffer = pool.take(100_000);
        buffer.as_mut()[0] = 7;
        buffer.truncate(10);
        let bytes = buffer.freeze();
        let piece = bytes.slice(..1);
        assert_eq!(bytes.len(), 10);
        drop(bytes);
        assert_eq!(pool.free[0].lock().len(), 0);
        drop(piece);
        assert_eq!(pool.free[0].lock().len(), 1);
        let again = pool.take(100_000);
        assert_eq!((again.as_ref()[0], pool.free[0].lock().len()), (7, 0));
    }
}
