//! Measures a rail by itself: what gathering scattered pages brings, and reads against writes. Both ends are on this
//! machine, over libfabric's provider for TCP.

use std::{
    fmt,
    time::{Duration, Instant},
};

use skein_fabric::{
    Access, Begun, Completion, FabricError, HostRails, Rails, RemoteMemory, SharedEndpoint, Slice, Slot,
};
use skein_units::measured;

use super::options::{ClusterOptions, rounds};
use super::rails_figure::{Clustering, ReadWrite, SIZES};
use crate::{error::BenchError, mover::RDMA_OVER_TCP};

const PAGE_BYTES: usize = 4096;
/// How many pages are gathered, as many as QEMU sends at once.
const GATHERED: usize = 64;
/// The registered memory of each end. Scattered pages are all over it.
const MEMORY_BYTES: usize = 64 << 20;
/// How much is under way at most.
const OPERATIONS: usize = 32;
const UNDER_WAY_BYTES: usize = 8 << 20;
/// How long each is measured, after as long again in which nothing is counted.
const MEASURED: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(30);
/// How far apart pages that follow each other lie, in pages: a prime, so that all pages take turns.
const STRIDE: usize = 4099;

struct End {
    endpoint: SharedEndpoint,
    memory: Slot,
    at: RemoteMemory,
}

impl End {
    fn open(rails: &HostRails) -> Result<End, FabricError> {
        let none = || FabricError::NoLibrary(format!("{RDMA_OVER_TCP} has no rail on the loopback address"));
        let endpoint = rails.endpoint([127, 0, 0, 1].into())?.ok_or_else(none)?;
        let (mut slots, at) = Slot::register(&*endpoint, 1, MEMORY_BYTES, Access::RemoteReadWrite, 1)?;
        let mut memory = slots.remove(0);
        memory.bytes_mut().fill(0x5a);
        Ok(End { endpoint, memory, at })
    }

    fn page(&self, nth: usize) -> usize {
        nth * STRIDE % (MEMORY_BYTES / PAGE_BYTES) * PAGE_BYTES
    }

    fn remote(&self, offset: usize) -> RemoteMemory {
        RemoteMemory { address: self.at.address + offset as u64, ..self.at }
    }
}

struct Pair {
    here: End,
    there: End,
}

impl Pair {
    fn open(options: &ClusterOptions) -> Result<Pair, FabricError> {
        let words = vec![options.skein.clone().into(), "serve-rail".into()];
        // Each end has a process of its own, as two hosts have.
        let rails = || HostRails::of_providers(words.clone(), vec![RDMA_OVER_TCP.into()]);
        let (here, there) = (End::open(&rails())?, End::open(&rails())?);
        here.endpoint.connect(there.endpoint.name())?;
        there.endpoint.connect(here.endpoint.name())?;
        Ok(Pair { here, there })
    }

    /// Returns how many bytes a second operations of so many bytes move. `begin` begins one; `end` ends one that is
    /// done; both get its number.
    fn rate(
        &mut self,
        bytes: usize,
        begin: impl Fn(&mut Pair, usize) -> Result<Begun, FabricError>,
        end: impl Fn(&mut Pair, usize),
    ) -> Result<f64, FabricError> {
        let most = OPERATIONS.min(UNDER_WAY_BYTES / bytes).max(2);
        let (mut begun, mut done, mut completions) = (0, 0, Vec::new());
        let (started, mut counted) = (Instant::now(), None::<(Instant, usize)>);
        loop {
            while begun - done < most && begin(self, begun)? == Begun::Yes {
                begun += 1;
            }
            for of in [&self.there, &self.here] {
                of.endpoint.poll(&mut completions)?;
            }
            if completions.is_empty() {
                self.here.endpoint.wait(Duration::from_millis(1));
            }
            for completion in completions.drain(..) {
                match completion {
                    Completion::Done { token } => end(self, token as usize),
                    Completion::Failed { why, .. } => return Err(why),
                    other => return Err(FabricError::Misbehaves(format!("{other:?}"))),
                }
                done += 1;
            }
            let now = Instant::now();
            match counted {
                None if now - started >= MEASURED => counted = Some((now, done)),
                Some((since, before)) if now - since >= MEASURED => {
                    self.drain(begun - done)?;
                    return Ok((done - before) as f64 * bytes as f64 / (now - since).as_secs_f64());
                }
                _ => {}
            }
        }
    }

