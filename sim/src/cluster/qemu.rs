//! A QEMU process as agents see it: migration states, sockets, a guest whose memory changes while it runs.
//!
//! The behaviour is that of QEMU 7.2 and 10.0, as observed:
//!
//! - A source stops at `pre-switchover` until it is told to go on.
//! - A source whose connection breaks in `active` or `device` resumes the guest by itself. In `pre-switchover` it
//!   notices nothing.
//! - A source that has `completed` stays stopped. `cont` works then, whatever runs elsewhere.
//! - A target that loses its connection before it has everything ends. A target that has everything waits for `cont`,
//!   also when the source has resumed meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use skein_handover::MigrationId;
use skein_session::StreamId;

use super::index::{HostIx, LinkIx, VmIx};
use crate::rng::Rng;
use crate::world::End;

pub const PAGE_BYTES: usize = 4096;
/// How many bytes a unix socket holds.
pub const SOCKET_BYTES: usize = 64 << 10;
/// How many pages QEMU writes at once.
const BATCH: usize = 8;
const HEADER_BYTES: usize = 9;
/// The last byte that the target sends on the return path.
pub const SHUT: u8 = b'S';

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The process was started; its monitor does not answer yet.
    Starting,
    /// The QEMU waits for a guest or receives it.
    Incoming,
    /// The QEMU has all of the guest, paused.
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
    /// The stream in which the agent carries the connection: the session, the end and the stream.
    pub stream: Option<(LinkIx, End, StreamId)>,
    /// What QEMU has written and its agent has not read.
    pub out: VecDeque<Bytes>,
    pub out_bytes: usize,
    /// QEMU has closed its end: no more is written.
    pub out_closed: bool,
    /// What the agent has written and QEMU has not read.
    pub input: Vec<u8>,
    pub input_closed: bool,
    /// The barrier at which the channel waits for the others.
    barrier: Option<u32>,
}

impl SimChannel {
    pub fn push(&mut self, bytes: Bytes) {
        self.out_bytes += bytes.len();
        self.out.push_back(bytes);
    }

    /// Takes at most so many bytes of what QEMU wrote.
    pub fn take(&mut self, most: usize) -> Option<Bytes> {
        let front = self.out.front_mut()?;
        let bytes = if front.len() > most { front.split_to(most) } else { self.out.pop_front()? };
        self.out_bytes -= bytes.len();
        Some(bytes)
    }
}

/// A QEMU process with a guest.
pub struct Qemu {
    pub host: HostIx,
    pub vm: VmIx,
    /// The migration that the QEMU was started for.
    pub incoming: Option<MigrationId>,
    /// The migration that the QEMU is the source of.
    pub outgoing: Option<MigrationId>,
    pub alive: bool,
    pub state: State,
    /// The QEMU has run the guest at some time.
    pub ran: bool,
    /// The version of each page.
    pub image: Vec<u32>,
    /// The first is QEMU's main channel.
    pub channels: Vec<SimChannel>,
    /// The pages to send in this round.
    todo: VecDeque<u32>,
    pub round: u32,
    /// The QEMU was told not to go to the switchover by itself.
    pub holds: bool,
    /// A connection broke.
    pub broken: bool,
    /// A source has written all, or a target has read all.
    pub ended: bool,
    /// The target's last byte arrived.
    pub shut: bool,
    /// Counts migrations, so that what is scheduled in one does not happen in the next.
    pub epoch: u32,
    pub scheduled: bool,
    /// When the last line of the monitor arrives: lines come in order.
    pub monitor_at: u64,
}

/// How far a source came.
#[derive(Debug, PartialEq, Eq)]
pub enum Produced {
    /// The sockets are full.
    Blocked,
    /// The round is over.
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

/// A buffer that is counted as long as any part of it is held.
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

/// Makes a buffer that counts in `live` as long as any part of it is held.
pub fn tracked(bytes: Vec<u8>, live: &Arc<AtomicI64>) -> Bytes {
    live.fetch_add(1, Ordering::Relaxed);
    Bytes::from_owner(Tracked(bytes, live.clone()))
}

/// Returns what a page holds in a version.
fn page(vm: VmIx, page: u32, version: u32) -> &'static [u8] {
    /// A prime, and so no multiple of a length that bytes are cut into: no two places look alike.
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
            holds: false,
            broken: false,
            ended: false,
            shut: false,
            epoch: 0,
            scheduled: false,
            monitor_at: 0,
        }
    }

    /// Returns the QEMU's state, for a report of what does not come to rest.
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

    /// Returns whether the guest runs in this QEMU.
    pub fn runs(&self) -> bool {
        self.alive && matches!(self.state, State::Running | State::Migrating)
    }

    /// Begins a migration, as QMP's `migrate`. The first round has all pages.
    pub fn begin(&mut self, channels: usize) {
        self.epoch += 1;
        self.state = State::Migrating;
        self.channels = (0..channels).map(|_| SimChannel::default()).collect();
        self.todo = (0..self.image.len() as u32).collect();
        (self.round, self.broken, self.ended, self.shut) = (0, false, false, false);
    }

    /// Begins the next round with these pages.
    pub fn next_round(&mut self, pages: impl IntoIterator<Item = u32>) {
        self.todo.extend(pages);
        self.round += 1;
    }

    /// Writes pages until the sockets are full. The round's end is a barrier on every channel.
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

    /// Reads what arrived on all channels.
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
                // A channel that waits at its barrier reads nothing, and does not notice that the connection ended.
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
