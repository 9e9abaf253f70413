//! A source's worker over a guest in virtual time: each order and each failure of it, and what happens to a copy.

mod copies;
mod orders;
mod world;
