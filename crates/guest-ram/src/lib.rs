//! The shared RAM of a QEMU process: which blocks it has, where their memory is, and that memory mapped into this
//! process.
//!
//! - [`parse_ramblocks`]: QEMU's own table of its RAM blocks. Pure.
//! - [`map`]: finds a block's memory in a process and maps it, if it can be shared; each reason why not is an error.
//! - [`Mapped`]: reads and writes it.
//!
//! QEMU goes on using the memory that is mapped here, and its guest writes to it at any time. So no `&[u8]` of it is
//! ever made: all that this crate has of it is a slice of atomics, and bytes are copied in and out.
//!
//! # When the memory goes away
//!
//! Touching a page of a mapped file for which there is no memory is not an error that a program sees, but SIGBUS: the
//! process dies. What is done about it:
//!
//! - *No room* (the tmpfs is full, no huge page is left): a page is written to only after it was populated, which
//!   fails in an ordinary way. What was never populated here is read with `pread`, which takes no memory.
//! - *A file that shrinks*: the size is checked when it is mapped. QEMU seals the size of its memfd (`seal=on`, its
//!   default); that of a file in `/dev/shm` can be changed by whoever may write to it, QEMU too:
//!   [`Mapped::can_shrink`] tells. Nothing protects from that but a process that may die.
//! - *A QEMU that dies*: the memory stays until it is unmapped here.
//! - *Pages given back* after they were populated here (balloon, `virtio-mem`, a postcopy's discards) are populated
//!   again by the next touch, and that kills the process if there is no memory for them then. A target that waits for
//!   a migration's bytes gives nothing back; so map late, and unmap before the guest runs.
//!
//! Memory is charged to the cgroup of who touches a page first: what is populated here, to this process's.
//!
//! Not here: what to write, and when. Who may map a QEMU's memory: whoever may open its `/proc/PID/map_files`
//! (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE) or its `/proc/PID/fd` (same user), and write to the file.

#![deny(unsafe_code)]

mod find;
mod mapped;
mod mapping;
mod maps;
mod table;
mod touched;
mod words;

pub use find::{MapError, map};
pub use mapped::{AccessError, Mapped};
pub use table::{NAME_BYTES_MAX, ParseError, RamBlock, host_address, parse_ramblocks, seen_at};
