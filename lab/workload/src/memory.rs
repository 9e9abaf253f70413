//! The RAM under test.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, RwLock};

use skein_workload::{PAGE_BYTES, Pacer, Page, Params, Pattern, Sweep};

use crate::sys;

/// How many pages are handled under one lock: some 100 µs under an emulated CPU.
const BATCH: usize = 32;
/// How often a writer wakes, in nanoseconds.
const WRITE_TICK_NS: u64 = 2_000_000;
/// How often the background verifier wakes, in nanoseconds.
const VERIFY_TICK_NS: u64 = 20_000_000;

/// A run of pages with one writer.
struct Slice {
    /// The number of the first page.
    first: u64,
    pages: &'static mut [Page],
    sweep: Sweep,
    /// How many rewrites are done. With the pattern, this says all about the contents.
    written: u64,
}

impl Slice {
    fn rewrite(&mut self, pattern: &Pattern) {
        let (index, version) = self.sweep.next(self.written);
        pattern.rewrite(self.first + index, version, &mut self.pages[index as usize]);
        self.written += 1;
    }

    fn is_right(&self, pattern: &Pattern, index: usize) -> bool {
        let version = self.sweep.version(index as u64, self.written);
        pattern.check(self.first + index as u64, version, &self.pages[index])
    }
}

/// The result of a verification.
#[derive(Default, Clone, Copy)]
pub struct Found {
    /// How many pages were compared.
    pub pages: u64,
    /// How many of these pages did not hold what was last written.
    pub bad: u64,
    /// The number of the first such page.
    pub first_bad: Option<u64>,
}

impl Found {
    fn take(&mut self, page: u64, right: bool) {
        self.pages += 1;
        if !right {
            self.bad += 1;
            self.first_bad.get_or_insert(page);
        }
    }

    fn add(&mut self, other: Self) {
        self.pages += other.pages;
        self.bad += other.bad;
        self.first_bad = self.first_bad.into_iter().chain(other.first_bad).min();
    }
}

/// Fills so much of the guest's RAM with what does not compress, and gives it back to the kernel, as programs do that
/// end. The kernel leaves in free pages what was there.
///
/// # Errors
///
/// The guest does not have the memory.
pub fn use_and_free(mb: u32) -> Result<(), String> {
    let available = sys::available_mb()?;
    if mb > available {
        return Err(format!("skein.freed_mb={mb}: this guest has {available} MiB to use; give it more RAM"));
    }
    const MIB_WORDS: usize = (1 << 20) / size_of::<u64>();
    let mut word = 1u64;
    let used = (0..mb).map(|_| {
        // Constants of a full period modulo 2^64 (Knuth, The Art of Computer Programming, volume 2, 3.3.4).
        let next = |_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word
        };
        (0..MIB_WORDS).map(next).collect::<Vec<u64>>()
    });
    let used: Vec<Vec<u64>> = used.collect();
    std::hint::black_box(&used);
    Ok(())
}

/// All pages under test.
pub struct Memory {
    pattern: Pattern,
    /// One slice for each writer, and then one that stays as it was filled.
    slices: Vec<RwLock<Slice>>,
    writers: usize,
    /// The rate of all writers together, in pages per second.
    pub rate: AtomicU32,
    verify_rate: u32,
    dirtying: Mutex<bool>,
    resumed: Condvar,
    /// What the verification in the background found so far.
    pub background: Mutex<Found>,
    filled_pages: AtomicU64,
}

impl Memory {
    /// Reserves the memory, without writing to it.
    ///
    /// # Errors
    ///
    /// Why the guest does not have the memory.
    pub fn new(params: &Params) -> Result<Self, String> {
        let pages_of = |mb: u32| mb as usize * (1 << 20) / PAGE_BYTES;
        let available = sys::available_mb()?;
        if params.fill_mb > available {
            let wanted = params.fill_mb;
            return Err(format!("skein.fill_mb={wanted}: this guest has {available} MiB to fill; give it more RAM"));
        }
        let mut rest = sys::map_pages(pages_of(params.fill_mb))?;
        let rewritten = pages_of(params.rewrite_mb);
        let writers = if rewritten == 0 { 0 } else { params.threads as usize };
        let mut slices = Vec::new();
        let mut first = 0;
        for writer in 0..=writers {
            let end = if writer == writers { first + rest.len() } else { rewritten * (writer + 1) / writers };
            let (pages, others) = rest.split_at_mut(end - first);
            rest = others;
            let sweep = Sweep::new(pages.len() as u64);
            slices.push(RwLock::new(Slice { first: first as u64, pages, sweep, written: 0 }));
            first = end;
        }
        Ok(Self {
            pattern: Pattern::new(params.seed, params.compressible, params.rewrite.parts()),
            slices,
            writers,
            rate: AtomicU32::new(params.rate),
            verify_rate: params.verify_rate,
            dirtying: Mutex::new(true),
            resumed: Condvar::new(),
            background: Mutex::default(),
            filled_pages: AtomicU64::new(0),
        })
    }

    /// Returns how many slices have a writer.
    pub fn writers(&self) -> usize {
        self.writers
    }

    /// Returns how many pages are under test.
    pub fn pages(&self) -> u64 {
        self.slices.iter().map(|slice| slice.read().unwrap().pages.len() as u64).sum()
    }

    /// Returns how many pages are filled so far.
    pub fn filled_pages(&self) -> u64 {
        self.filled_pages.load(Relaxed)
    }

