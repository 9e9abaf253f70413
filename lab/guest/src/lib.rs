//! The lab's guest: kernel, initramfs, boot, and what the workload inside reports.
//!
//! ```no_run
//! # use std::{process::Command, time::Duration};
//! # use skein_lab_guest::*;
//! # fn main() -> Result<(), Error> {
//! let image = Image::prepare(&default_cache())?;
//! let params = Params { fill_mb: 100, rewrite_mb: 50, rate: 5000, ..Params::default() };
//! let spec = Spec::new("demo", image, 256, params);
//! // The closure says where QEMU runs: `|qemu| lab.command("a", qemu)` for a host of the lab.
//! let mut source = Guest::boot(&spec, |qemu| Command::new(qemu))?;
//! source.wait_ready(Duration::from_secs(60))?;
//! let mut target = Guest::incoming(&spec, |qemu| Command::new(qemu))?;
//! let uri = "tcp:127.0.0.1:4444";
//! let moved = migrate(&mut source, &mut target, (uri, uri), &Tuning::default(), Duration::from_secs(60), |_| {})?;
//! let verdict = target.agent().verify(Duration::from_secs(60))?;
//! println!("{:?} {:?}, {} of {} pages bad", moved.info.downtime, moved.gaps, verdict.bad, verdict.pages);
//! # Ok(())
//! # }
//! ```
//!
//! - [`Image`]: a kernel and an initramfs, obtained once; [`SharedDisk`]: what both hosts see.
//! - [`Spec`] → [`Guest`]: a QEMU with channels into the guest. `guest.qemu.qmp` is its control socket.
//! - [`WorkloadClient`]: commands for the workload ([`Status`], [`WorkloadCheck`]).
//! - [`Beats`], [`Gaps`]: the heartbeat as seen from outside.
//! - [`migrate`]: QEMU's own migration, directly or through whatever joins the two addresses.
//!
//! What the workload does is described with [`Params`]; how all this is meant, in `docs/guest.md`.

mod beats;
mod guest;
mod image;
mod initramfs;
mod kernel;
mod workload_client;

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

pub use beats::{Beat, Beats, Gaps};
pub use guest::{Guest, Migration, Spec, migrate};
pub use image::{
    Image, SOFTWARE_BUILD, SOFTWARE_VARIABLE, SharedDisk, WORKLOAD_BUILD, WORKLOAD_VARIABLE, default_cache,
    find_software, find_workload,
};
pub use skein_hypervisor::{Compression, MemoryBackend, MigrationInfo, MigrationStatus, Tls, Tuning};
pub use skein_workload::{BEAT_PORT, CONTROL_PORT, Params, PortAddress, Rewrite};
pub use workload_client::{BeatStatus, DiskStatus, QUICK_COMMAND_TIME, Status, WorkloadCheck, WorkloadClient};

/// Why something with a guest failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or socket failed.
    #[error("{what} {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The workload program is not built.
    #[error("the guest's workload is not built; run: {WORKLOAD_BUILD} (or name it with {WORKLOAD_VARIABLE})")]
    NoWorkload,
    /// The software's archive is not made.
    #[error("the guest's software is not made; run: {SOFTWARE_BUILD} (or name it with {SOFTWARE_VARIABLE})")]
    NoSoftware,
    /// There is no usable kernel.
    #[error("the guest's kernel: {0}")]
    Kernel(String),
    /// QEMU does not start.
    #[error("the guest's QEMU")]
    Start(#[from] skein_hypervisor::Error),
    /// QEMU's control socket failed.
    #[error("the guest's QEMU, over QMP")]
    Qmp(#[from] skein_hypervisor::QmpError),
    /// QEMU ended.
    #[error("QEMU ended with {status}: {stderr}; the guest's last words: {console}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// QEMU's standard error.
        stderr: String,
        /// The end of the guest's console.
        console: String,
    },
    /// The workload does not report that it is ready.
    #[error("the guest is not ready after {} s; its last words: {console}", after.as_secs())]
    NotReady {
        /// How long it was waited for.
        after: Duration,
        /// The end of the guest's console.
        console: String,
    },
    /// The channel into the guest failed.
    #[error("{0}")]
    Agent(String),
    /// The workload refused a command.
    #[error("the guest refuses: {0}")]
    Refused(String),
    /// A migration failed.
    #[error("the migration {}: {}; the target: {target}", status_word(info), info.error.as_deref().unwrap_or("no \
        reason given"))]
    Migration {
        /// The source QEMU's report.
        info: Box<MigrationInfo>,
        /// What the target QEMU wrote to standard error.
        target: String,
    },
}

fn status_word(info: &MigrationInfo) -> String {
    format!("is {:?}", info.status).to_lowercase()
}

impl Error {
    fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
