//! The subcommands, one module each.

pub mod agent;
pub mod ca;
pub mod cluster;
pub mod completions;
mod confirm;
mod console;

pub mod doctor;
mod follow;
mod hold;
pub mod host;
mod local;
pub mod man;
pub mod migrate;
pub mod migration;
pub mod net;
mod networks;
pub mod placement;
pub mod session_options;
pub mod text;
pub mod tunnel;
pub mod vm;
