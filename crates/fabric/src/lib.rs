//! Fabrics: memory that the NICs of two hosts read and write, without the other end's CPU.
//!
//! - [`Endpoint`] is what all that moves bytes knows: registered memory, messages, writes with immediate data, reads,
//!   completions.
//! - [`Library`] is libfabric, loaded when it is first asked for: a host without it has no fabrics, and no error.
//!   [`Rail`] is a device of libfabric's that is open, [`RailEndpoint`] an endpoint of that.
//! - [`Rails`] is which of a host's addresses have a rail.
//! - [`Slot`] is a part of registered memory, [`Buffer`] memory to register.
//!
//! Not here: what is sent, who has proven who he is, and which memory a peer may write.
//!
//! # Invariants
//!
//! - **Memory outlives the operations on it.** An operation keeps its region until its completion was taken, or the
//!   endpoint is closed; an endpoint keeps what its peer may write. Test: `memory_is_kept_while_an_operation_uses_it`.
//! - **What a provider or a peer says is checked.** A completion of nothing that was begun is an error.
//! - **No order is assumed**: neither of operations, nor of completions.

#![deny(unsafe_op_in_unsafe_fn)]

mod fabric;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod ffi;
mod library;
mod memory;
mod rail;
#[cfg(test)]
mod rail_tests;
mod rails;

pub use fabric::{Abilities, Access, Begun, Completion, Endpoint, FabricError, Region, RemoteMemory, Slice, Slot};
pub use library::{Library, Offer};
pub use memory::{Buffer, Memory};
pub use rail::{OPERATIONS_MAX, Rail, RailEndpoint};
pub use rails::{HostRails, Rails};
