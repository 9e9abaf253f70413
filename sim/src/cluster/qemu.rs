//! A QEMU process as agents see it: migration states, sockets, a guest whose memory changes while it runs.
//!
//! What it does when was observed with QEMU 7.2 and 10.0: it stops at `pre-switchover` until it is told to go on; it
//! resumes by itself when a connection breaks in `active` or `device`, notices nothing in `pre-switchover`, and stays
//! stopped once `completed`; `cont` then works, whatever runs elsewhere. A target that loses its connection before it
//! has everything ends; one that has everything waits for `cont`, also when the source has resumed meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use skein_handover::MigrationId;
use skein_session::StreamId;

use super::{HostIx, LinkIx, QemuIx, VmIx};
use crate::rng::Rng;
use crate::world::End;

pub const PAGE_BYTES: usize = 4096;
/// What a unix socket holds.
pub const SOCKET_BYTES: usize = 64 << 10;
/// Pages that QEMU writes at once.
const BATCH: usize = 8;
const HEADER_BYTES: usize = 9;
/// The last byte that the target says on the return path.
pub const SHUT: u8 = b'S';

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The process was started; its monitor does not answer yet.
    Starting,
    /// It waits for a guest or receives it.
    Incoming,
    /// It has all of the guest, paused.
    Loaded,
    Running,
    Migrating,
    PreSwitchover,
    Device,
    Completed,
}

/// One connection of a migration.
#[derive(Default)]
pub struct SimChannel {
    /// Where its agent carries it.
    pub stream: Option<(LinkIx, End, StreamId)>,
    /// Written by QEMU, not read by its agent.
    pub out: VecDeque<Bytes>,
    pub out_bytes: usize,
    /// QEMU has closed its end: nothing follows.
    pub out_closed: bool,
    /// Written by its agent, not read by QEMU.
    pub input: Vec<u8>,
    pub input_closed: bool,
    /// It stands at this barrier.
    barrier: Option<u32>,
}

impl SimChannel {
    pub fn push(&mut self, bytes: Bytes) {
        self.out_bytes += bytes.len();
        self.out.push_back(bytes);
    }

    /// At most so many bytes of what QEMU wrote.
    pub fn take(&mut self, most: usize) -> Option<Bytes> {
        let front = self.out.front_mut()?;
        let bytes = if front.len() > most { front.split_to(most) } else { self.out.pop_front()? };
        self.out_bytes -= bytes.len();
        Some(bytes)
    }
}

pub struct Qemu {
    pub host: HostIx,
    pub vm: VmIx,
    /// The migration that it was started for.
    pub incoming: Option<MigrationId>,
    /// The migration that it is the source of.
    pub outgoing: Option<MigrationId>,
    pub alive: bool,
    pub state: State,
    /// It ran the guest at some time.
    pub ran: bool,
    /// Version of each page.
    pub image: Vec<u32>,
    /// The first is QEMU's main channel.
    pub channels: Vec<SimChannel>,
    /// Pages to send in this round.
    todo: VecDeque<u32>,
    pub round: u32,
    /// A connection broke.
    pub broken: bool,
    /// All was written, or all was read.
    pub ended: bool,
    /// The target's last word arrived.
    pub shut: bool,
    /// Counts migrations, so that what was meant for one does not meet the next.
    pub epoch: u32,
    pub scheduled: bool,
    /// Its monitor's lines come in order.
    pub monitor_at: u64,
}

/// What the source's next step is.
#[derive(Debug, PartialEq, Eq)]
pub enum Produced {
    /// Its sockets are full.
    Blocked,
    /// A round is over.
    Round,
    /// Everything was written.
    End,
}

/// What became of the bytes that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Loaded {
    NotYet,
    All,
    /// The connection ended in the middle.
    Lost,
    /// Wrong bytes.
    Corrupt(String),
}

/// A buffer that is counted as long as anybody holds any part of it.
struct Tracked(Vec<u8>, Arc<AtomicI64>);

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

pub fn tracked(bytes: Vec<u8>, live: &Arc<AtomicI64>) -> Bytes {
    live.fetch_add(1, Ordering::Relaxed);
    Bytes::from_owner(Tracked(bytes, live.clone()))
}

/// What a page holds in a version.
fn page(vm: VmIx, page: u32, version: u32) -> &'static [u8] {
    /// Not a multiple of anything that bytes are cut into, so that no two places look alike.
    const PERIOD: usize = 65_521;
    static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
    let block = BLOCK.get_or_init(|| {
        let mut rng = Rng::new(1);
        let period: Vec<u8> = (0..PERIOD).map(|_| rng.next() as u8).collect();
        period.iter().copied().cycle().take(PERIOD + PAGE_BYTES).collect()
    });
    let key = (vm as u64) << 48 ^ u64::from(page) << 24 ^ u64::from(version);
    let start = Rng::new(key).below(PERIOD as u64) as usize;
    &block[start..start + PAGE_BYTES]
}

fn header(tag: u8, first: u32, second: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [tag; HEADER_BYTES];
    bytes[1..5].copy_from_slice(&first.to_be_bytes());
    bytes[5..].copy_from_slice(&second.to_be_bytes());
    bytes
}

