//! Two real libvirt daemons in two of the lab's hosts, and a relay that knows where a migration stands.
//!
//! libvirt is the distribution's own, unpacked beside the build and never installed ([`unpacked`]). A [`World`] is a
//! host with its own view of the file system around one `libvirtd`. [`Relay`] stands between a tunnel and the daemon
//! and acts at an exact moment of the migration's finish.

mod guest;
mod packages;
mod relay;
mod world;

pub use guest::domain_xml;
pub use packages::unpacked;
pub use relay::{Moment, Relay};
pub use world::World;

/// Why there is no libvirt to work with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine cannot have such hosts at all. The reason says what is missing.
    #[error("{0}")]
    Skip(String),
    /// A program ended with an error, or not in time.
    #[error("{program}: {said}")]
    Program {
        /// The program that was run.
        program: String,
        /// Its exit status and what it printed.
        said: String,
    },
    /// A file, socket or process failed.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Adds what was tried to an I/O error.
pub(crate) fn io<S: Into<String>>(what: S) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
///
/// All that the command printed, if it does not succeed.
pub(crate) fn output(command: &mut std::process::Command) -> Result<String, Error> {
    let program = format!("{command:?}");
    let out = command.output().map_err(io(program.clone()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if out.status.success() {
        return Ok(text(&out.stdout));
    }
    let said = format!("{}: {}{}", out.status, text(&out.stdout), text(&out.stderr));
    Err(Error::Program { program, said: said.trim().to_owned() })
}
