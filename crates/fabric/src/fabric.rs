//! Says what a fabric is: memory that both ends' NICs reach, and the endpoints that move it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::memory::{Arena, ArenaPart, SharedMemory};

/// What went wrong with a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum FabricError {
    /// The library is not there, or cannot be used.
    #[error("{0}")]
    NoLibrary(String),
    /// A rail is not to be used, for a reason in words.
    #[error("{0}")]
    Refused(String),
    /// A call of the library failed.
    #[error("{call}: {words} ({code})")]
    Call {
        /// The call, as libfabric names it.
        call: String,
        /// The error's number: errno, or libfabric's own from 256 on.
        code: i32,
        /// The number in libfabric's words.
        words: String,
    },
    /// Memory cannot be had.
    #[error("no memory: {0}")]
    NoMemory(String),
    /// The library said something that makes no sense.
    #[error("the provider misbehaves: {0}")]
    Misbehaves(String),
    /// The process of the rail cannot be had, has ended, or does not answer.
    #[error("the process of the rail {0}")]
    Process(String),
}

/// What a rail's provider can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// The provider's name: `verbs;ofi_rxm`, `efa`, `tcp;ofi_rxm`.
    pub provider: String,
    /// The protocol on the wire and its version. Both ends must have the same.
    pub protocol: (u32, u32),
    /// The name of the device.
    pub device: String,
    /// How many bytes of immediate data come with a write. Below 4: none that is of use, as with iWARP.
    pub immediate_bytes: usize,
    /// How many bytes a single operation moves at most.
    pub operation_bytes_max: usize,
}

impl Abilities {
    /// Returns whether a write can carry four bytes of immediate data.
    pub fn has_immediates(&self) -> bool {
        self.immediate_bytes >= 4
    }
}

/// Who may use registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Operations of this end alone.
    Local,
    /// A peer that knows the key, too, who writes and reads nothing. Devices enforce that; `tcp;ofi_rxm` lets the peer
    /// read.
    RemoteWrite,
    /// A peer that knows the key, too, who reads and writes.
    RemoteReadWrite,
}

impl Access {
    /// Returns whether a peer has access.
    pub fn is_remote(self) -> bool {
        self != Access::Local
    }
}

/// Memory that a rail has registered, until this is dropped and no operation uses the memory.
pub trait Region: Send + Sync {
    /// Returns how many bytes the memory has.
    fn bytes(&self) -> usize;

    /// Returns where the memory lies for the peer.
    fn remote(&self) -> RemoteMemory;

    /// Lets an implementation have its own type back.
    fn as_any(&self) -> &dyn std::any::Any;
}

impl fmt::Debug for dyn Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// A part of registered memory.
#[derive(Clone, Debug)]
pub struct Slice {
    region: Arc<dyn Region>,
    range: Range<usize>,
}

impl Slice {
    /// Returns the part of the region. `None`: the region is not as long.
    pub fn new(region: Arc<dyn Region>, range: Range<usize>) -> Option<Slice> {
        (range.start <= range.end && range.end <= region.bytes()).then_some(Slice { region, range })
    }

    /// Returns the region.
    pub fn region(&self) -> &Arc<dyn Region> {
        &self.region
    }

    /// Returns which bytes of the region these are.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns how many bytes these are.
    pub fn bytes(&self) -> usize {
        self.range.len()
    }
}

/// A part of registered memory that nothing else at this end refers to.
#[derive(Debug)]
pub struct Slot {
    part: ArenaPart,
    slice: Slice,
}

impl Slot {
    /// Registers fresh memory, and returns that in slots of `bytes` bytes, with where the first lies for the peer.
    ///
    /// # Errors
    /// As [`Endpoint::register`], or there is no memory.
    pub fn register(
        endpoint: &dyn Endpoint,
        count: usize,
        bytes: usize,
        access: Access,
        key: u64,
    ) -> Result<(Vec<Slot>, RemoteMemory), FabricError> {
        let no_memory = |error: std::io::Error| FabricError::NoMemory(error.to_string());
        let arena = Arena::new(count, bytes).map_err(no_memory)?;
        let region = endpoint.register(arena.memory(), access, key)?;
        let slot = |part: ArenaPart| {
            let slice = Slice { region: region.clone(), range: part.range() };
            Slot { part, slice }
        };
        let slots = std::iter::from_fn(|| arena.take()).map(slot).collect();
        Ok((slots, region.remote()))
    }

    /// Returns the slot's first bytes, for an operation. The slot has as many.
    pub fn first(&self, bytes: usize) -> Slice {
        self.part(0..bytes)
    }

