//! The subcommands, one module each. Those that build and change labs are all in `hosts`.

pub mod bench;
pub mod completions;
pub mod demo;
pub mod hosts;
pub mod man;
pub mod placement;
