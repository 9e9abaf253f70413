//! A cluster in words: what a file or a live cluster means in the numbers of [`skein_placement`], and what its numbers
//! mean in words.
//!
//! | module | decides |
//! |---|---|
//! | [`cluster`] | what a cluster in words means in numbers, and which of its rules are broken |
//! | [`explain`] | why a guest cannot be on a host, what would help, and why a guest was moved |
//! | [`import`] | what the clusters of other programs are in words |
//!
//! The search for placements is in a crate of its own, since it is built for speed, and this one for size
//! (docs/decisions/0047-size.md). This crate, too, reads no files and no clocks and starts no threads.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod explain;
pub mod import;
