//! A target's worker over a guest in virtual time: each order and each failure of it, and what comes of the guest.

mod orders;
mod world;
