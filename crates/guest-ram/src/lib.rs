//! The RAM of a QEMU process: which blocks it has, where their memory is, and that memory, to read and write.
//!
//! - [`parse_ramblocks`]: QEMU's own table of its RAM blocks. Pure.
//! - [`find()`], [`find_shared`], [`find_private`]: find a block's memory in a process; each reason why not is an
//!   error.
//! - [`Memory`]: reads and writes memory that QEMU shares; [`ProcessMemory`]: QEMU's own. [`Ram`] is how their users
//!   know both.
//! - [`own_bytes_outside`]: how much memory a process has beside its guest's RAM.
//!
//! Memory of ordinary pages is written and read as the file that it is. Huge pages have to be mapped. QEMU goes on
//! using what is mapped here, and its guest writes to it at any time: so no `&[u8]` of it is ever made. All that this
//! crate has of it is a slice of atomics, and bytes are copied in and out.
//!
//! # When the memory goes away
//!
//! - *No room* (the tmpfs is full): writing fails in an ordinary way.
//! - *A file that shrinks*: QEMU seals the size of its memfd (`seal=on`, its default); that of a file in `/dev/shm` can
//!   be changed by whoever may write to it, QEMU too: [`Memory::can_shrink`] tells. Its size is looked at before each
//!   write.
//! - *A QEMU that dies*: shared memory stays until it is let go here. What was QEMU's own is gone, and each access to
//!   it is an error.
//!
//! Touching a page of a mapped file for which there is no memory is not an error that a program sees, but SIGBUS: the
//! process dies. So of what is mapped
//!
//! - a page is written to only after it was populated, which fails in an ordinary way if no huge page is left; what was
//!   never populated here is read with `pread`, which takes no memory;
//! - a file that shrinks nevertheless, and pages given back after they were populated here (balloon, `virtio-mem`, a
//!   postcopy's discards) for which there is no memory then, kill the process. A target that waits for a migration's
//!   bytes gives nothing back; so map late, and unmap before the guest runs.
//!
//! Memory is charged to the cgroup of who touches a page first: what is populated here, to this process's.
//!
//! Not here: what to write, and when. Who may map a QEMU's memory: whoever may open its `/proc/PID/map_files`
//! (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE) or its `/proc/PID/fd` (same user), and write to the file.

#![deny(unsafe_code)]

mod find;
mod mapping;
mod maps;
mod memory;
mod own_memory;
mod process_address;
mod process_memory;
mod ram;
mod table;
mod touched;
mod words;
mod zeros;

pub use find::{FindError, find, find_private, find_shared, is_guest_ram};
pub use memory::Memory;
pub use own_memory::own_bytes_outside;
pub use process_memory::ProcessMemory;
pub use ram::{AccessError, Ram};
pub use table::{NAME_BYTES_MAX, ParseError, RamBlock, host_address, parse_ramblocks, seen_at};