    /// Returns how many rewrites are done so far.
    pub fn written(&self) -> u64 {
        self.slices.iter().map(|slice| slice.read().unwrap().written).sum()
    }

    /// Writes every page at version 0.
    pub fn fill(&self) {
        for slice in &self.slices {
            let mut slice = slice.write().unwrap();
            let first = slice.first;
            let jobs = slice.pages.len().div_ceil(sys::cpus()).max(1);
            std::thread::scope(|scope| {
                for (job, pages) in slice.pages.chunks_mut(jobs).enumerate() {
                    scope.spawn(move || {
                        for (index, page) in pages.iter_mut().enumerate() {
                            self.pattern.fill(first + (job * jobs + index) as u64, 0, page);
                            self.filled_pages.fetch_add(1, Relaxed);
                        }
                    });
                }
            });
        }
    }

    /// Starts the rewriting.
    pub fn start_dirtying(&self) {
        *self.dirtying.lock().unwrap() = true;
        self.resumed.notify_all();
    }

    /// Stops the rewriting. When this returns, nothing is written until [`Memory::start_dirtying`].
    pub fn stop_dirtying(&self) {
        *self.dirtying.lock().unwrap() = false;
        // A writer holds a slice's lock, and looks at the flag before the next batch.
        self.slices.iter().for_each(|slice| drop(slice.write().unwrap()));
    }

    /// Returns whether the writers are to write.
    pub fn is_dirtying(&self) -> bool {
        *self.dirtying.lock().unwrap()
    }

    /// Rewrites one slice at its share of the rate, for ever.
    pub fn keep_rewriting(&self, writer: usize) {
        let mut pacer = Pacer::new(sys::now_ns());
        loop {
            // The pacer drops the time spent waiting here, as it does a downtime.
            let on = self.dirtying.lock().unwrap();
            drop(self.resumed.wait_while(on, |on| !*on || self.rate.load(Relaxed) == 0).unwrap());
            let rate = self.rate.load(Relaxed);
            let share = rate / self.writers as u32 + u32::from((writer as u32) < rate % self.writers as u32);
            let mut due = pacer.due(sys::now_ns(), share);
            while due > 0 {
                let mut slice = self.slices[writer].write().unwrap();
                if !self.is_dirtying() {
                    break;
                }
                let batch = due.min(BATCH as u64);
                (0..batch).for_each(|_| slice.rewrite(&self.pattern));
                due -= batch;
            }
            sys::sleep_ns(WRITE_TICK_NS);
        }
    }

    /// Sets the rate of rewriting of all writers together, in pages per second.
    pub fn set_rate(&self, rate: u32) {
        let _on = self.dirtying.lock().unwrap();
        self.rate.store(rate, Relaxed);
        self.resumed.notify_all();
    }

    /// Verifies all pages in turn at the parameters' rate, for ever.
    pub fn keep_verifying(&self) {
        if self.verify_rate == 0 || self.pages() == 0 {
            return;
        }
        let mut pacer = Pacer::new(sys::now_ns());
        loop {
            for slice in &self.slices {
                let mut next = 0;
                while next < slice.read().unwrap().pages.len() {
                    let due = pacer.due(sys::now_ns(), self.verify_rate) as usize;
                    let end = self.verify_batch(slice, next, due.min(BATCH), &mut self.background.lock().unwrap());
                    next = end;
                    sys::sleep_ns(VERIFY_TICK_NS);
                }
            }
        }
    }

    /// Verifies up to `count` pages of a slice from `from` on. Returns where it ended.
    fn verify_batch(&self, slice: &RwLock<Slice>, from: usize, count: usize, found: &mut Found) -> usize {
        let slice = slice.read().unwrap();
        let end = slice.pages.len().min(from + count);
        for index in from..end {
            found.take(slice.first + index as u64, slice.is_right(&self.pattern, index));
        }
        end
    }

    /// Verifies every page, on all CPUs, while the writers go on.
    pub fn verify(&self) -> Found {
        let total = Mutex::new(Found::default());
        for slice in &self.slices {
            let length = slice.read().unwrap().pages.len();
            let next = AtomicUsize::new(0);
            let work = || {
                let mut found = Found::default();
                loop {
                    let from = next.fetch_add(BATCH, Relaxed);
                    if from >= length {
                        break total.lock().unwrap().add(found);
                    }
                    self.verify_batch(slice, from, BATCH, &mut found);
                }
            };
            std::thread::scope(|scope| (0..sys::cpus()).for_each(|_| drop(scope.spawn(work))));
        }
        total.into_inner().unwrap()
    }

    /// Returns a hash of all contents. Stop the rewriting first if the hash is to be compared.
    pub fn hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for slice in &self.slices {
            for word in slice.read().unwrap().pages.iter().flatten() {
                hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
        }
        hash
    }

    /// Flips one bit of a page, by default of the last one, so that verification has something to find. Returns the
    /// page.
    ///
    /// # Errors
    ///
    /// If there is no such page.
    pub fn corrupt(&self, page: Option<u64>) -> Result<u64, String> {
        let last = self.pages().checked_sub(1).ok_or("no page is under test: fill_mb is 0")?;
        let page = page.unwrap_or(last);
        for slice in &self.slices {
            let mut slice = slice.write().unwrap();
            let first = slice.first;
            if let Some(content) = page.checked_sub(first).and_then(|i| slice.pages.get_mut(i as usize)) {
                content[page as usize % content.len()] ^= 1 << (page % 64);
                return Ok(page);
            }
        }
        Err(format!("page {page} is not under test: the last is {last}"))
    }
}
