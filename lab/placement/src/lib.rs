//! What placement is measured on: public problems of research, and a recorded day that is played to policies.
//!
//! | module | does |
//! |---|---|
//! | [`roadef`] | reads Google's machine reassignment (ROADEF/EURO challenge 2012), writes assignments |
//! | [`btrplace`] | reads instances of BtrPlace, writes its plans |
//! | [`ucc15`] | reads and writes plans of Kherbache et al., UCC 2015 |
//! | [`planetlab`] | reads PlanetLab's traces, as CloudSim has them |
//! | [`replay`] | plays a day of traces to policies, and measures what comes of it |
//!
//! Each format is a text that becomes a [`Problem`](skein_placement::problem::Problem) or a
//! [`Job`](skein_placement::schedule::Job). The crate reads no files and no clocks and starts no threads. Nothing that
//! is installed depends on it.

#![forbid(unsafe_code)]

pub mod btrplace;
pub mod planetlab;
pub mod replay;
pub mod roadef;
pub mod ucc15;
