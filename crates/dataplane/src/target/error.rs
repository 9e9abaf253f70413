//! Tells why pages cannot go on at their target.

use std::io;

use skein_fabric::FabricError;
use skein_guest_ram::AccessError;
use skein_pages::LedgerError;
use skein_pages::packing::UnpackError;
use skein_pages::page_record::PageRecordError;
use thiserror::Error;

/// The reason why the pages of a migration cannot go on, found at the target. The migration goes back to the source.
#[derive(Debug, Error)]
pub(crate) enum TargetError {
    /// The source's agent says what it may not say, or may not say now.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// What the source's agent sends is no record.
    #[error(transparent)]
    Record(#[from] PageRecordError),
    /// A batch does not unpack.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// There is no memory to unpack with.
    #[error(transparent)]
    Decompressor(io::Error),
    /// A page is sent that is in no block.
    #[error(transparent)]
    NoPage(#[from] LedgerError),
    /// The guest's RAM cannot be read.
    #[error("the guest's RAM cannot be read")]
    Read(#[source] AccessError),
    /// The guest's RAM cannot be written.
    #[error("the guest's RAM cannot be written")]
    Write(#[source] AccessError),
    /// A rail may still write.
    #[error("a rail into the guest's RAM cannot be closed")]
    RailOpen(#[source] FabricError),
    /// What was written is not what QEMU has in its memory.
    #[error("QEMU has the guest's RAM in another place than it was written to")]
    Elsewhere,
}

/// The message that the source's agent has sent out of place.
#[derive(Debug, Error)]
pub(crate) enum ProtocolError {
    #[error("the source's agent tells of the guest's RAM twice, or of too much")]
    Blocks,
    #[error("the source's agent offers no rails, or more than there may be")]
    Rails,
    #[error("the source's agent ends before it began")]
    EndBeforeBegin,
    #[error("the source's agent tells of more RAM than there is")]
    Regions,
    #[error("the source's agent sends pages of RAM that is not reached here")]
    NotDirect,
    #[error("pages come before it was said of which RAM")]
    PagesBeforeBlocks,
    #[error("pages of RAM that there is not")]
    NoSuchRam,
    #[error("the source's agent said what is the target's to say")]
    TargetsMessage,
    #[error("deltas are not for QEMU")]
    DeltaForQemu,
}