impl Qemu {
    pub fn new(host: HostIx, vm: VmIx, incoming: Option<MigrationId>, image: Vec<u32>) -> Qemu {
        Qemu {
            host,
            vm,
            incoming,
            outgoing: None,
            alive: true,
            state: State::Starting,
            ran: false,
            image,
            channels: Vec::new(),
            todo: VecDeque::new(),
            round: 0,
            broken: false,
            ended: false,
            shut: false,
            epoch: 0,
            scheduled: false,
            monitor_at: 0,
        }
    }

    /// For a report of what does not go on.
    pub fn shown(&self) -> String {
        let channels: Vec<String> = self
            .channels
            .iter()
            .map(|c| {
                let SimChannel { stream, out_bytes, out_closed, input, input_closed, barrier, .. } = c;
                format!(
                    "{:?}: out {out_bytes} closed {out_closed}, in {} closed {input_closed}, barrier {barrier:?}",
                    stream.map(|(_, _, id)| id.0),
                    input.len()
                )
            })
            .collect();
        let Qemu { state, todo, round, broken, ended, shut, scheduled, .. } = self;
        format!(
            "{state:?}, {} pages to send in round {round}, broken {broken}, ended {ended}, shut {shut}, scheduled \
             {scheduled}, channels {channels:?}",
            todo.len()
        )
    }

    pub fn runs(&self) -> bool {
        self.alive && matches!(self.state, State::Running | State::Migrating)
    }

    /// `migrate`: the first round has all pages.
    pub fn begin(&mut self, channels: usize) {
        self.epoch += 1;
        self.state = State::Migrating;
        self.channels = (0..channels).map(|_| SimChannel::default()).collect();
        self.todo = (0..self.image.len() as u32).collect();
        (self.round, self.broken, self.ended, self.shut) = (0, false, false, false);
    }

    pub fn next_round(&mut self, pages: impl IntoIterator<Item = u32>) {
        self.todo.extend(pages);
        self.round += 1;
    }

    /// Writes pages while the sockets have room; the round's end is a barrier on every channel.
    pub fn produce(&mut self, live: &Arc<AtomicI64>) -> Produced {
        if self.ended {
            return Produced::Blocked;
        }
        let bulk = if self.channels.len() > 1 { 1..self.channels.len() } else { 0..1 };
        while !self.todo.is_empty() {
            let emptiest = bulk.clone().min_by_key(|channel| self.channels[*channel].out_bytes).expect("one at least");
            if self.channels[emptiest].out_bytes >= SOCKET_BYTES {
                return Produced::Blocked;
            }
            let mut bytes = Vec::with_capacity(BATCH * (PAGE_BYTES + HEADER_BYTES));
            for number in self.todo.drain(..self.todo.len().min(BATCH)) {
                let version = self.image[number as usize];
                bytes.extend(header(b'P', number, version));
                bytes.extend(page(self.vm, number, version));
            }
            self.channels[emptiest].push(tracked(bytes, live));
        }
        for channel in &mut self.channels {
            channel.push(tracked(header(b'B', self.round, 0).to_vec(), live));
        }
        if self.state == State::Migrating {
            return Produced::Round;
        }
        self.channels[0].push(tracked(header(b'E', self.image.len() as u32, 0).to_vec(), live));
        self.ended = true;
        Produced::End
    }

    /// Reads what arrived.
    pub fn load(&mut self) -> Loaded {
        loop {
            let mut moved = false;
            for number in 0..self.channels.len() {
                match self.load_channel(number) {
                    Ok(progress) => moved |= progress,
                    Err(why) => return Loaded::Corrupt(why),
                }
            }
            if let Some(first) = self.channels.first().and_then(|channel| channel.barrier)
                && self.channels.iter().all(|channel| channel.barrier == Some(first))
            {
                self.channels.iter_mut().for_each(|channel| channel.barrier = None);
                moved = true;
            }
            if self.ended {
                return Loaded::All;
            }
            if !moved {
                // Only who would read more notices that nothing comes.
                let lost = self.channels.iter().any(|c| c.input_closed && c.barrier.is_none());
                return if lost { Loaded::Lost } else { Loaded::NotYet };
            }
        }
    }

    fn load_channel(&mut self, number: usize) -> Result<bool, String> {
        let channel = &mut self.channels[number];
        let mut at = 0;
        while channel.barrier.is_none() && channel.input.len() - at >= HEADER_BYTES && !self.ended {
            let head = &channel.input[at..at + HEADER_BYTES];
            let tag = head[0];
            let word = |from: usize| u32::from_be_bytes(head[from..from + 4].try_into().expect("four bytes"));
            let (first, second) = (word(1), word(5));
            match tag {
                b'P' => {
                    let body = at + HEADER_BYTES..at + HEADER_BYTES + PAGE_BYTES;
                    let Some(bytes) = channel.input.get(body.clone()) else { break };
                    if first as usize >= self.image.len() || bytes != page(self.vm, first, second) {
                        return Err(format!("page {first} of VM {} arrived with other bytes", self.vm));
                    }
                    self.image[first as usize] = second;
                    at = body.end;
                }
                b'B' => {
                    channel.barrier = Some(first);
                    at += HEADER_BYTES;
                }
                b'E' if number == 0 && first as usize == self.image.len() => {
                    self.ended = true;
                    at += HEADER_BYTES;
                }
                _ => return Err(format!("channel {number} of VM {} carries what was never written", self.vm)),
            }
        }
        channel.input.drain(..at);
        Ok(at > 0)
    }
}

/// The other name of a process.
pub fn shown(qemu: QemuIx) -> String {
    format!("qemu{qemu}")
}
