//! One module per subcommand.

pub mod agent;
pub mod bench;
pub mod ca;
pub mod completions;
mod console;
pub mod dataplane;
pub mod demo;
pub mod doctor;
mod follow;
pub mod host;
pub mod lab;
mod local;
pub mod man;
pub mod migrate;
pub mod migration;
pub mod placement;
pub mod text;
pub mod tunnel;
pub mod vm;
