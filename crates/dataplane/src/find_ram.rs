//! Finds the RAM of a guest.

use skein_guest_ram::{FindError, Ram};
use skein_pages::page_record::BlockInfo;
use thiserror::Error;

/// Finds the RAM of a guest, block by block.
pub type FindRam = Box<dyn Fn(&BlockInfo) -> Result<Box<dyn Ram>, RamNotFound> + Send + Sync>;

/// The reason why a block of a guest's RAM cannot be reached.
#[derive(Debug, Error)]
pub enum RamNotFound {
    /// The guest's QEMU has no such block.
    #[error("QEMU has no RAM block '{0}' here")]
    NoBlock(String),
    /// The block's memory cannot be mapped.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The block has another size than its source says, or a size that no block can have.
    #[error("block '{name}' has {source_bytes} bytes at the source, {target_bytes} at the target")]
    Size {
        /// The name of the block.
        name: String,
        /// The block's size at the source.
        source_bytes: u64,
        /// The block's size here.
        target_bytes: u64,
    },
}