    /// Waits for what is under way.
    fn drain(&mut self, mut left: usize) -> Result<(), FabricError> {
        let (since, mut completions) = (Instant::now(), Vec::new());
        while left > 0 {
            if since.elapsed() >= PATIENCE {
                return Err(FabricError::Misbehaves(format!("{left} operations are not done")));
            }
            self.here.endpoint.poll(&mut completions)?;
            self.there.endpoint.poll(&mut completions)?;
            left = left.saturating_sub(completions.len());
            completions.clear();
        }
        Ok(())
    }

    fn write(&self, from: Slice, offset: usize, nth: usize) -> Result<Begun, FabricError> {
        self.here.endpoint.write(&from, self.there.remote(offset), None, nth as u64)
    }
}

/// Returns where the operation of a number has its bytes.
fn place(nth: usize, bytes: usize) -> usize {
    nth % (MEMORY_BYTES / bytes) * bytes
}

fn one_by_one(pair: &mut Pair) -> Result<f64, FabricError> {
    let begin = |pair: &mut Pair, nth| {
        let offset = pair.here.page(nth);
        pair.write(pair.here.memory.part(offset..offset + PAGE_BYTES), offset, nth)
    };
    pair.rate(PAGE_BYTES, begin, |_, _| {})
}

/// Copies scattered pages into one place at this end, and from one place to theirs at the other.
fn gathered(pair: &mut Pair) -> Result<f64, FabricError> {
    let bytes = GATHERED * PAGE_BYTES;
    let begin = |pair: &mut Pair, nth| {
        let at = place(nth, bytes);
        for page in 0..GATHERED {
            let (from, to) = (pair.here.page(nth * GATHERED + page), at + page * PAGE_BYTES);
            pair.here.memory.bytes_mut().copy_within(from..from + PAGE_BYTES, to);
        }
        pair.write(pair.here.memory.part(at..at + bytes), at, nth)
    };
    let end = |pair: &mut Pair, nth| {
        let at = place(nth, bytes);
        for page in 0..GATHERED {
            let (from, to) = (at + page * PAGE_BYTES, pair.there.page(nth * GATHERED + page));
            pair.there.memory.bytes_mut().copy_within(from..from + PAGE_BYTES, to);
        }
    };
    pair.rate(bytes, begin, end)
}

fn failed(error: FabricError) -> BenchError {
    BenchError::Cluster(error.to_string())
}

/// Measures scattered pages.
pub fn clustering(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Clustering>, BenchError> {
    rounds(options, tell, || {
        let mut pair = Pair::open(options).map_err(failed)?;
        let one_by_one_bps = one_by_one(&mut pair).map_err(failed)?;
        Ok(Clustering { one_by_one_bps, gathered_bps: gathered(&mut pair).map_err(failed)? })
    })
}

/// Measures writes and reads.
pub fn read_write(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<ReadWrite>, BenchError> {
    rounds(options, tell, || {
        let mut pair = Pair::open(options).map_err(failed)?;
        let mut seen = ReadWrite::default();
        for (bytes, of) in SIZES.into_iter().zip(&mut seen.sizes) {
            let write = |pair: &mut Pair, nth| {
                let at = place(nth, bytes);
                pair.write(pair.here.memory.part(at..at + bytes), at, nth)
            };
            // The end that is to have the bytes reads them.
            let read = |pair: &mut Pair, nth| {
                let (at, Pair { here, there }) = (place(nth, bytes), pair);
                there.endpoint.read(&there.memory.part(at..at + bytes), here.remote(at), nth as u64)
            };
            of.write_bps = pair.rate(bytes, write, |_, _| {}).map_err(failed)?;
            of.read_bps = pair.rate(bytes, read, |_, _| {}).map_err(failed)?;
        }
        Ok(seen)
    })
}

impl fmt::Display for Clustering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [gathered, one_by_one] = [self.gathered_bps, self.one_by_one_bps].map(measured::bytes);
        write!(f, "{gathered}/s gathered, {one_by_one}/s page by page")
    }
}

impl fmt::Display for ReadWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words())
    }
}
