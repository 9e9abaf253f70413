//! Tests a source's worker with a guest in virtual time: each order, each failure of an order, and what happens to a
//! copy.

mod copies;
mod holds;
mod orders;
mod world;
