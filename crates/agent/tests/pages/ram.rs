//! Is a guest's RAM for tests, which can be written wrong.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::memfd::{MFdFlags, memfd_create};
use skein_dataplane::{FindRam, RamNotFound};
use skein_guest_ram::{AccessError, Ram};

pub const PAGE: usize = 4096;

/// Says which pages each round sends: one of so many.
pub const STEPS: [usize; 3] = [1, 4, 7];

/// Returns whether another round than the first sends a page.
pub fn is_rewritten(page: usize) -> bool {
    STEPS[1..].iter().any(|step| page.is_multiple_of(*step))
}

/// A guest's RAM, a file in memory.
#[derive(Clone)]
pub struct FakeRam {
    pub file: Arc<File>,
    /// Held while the file is read or changed, but by rails.
    pub turn: Arc<Mutex<()>>,
    /// How many writes are done wrong from now on.
    pub wrong: Arc<AtomicU64>,
    /// Whether QEMU has its RAM somewhere else.
    pub elsewhere: bool,
    /// Whether the RAM is out of the agent's reach.
    pub is_hidden: bool,
}

impl FakeRam {
    pub fn new(bytes: Vec<u8>) -> FakeRam {
        let file = File::from(memfd_create(c"fake", MFdFlags::MFD_CLOEXEC).unwrap());
        file.write_all_at(&bytes, 0).unwrap();
        let (file, turn) = (Arc::new(file), Arc::default());
        FakeRam { file, turn, wrong: Arc::default(), elsewhere: false, is_hidden: false }
    }

    /// Returns all bytes.
    pub fn content(&self) -> Vec<u8> {
        let _turn = self.turn.lock().unwrap();
        let mut bytes = vec![0; self.bytes() as usize];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    pub fn find(&self) -> FindRam {
        let ram = self.clone();
        Box::new(move |info| match &info.name[..] {
            "pc.ram" if !ram.is_hidden => Ok(Box::new(ram.clone())),
            name => Err(RamNotFound::NoBlock(name.to_owned())),
        })
    }
}

impl Ram for FakeRam {
    fn bytes(&self) -> u64 {
        self.file.metadata().unwrap().len()
    }

    fn file(&self) -> Option<(&File, Range<u64>)> {
        Some((&self.file, 0..self.bytes()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let _turn = self.turn.lock().unwrap();
        self.file.write_all_at(data, offset).unwrap();
        // No later round writes this page again, and mends it.
        let first = offset as usize / PAGE;
        let lasting = (first..first + data.len() / PAGE).find(|page| !is_rewritten(*page));
        if let Some(page) = lasting
            && self.wrong.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            let mut byte = [0];
            self.file.read_exact_at(&mut byte, (page * PAGE + 77) as u64).unwrap();
            self.file.write_all_at(&[byte[0] ^ 1], (page * PAGE + 77) as u64).unwrap();
        }
        Ok(())
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        self.write(offset, &vec![0; bytes as usize])
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let _turn = self.turn.lock().unwrap();
        self.file.read_exact_at(out, offset).unwrap();
        Ok(())
    }

    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError> {
        let mut held = vec![0; bytes as usize];
        self.read(offset, &mut held)?;
        Ok(held.iter().all(|byte| *byte == 0))
    }

    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        if self.elsewhere {
            out.fill(0);
            return Ok(());
        }
        self.read(offset, out)
    }
}
