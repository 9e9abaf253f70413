//! What carriers need for a whole bench.

use std::path::{Path, PathBuf};

use skein_identity::{ClusterCa, Validity};
use tempfile::TempDir;

use super::carried::CarryError;
use super::qemu_tls;
use crate::site::HOSTS;

/// What carriers need for a whole bench: keys, and the `skein` program.
#[derive(Debug)]
pub struct Kit {
    directory: TempDir,
    skein: PathBuf,
}

impl Kit {
    /// Makes a cluster's CA, an identity for each host, and the files for QEMU's own TLS. `skein` is the program whose
    /// tunnel is measured.
    ///
    /// # Errors
    ///
    /// [`CarryError`] if keys or files cannot be made.
    pub fn new(skein: &Path) -> Result<Self, CarryError> {
        let directory = tempfile::Builder::new()
            .prefix("skein-kit-")
            .tempdir()
            .map_err(|source| CarryError::File { path: std::env::temp_dir(), source })?;
        let kit = Self { directory, skein: skein.into() };
        let ca = ClusterCa::create("skein bench")?;
        for host in HOSTS {
            ca.issue(host, Validity::days(2))?.save(&kit.identity(host))?;
        }
        qemu_tls::prepare(&kit.qemu_tls())?;
        Ok(kit)
    }

    /// Returns the path of the `skein` program.
    pub fn skein(&self) -> &Path {
        &self.skein
    }

    /// Returns the directory of a host's identity.
    pub fn identity(&self, host: &str) -> PathBuf {
        self.directory.path().join(format!("identity-{host}"))
    }

    /// Returns the directory with the credentials of QEMU's own TLS, of server and client. Both hosts use the same.
    pub(super) fn qemu_tls(&self) -> PathBuf {
        self.directory.path().join("qemu-tls")
    }

    /// Returns a directory for the keys of an ssh daemon.
    pub(super) fn ssh(&self) -> PathBuf {
        self.directory.path().join("ssh")
    }
}
