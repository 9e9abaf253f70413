//! Amounts as people read them. Pure.
#![forbid(unsafe_code)]

pub mod measured;
