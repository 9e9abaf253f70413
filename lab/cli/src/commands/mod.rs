//! One module per subcommand; those that build and change labs are in `hosts`.

pub mod bench;
pub mod completions;
pub mod demo;
pub mod hosts;
pub mod man;
