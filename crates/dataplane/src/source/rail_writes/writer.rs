//! Is a rail's thread, which writes batches into the target guest's RAM.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_fabric::{Begun, Completion, FabricError, RemoteMemory, SharedEndpoint, Slice};

use super::memory::{RailMemory, SLOTS};
use super::{Outcome, RailStatus, RailWrites, Run, WriteJob};
use crate::rail_paths::RailPaths;

/// How long a rail's thread waits before it tries again what the endpoint did not take, and at most without a word.
const RETRY_WAIT: Duration = Duration::from_micros(100);
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// How long a rail has for a write. One that takes longer has failed.
const WRITE_TIME: Duration = Duration::from_secs(5);

/// A batch that is being written.
struct SlotJob {
    job: Arc<WriteJob>,
    /// How many operations are not done.
    operations_left: usize,
    since: Instant,
}

/// A rail's thread.
pub(super) struct Writer {
    rails: Arc<RailWrites>,
    number: usize,
    endpoint: SharedEndpoint,
    memory: RailMemory,
    /// The slots that no batch has, whether or not that lies in the slot.
    free: Vec<usize>,
    /// The batches that are being written, by slot.
    jobs: BTreeMap<usize, SlotJob>,
    /// Operations that are not begun yet: the batch's slot, from where, and where to.
    to_begin: VecDeque<(usize, Slice, RemoteMemory)>,
}

impl Writer {
    pub(super) fn new(rails: Arc<RailWrites>, number: usize, endpoint: SharedEndpoint, memory: RailMemory) -> Writer {
        let free = (0..SLOTS).collect();
        Writer { rails, number, endpoint, memory, free, jobs: BTreeMap::new(), to_begin: VecDeque::new() }
    }

    /// Writes until the migration is over, or the rail fails. `peer` names the other end.
    pub(super) fn run(mut self, peer: &[u8], paths: &dyn RailPaths, path: u32) {
        let mut completions = Vec::new();
        if let Err(why) = self.endpoint.connect(peer).and_then(|()| self.serve(&mut completions, paths, path)) {
            let words = format!(
                "RDMA: path {path}: the rail that writes the guest's RAM failed, and pages go otherwise: {why}"
            );
            self.rails.state.lock().tell(words);
            let jobs = self.jobs.into_values().map(|of| of.job);
            self.rails.end_rail(self.number, RailStatus::Failed, jobs);
        }
    }

    /// Writes until the migration is over.
    fn serve(
        &mut self,
        completions: &mut Vec<Completion>,
        paths: &dyn RailPaths,
        path: u32,
    ) -> Result<(), FabricError> {
        loop {
            self.endpoint.poll(completions)?;
            let mut is_idle = completions.is_empty();
            for completion in completions.drain(..) {
                paths.written(path, self.take(completion)?);
            }
            is_idle &= !self.begin_jobs();
            while let Some((slot, from, to)) = self.to_begin.front() {
                if self.endpoint.write(from, *to, None, *slot as u64)? == Begun::Busy {
                    break;
                }
                self.to_begin.pop_front();
            }
            if self.rails.state.lock().rails[self.number].is_lost {
                return Err(FabricError::Misbehaves("its path is lost, or does not go over RDMA any more".into()));
            }
            if self.jobs.values().any(|of| of.since.elapsed() >= WRITE_TIME) {
                return Err(FabricError::Misbehaves(format!("a write is not done within {} s", WRITE_TIME.as_secs())));
            }
            if self.jobs.is_empty() && self.rails.state.lock().is_over {
                self.endpoint.rest();
                self.rails.end_rail(self.number, RailStatus::Ended, []);
                return Ok(());
            }
            if is_idle {
                self.endpoint.wait(if self.to_begin.is_empty() { IDLE_WAIT } else { RETRY_WAIT });
            }
        }
    }

    /// Takes a completion. Returns how many bytes are written by that.
    fn take(&mut self, completion: Completion) -> Result<u64, FabricError> {
        let strange = || FabricError::Misbehaves("a completion of nothing that was begun".into());
        let token = match completion {
            Completion::Done { token } => token,
            Completion::Failed { why, .. } => return Err(why),
            _ => return Err(strange()),
        };
        let slot = usize::try_from(token).map_err(|_| strange())?;
        let of = self.jobs.get_mut(&slot).ok_or_else(strange)?;
        of.operations_left -= 1;
        if of.operations_left > 0 {
            return Ok(0);
        }
        let job = of.job.clone();
        self.jobs.remove(&slot);
        self.free.push(slot);
        self.rails.state.lock().rails[self.number].load -= 1;
        self.rails.clear(&job.planned);
        job.end(Outcome::Written);
        Ok(job.planned.bytes() as u64)
    }

    /// Takes batches that wait, as long as slots are free. Returns whether there was any.
    fn begin_jobs(&mut self) -> bool {
        let mut has_begun = false;
        while let Some(&slot) = self.free.last() {
            let (job, places) = {
                let mut state = self.rails.state.lock();
                let Some(job) = state.rails[self.number].queue.pop_front() else { break };
                let place = |run: &Run| state.place(self.number, job.planned.block, run.first);
                let places: Option<Vec<RemoteMemory>> = job.planned.runs.iter().map(place).collect();
                (job, places)
            };
            // A rail's slices are never taken back.
            let Some(places) = places else {
                job.end(Outcome::Failed);
                continue;
            };
            has_begun = true;
            self.free.pop();
            for (run, to) in job.planned.runs.iter().zip(places) {
                self.to_begin.push_back((slot, self.memory.at_hand(slot, &job.batch.content, run.bytes()), to));
            }
            let operations_left = job.planned.runs.len();
            self.jobs.insert(slot, SlotJob { job, operations_left, since: Instant::now() });
        }
        has_begun
    }
}
