//! Tests a target's worker with a guest in virtual time: each order, each failure of an order, and what becomes of the
//! guest.

mod orders;
mod world;
