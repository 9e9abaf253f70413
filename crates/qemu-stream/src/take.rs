//! Reading numbers off the front of what has arrived.

use crate::not_understood::NotUnderstood;

/// Why a record could not be read.
#[derive(Debug)]
pub(crate) enum TakeStop {
    /// The record has at least this many bytes.
    Short(usize),
    /// The bytes are not a record.
    Bad(NotUnderstood),
}

impl From<NotUnderstood> for TakeStop {
    fn from(error: NotUnderstood) -> Self {
        Self::Bad(error)
    }
}

/// Takes big-endian numbers and bytes off what has arrived.
#[derive(Debug, Clone)]
pub(crate) struct Take<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Take<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns how many bytes were taken.
    pub fn taken(&self) -> usize {
        self.at
    }

    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], TakeStop> {
        let end = self.at + length;
        let taken = self.bytes.get(self.at..end).ok_or(TakeStop::Short(end))?;
        self.at = end;
        Ok(taken)
    }

    /// Takes up to `most` of the next bytes, as many as there are. Returns how many.
    pub fn some(&mut self, most: u64) -> Result<u64, TakeStop> {
        let there = self.bytes.len() - self.at;
        if there == 0 {
            return Err(TakeStop::Short(self.at + 1));
        }
        let length = most.min(there as u64);
        self.at += length as usize;
        Ok(length)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TakeStop> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub fn u8(&mut self) -> Result<u8, TakeStop> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16, TakeStop> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, TakeStop> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, TakeStop> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Takes a string that follows its length of one byte.
    pub fn str8(&mut self) -> Result<&'a [u8], TakeStop> {
        let length = self.u8()?;
        self.bytes(length.into())
    }
}
