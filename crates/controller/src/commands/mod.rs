//! The commands.

pub mod backup;
pub mod generated;
pub mod init;
mod local;
pub mod run;
pub mod ticket;
