//! The disk under test: the start of the first virtio disk, written and read past the guest's page cache.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;

use skein_workload::{PAGE_BYTES, PAGE_WORDS, Pacer, Page, Params, Pattern, Sweep};

use crate::sys;

const DEVICE: &str = "/dev/vda";
const TICK_NS: u64 = 20_000_000;
/// How many blocks are written at once when filling: 1 MiB.
const FILL_BLOCKS: usize = 256;

/// A block with the alignment that O_DIRECT needs.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Block(Page);

impl Block {
    fn bytes(blocks: &mut [Self]) -> &mut [u8] {
        let length = size_of_val(blocks);
        // SAFETY: a Block is plain 64-bit words without padding (4096 bytes, aligned to 4096), so its memory is
        // valid as bytes and any bytes are valid words; the borrow is exclusive for the slice's lifetime.
        unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), length) }
    }
}

/// What was done and found so far.
#[derive(Default, Clone)]
pub struct Report {
    /// How many blocks were written since the disk was filled.
    pub written: u64,
    /// How many blocks were read back and compared.
    pub checked: u64,
    /// How many of these blocks did not hold what was last written.
    pub bad: u64,
    /// The first error of the device.
    pub error: Option<String>,
}

/// The disk under test.
pub struct Disk {
    file: File,
    pattern: Pattern,
    sweep: Sweep,
    rate: u32,
    /// Locked during each write or check, so that both agree about `written`.
    report: Mutex<Report>,
}

impl Disk {
    /// Opens the disk if the parameters ask for one.
    ///
    /// # Errors
    ///
    /// Why the disk cannot be opened.
    pub fn open(params: &Params) -> Result<Option<Self>, String> {
        if params.disk_mb == 0 {
            return Ok(None);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(DEVICE)
            .map_err(|e| format!("{DEVICE}: {e}; skein.disk_mb needs a virtio disk"))?;
        let blocks = u64::from(params.disk_mb) * (1 << 20) / PAGE_BYTES as u64;
        Ok(Some(Self {
            file,
            pattern: Pattern::new(!params.seed, params.compressible, 1),
            sweep: Sweep::new(blocks),
            rate: params.disk_rate,
            report: Mutex::default(),
        }))
    }

    /// Returns how many blocks are under test.
    pub fn blocks(&self) -> u64 {
        self.sweep.pages()
    }

    /// Returns what was found so far.
    pub fn report(&self) -> Report {
        self.report.lock().unwrap().clone()
    }

    /// Writes every block at version 0.
    pub fn fill(&self) {
        let mut report = self.report.lock().unwrap();
        let mut blocks = vec![Block([0; PAGE_WORDS]); FILL_BLOCKS];
        for first in (0..self.blocks()).step_by(FILL_BLOCKS) {
            for (number, block) in (first..).zip(&mut blocks) {
                self.pattern.fill(number, 0, &mut block.0);
            }
            self.write(&mut report, first, &mut blocks);
        }
    }

    /// Writes and checks blocks at the parameters' rate, for ever.
    pub fn keep_working(&self) {
        if self.rate == 0 {
            return;
        }
        let mut pacer = Pacer::new(sys::now_ns());
        let mut block = [Block([0; PAGE_WORDS])];
        loop {
            for _ in 0..pacer.due(sys::now_ns(), self.rate) {
                let mut report = self.report.lock().unwrap();
                let (number, version) = self.sweep.next(report.written);
                self.pattern.fill(number, version, &mut block[0].0);
                self.write(&mut report, number, &mut block);
                report.written += 1;
                // Reads back a block that was written half a pass ago.
                let (old, _) = self.sweep.next(report.written + self.blocks() / 2);
                self.check(&mut report, old, &mut block);
            }
            sys::sleep_ns(TICK_NS);
        }
    }

    /// Reads every block and compares it. Returns how many were compared, and how many were wrong.
    pub fn verify(&self) -> (u64, u64) {
        let mut block = [Block([0; PAGE_WORDS])];
        let bad = (0..self.blocks()).filter(|&number| {
            let mut report = self.report.lock().unwrap();
            !self.check(&mut report, number, &mut block)
        });
        (self.blocks(), bad.count() as u64)
    }

    fn write(&self, report: &mut Report, first: u64, blocks: &mut [Block]) {
        if let Err(error) = self.file.write_all_at(Block::bytes(blocks), first * PAGE_BYTES as u64) {
            report.error.get_or_insert_with(|| format!("writing block {first}: {error}"));
        }
    }

    fn check(&self, report: &mut Report, number: u64, block: &mut [Block; 1]) -> bool {
        let right = match self.file.read_exact_at(Block::bytes(block), number * PAGE_BYTES as u64) {
            Ok(()) => self.pattern.check(number, self.sweep.version(number, report.written), &block[0].0),
            Err(error) => {
                report.error.get_or_insert_with(|| format!("reading block {number}: {error}"));
                false
            }
        };
        report.checked += 1;
        report.bad += u64::from(!right);
        right
    }
}
