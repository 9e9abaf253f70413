//! Fabrics: memory that the NICs of two hosts read and write, without the other end's CPU.
//!
//! - [`Endpoint`] is what all that moves bytes knows: registered memory, messages, writes with immediate data, reads,
//!   completions.
//! - [`RailProcess`] serves endpoints of libfabric's, in a process of its own ([`serve_rail`]).
//! - [`Rails`] is which of a host's addresses have a rail.
//! - [`Slot`] is a part of registered memory, [`Buffer`] and [`Arena`] are memory to register, [`SharedMemory`] is what
//!   can be.
//!
//! Not here: what is sent, who has proven who he is, and which memory a peer may write.
//!
//! # Invariants
//!
//! - **The library is loaded by the process of a rail alone**, so that what it does costs no more than that process:
//!   tests that kill and stop it (`rail_tests`).
//! - **Memory outlives the operations on it.** An operation keeps its region until its completion was taken, or the
//!   endpoint is closed; an endpoint keeps what its peer may write.
//! - **What a provider or a peer says is checked.** A completion of nothing that was begun is an error.
//! - **No order is assumed**: neither of operations, nor of completions.

#![deny(unsafe_op_in_unsafe_fn)]

mod fabric;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod ffi;
mod library;
mod memory;
mod process;
mod rail;
#[cfg(test)]
mod rail_tests;
mod rails;
#[cfg(any(test, feature = "fake"))]
pub mod test_process;

pub use fabric::{
    Abilities, Access, Begun, Completion, Endpoint, FabricError, Region, RemoteMemory, SharedEndpoint, Slice, Slot,
};
pub use memory::{Arena, ArenaPart, Buffer, SharedMemory};
pub use process::{RailProcess, serve_rail};
pub use rails::{HostRails, Rails, rail_of};
