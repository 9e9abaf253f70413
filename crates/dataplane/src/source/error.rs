//! Tells why pages cannot go on at their source.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use skein_guest_ram::AccessError;
use skein_pages::LedgerError;
use skein_pages::page_record::{PageMessage, PageRecordError};
use skein_qemu_stream::NotUnderstood;
use skein_qemu_stream::main_channel::Opaque;
use thiserror::Error;

/// The reason why the pages of a migration cannot go on, found at the source. The guest goes on where it is.
#[derive(Debug, Error)]
pub(crate) enum SourceError {
    /// The migration would go on without direct placement.
    #[error("pages cannot be written straight into the guest's RAM")]
    Unplaceable(#[source] Unplaceable),
    /// The target's agent says what it may not say, or may not say now.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// What the target's agent sends is no record, or what it is to be sent does not fit into a record.
    #[error(transparent)]
    Record(#[from] PageRecordError),
    /// An answer or event did not come in time.
    #[error("not known within {} s: {awaited}", after.as_secs())]
    Late {
        /// The awaited answer or event.
        awaited: Awaited,
        /// How long the source waited.
        after: Duration,
    },
    /// The stream was torn down.
    #[error("the connection is over")]
    Over,
    /// The target has torn the migration's streams down, for this reason.
    #[error("{0}")]
    TornDown(String),
    /// Another stream of the migration cannot go on.
    #[error(transparent)]
    OtherStream(Arc<SourceError>),
    /// QEMU sends a page that is in no block.
    #[error("QEMU's stream makes no sense")]
    NoPage(#[source] LedgerError),
    /// QEMU sends a page that begins where no page has a number.
    #[error("QEMU's stream makes no sense: a page at {0:#x}")]
    NoNumber(u64),
    /// The target's copy differs from the guest's RAM, and was sent again in vain.
    #[error("the target's copy of the guest's RAM differs from the guest's, and could not be mended")]
    Differs,
    /// The target's copy differs from the guest's RAM, which cannot be sent again.
    #[error("the target's copy of the guest's RAM differs from the guest's, which this agent cannot read")]
    DiffersOutOfReach,
    /// The guest's RAM cannot be read.
    #[error("the guest's RAM cannot be read")]
    Read(#[source] AccessError),
    /// A page of the guest's RAM was asked for that is in no block.
    #[error(transparent)]
    NoRam(LedgerError),
    /// A thread that compared the guest's RAM has panicked.
    #[error("a thread that compared the guest's RAM has panicked")]
    Panicked,
    /// No thread can be started.
    #[error(transparent)]
    Thread(io::Error),
}

impl SourceError {
    /// Returns whether the error says only that a stream is over. That follows from another reason.
    pub(crate) fn is_end_only(&self) -> bool {
        match self {
            Self::Over => true,
            Self::OtherStream(other) => other.is_end_only(),
            _ => false,
        }
    }

    /// Returns whether the error is the target's word.
    pub(crate) fn is_targets(&self) -> bool {
        match self {
            Self::TornDown(_) => true,
            Self::OtherStream(other) => other.is_targets(),
            _ => false,
        }
    }
}

/// The message that the target's agent has sent out of place.
#[derive(Debug, Error)]
pub(crate) enum ProtocolError {
    #[error("the target's agent said something out of place: {0:?}")]
    Message(PageMessage),
    #[error("the target's agent speaks of RAM that there is not")]
    NoSuchRam,
    #[error("the target's agent sent a record that is not its to send")]
    SourcesRecord,
}

/// The answer or event that a source waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Awaited {
    #[error("whether it writes pages itself")]
    Mode,
    #[error("whether its copy is the same")]
    Comparison,
    #[error("QEMU's channels")]
    Channels,
    #[error("whether it has closed a rail that failed")]
    Fence,
}

/// The reason why the target's agent should not have written pages itself, though it has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unplaceable {
    #[error("QEMU's stream has something that this version does not know")]
    NotUnderstood(#[from] Unknown),
    #[error("QEMU sends deltas of them (xbzrle)")]
    Xbzrle,
    #[error("QEMU begins postcopy")]
    Postcopy,
    #[error("QEMU compresses them itself (multifd-compression)")]
    Compressed,
    #[cfg(feature = "fault-points")]
    #[error("it was planted")]
    Planted,
}

/// The part of QEMU's stream that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unknown {
    /// Bytes that a parser does not know.
    #[error(transparent)]
    Bytes(#[from] NotUnderstood),
    /// A part of the main channel that is not `ram`, before the end of `ram`.
    #[error(transparent)]
    Part(#[from] Opaque),
    /// Pages have numbers of 32 bits.
    #[error("a RAM block of more than 16 TiB")]
    LargeBlock,
}
