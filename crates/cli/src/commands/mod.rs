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
pub mod top;
pub mod tunnel;
pub mod vm;

/// Returns the command that starts this very program, even after another build replaced it, with an argument. Another
/// program may start it.
fn own_command(argument: &str) -> Vec<std::ffi::OsString> {
    [format!("/proc/{}/exe", std::process::id()), argument.to_owned()].map(Into::into).into()
}