    /// Returns some of the slot's bytes, for an operation. The slot has them.
    pub fn part(&self, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.slice.bytes(), "{range:?} of {}", self.slice.bytes());
        let begin = self.slice.range.start;
        Slice { region: self.slice.region.clone(), range: begin + range.start..begin + range.end }
    }

    /// Returns the bytes. No operation of this end may write them now. From a peer that breaks the protocol, bytes may
    /// come that change meanwhile.
    pub fn bytes(&self) -> &[u8] {
        self.part.bytes()
    }

    /// Returns the bytes, to be written. No operation may use them now.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.part.bytes_mut()
    }
}

/// Memory of the peer that the peer has registered for this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMemory {
    /// The address of its first byte: a virtual address there, or 0 where the provider counts from the region's begin.
    pub address: u64,
    /// The key that the peer's NIC asks for.
    pub key: u64,
}

/// What became of a try to begin an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Begun {
    /// The operation is under way. A completion will say how it ended.
    Yes,
    /// There is no room now: take completions, and try again.
    Busy,
}

/// What an endpoint reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Completion {
    /// An operation of this end is done. Its memory may be used again; what was written is in the peer's memory.
    Done {
        /// The token that the operation was begun with.
        token: u64,
    },
    /// An operation of this end failed. The connection to the peer is of no use any more.
    Failed {
        /// The token that the operation was begun with; `None`: not known.
        token: Option<u64>,
        /// Why it failed.
        why: FabricError,
    },
    /// A message of the peer has arrived.
    Received {
        /// The token that the receive was begun with.
        token: u64,
        /// How long the message is.
        bytes: usize,
    },
    /// The peer has written into this end's memory, and sent this along.
    Written {
        /// The token of the receive that this used up, with providers that use one up.
        token: Option<u64>,
        /// The immediate data. A claim of the peer.
        immediate: u32,
    },
}

/// An endpoint of a rail, for operations with one peer. All calls return at once, but [`Self::wait`].
///
/// No order is promised, neither of operations nor of their completions (EFA has none).
pub trait Endpoint {
    /// Returns what the provider can do.
    fn abilities(&self) -> &Abilities;

    /// Returns the name by which a peer finds this endpoint.
    fn name(&self) -> &[u8];

    /// Names the peer. Once, before the first operation.
    ///
    /// # Errors
    /// The name is none of this provider's.
    fn connect(&self, name: &[u8]) -> Result<(), FabricError>;

    /// Registers memory. The provider may choose another key than `key`; see [`Region::remote`]. What the peer may
    /// write is kept until the endpoint is closed.
    ///
    /// # Errors
    /// The system lets this process lock no more memory (`ulimit -l`), or the device has no room.
    fn register(&self, memory: &SharedMemory, access: Access, key: u64) -> Result<Arc<dyn Region>, FabricError>;

    /// Takes a message, or the notice of a write, when one comes. May be called before [`Self::connect`].
    ///
    /// # Errors
    /// The provider refuses.
    fn receive(&self, into: &Slice, token: u64) -> Result<Begun, FabricError>;

    /// Sends a message, for which the peer must have begun a receive.
    ///
    /// # Errors
    /// The provider refuses.
    fn send(&self, from: &Slice, token: u64) -> Result<Begun, FabricError>;

    /// Writes into the peer's memory. With `immediate` the peer gets a notice, for which it must have begun a receive.
    ///
    /// # Errors
    /// The provider refuses, or has no immediate data.
    fn write(&self, from: &Slice, to: RemoteMemory, immediate: Option<u32>, token: u64) -> Result<Begun, FabricError>;

    /// Reads the peer's memory. Migrations only write; the bench compares both.
    ///
    /// # Errors
    /// The provider refuses.
    fn read(&self, into: &Slice, from: RemoteMemory, token: u64) -> Result<Begun, FabricError>;

    /// Adds what has happened to `completions`, as far as is known without waiting.
    ///
    /// # Errors
    /// The endpoint is of no use any more.
    fn poll(&self, completions: &mut Vec<Completion>) -> Result<(), FabricError>;

    /// Waits until there may be a completion, [`Self::wake`] is called, or `patience` is over.
    fn wait(&self, patience: Duration);

    /// Ends a wait, the one under way or else the next.
    fn wake(&self);

    /// Takes no completions from now on, and begins nothing: the endpoint only stays open, for a peer that still uses
    /// it. To be called before the peer may close its own endpoint, which crashes `ofi_rxm` of libfabric 1.17 where the
    /// other end takes completions.
    fn rest(&self);

    /// Closes the endpoint: when this returns, nothing of the peer's is written to this end's memory any more, and no
    /// operation begins. What is registered stays so until the regions and the endpoint are dropped, because letting go
    /// of much memory takes a while.
    ///
    /// # Errors
    /// It cannot be said that the endpoint is closed.
    fn close(&self) -> Result<(), FabricError>;
}

/// An endpoint that threads share.
pub type SharedEndpoint = Arc<dyn Endpoint + Send + Sync>;
