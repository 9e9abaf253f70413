//! Keeps buffers for use again: fresh memory costs a page fault for every 4 KiB, 0.25 s a GB.

use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use skein_fabric::{Arena, ArenaPart};
use skein_link::{BufferSource, LinkEnd};
use skein_pages::BATCH_BYTES_MAX;
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

/// How many batches are in memory that rails have registered: 32 MiB.
const BATCHES: usize = 128;

/// A stock of free buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    free: Arc<[Mutex<Vec<Vec<u8>>>; 2]>,
    /// What rails have registered, once there are rails.
    arena: Arc<OnceLock<Arc<Arena>>>,
}

/// A buffer that goes back to its pool when nothing holds a piece of it any more.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Memory,
    len: usize,
    pool: Pool,
}

#[derive(Debug)]
enum Memory {
    Own(Vec<u8>),
    Registered(ArenaPart),
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
        Buffer { memory: Memory::Own(bytes), len, pool: self.clone() }
    }

    /// Returns a buffer of a batch's `len` bytes with any contents, in memory that rails have registered if there is
    /// some.
    pub(crate) fn take_for_rails(&self, len: usize) -> Buffer {
        let part = self.arena.get().filter(|_| len > SMALL_BYTES && len <= BATCH_BYTES_MAX).and_then(Arena::take);
        match part {
            Some(part) => Buffer { memory: Memory::Registered(part), len, pool: self.clone() },
            None => self.take(len),
        }
    }

    /// Returns the memory of batches that rails are to register, and makes that first.
    ///
    /// # Errors
    /// The system has no room for as much.
    pub(crate) fn arena(&self) -> io::Result<&Arc<Arena>> {
        if self.arena.get().is_none() {
            // Of two that make one at once the first is kept.
            let _ = self.arena.set(Arena::new(BATCHES, BATCH_BYTES_MAX)?);
        }
        self.arena.get().ok_or_else(|| io::ErrorKind::NotFound.into())
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
        match &self.memory {
            Memory::Own(bytes) => &bytes[..self.len],
            Memory::Registered(part) => &part.bytes()[..self.len],
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Own(bytes) => &mut bytes[..self.len],
            Memory::Registered(part) => &mut part.bytes_mut()[..self.len],
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Memory::Own(bytes) = &mut self.memory else { return };
        let Some(class) = CLASSES.iter().position(|&size| size == bytes.len()) else { return };
        let mut free = self.pool.free[class].lock();
        if free.len() < FREE_BYTES_MAX / CLASSES[class] {
            free.push(std::mem::take(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_in_registered_memory_once_there_is_some_and_as_long_as_that_lasts() {
        let pool = Pool::default();
        let is_registered = |buffer: &Buffer| pool.arena().unwrap().range_of(buffer.as_ref()).is_some();
        let before = pool.take_for_rails(100_000);
        assert!(!is_registered(&before) && !is_registered(&pool.take(100_000)));
        let mut batches: Vec<Buffer> = (0..=BATCHES).map(|_| pool.take_for_rails(BATCH_BYTES_MAX)).collect();
        assert_eq!(batches.iter().filter(|buffer| is_registered(buffer)).count(), BATCHES);
        batches[0].as_mut().fill(3);
        let bytes = batches.swap_remove(0).freeze();
        drop(batches);
        assert!(bytes.iter().all(|byte| *byte == 3));
        assert!(!is_registered(&pool.take_for_rails(10)), "small ones are copied");
    }

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
