//! A controller's identity. Its certificate is of the cluster's CA as a host's is, but has another mark, so that
//! neither is taken for the other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};

use crate::certificate::CertificateInfo;
use crate::error::IdentityError;
use crate::files::{self, Existing, WriteError};
use crate::identity::Identity;
use crate::parts::{self, Owner, Parts, pem_of};
use crate::refused::TellRefused;
use crate::shown::{RenewalError, Shown, ShownCertificate};
use crate::tls;

/// A controller's identity, complete and consistent: the key belongs to the certificate. Clones show the same
/// certificate, also once it was renewed.
#[derive(Clone)]
pub struct ControllerIdentity {
    /// As they were loaded, the certificate among them.
    parts: Parts,
    /// Where it was loaded from; empty: it was not.
    dir: PathBuf,
    shown: Arc<ShownCertificate>,
    server: Arc<ServerConfig>,
}

impl std::fmt::Debug for ControllerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllerIdentity")
            .field("name", &self.parts.name)
            .field("not_after", &self.info().not_after)
            .finish_non_exhaustive()
    }
}

impl ControllerIdentity {
    /// The CA's certificate in the identity's directory.
    pub const CA_FILE: &str = parts::CA_FILE;
    /// The controller's certificate in the identity's directory.
    pub const CERTIFICATE_FILE: &str = "controller.pem";
    /// The controller's key in the identity's directory.
    pub const KEY_FILE: &str = "controller.key";

    pub(crate) fn new(
        roots: Vec<CertificateDer<'static>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let dir = Path::new("");
        Self::of_parts(dir, Parts::new(Owner::Controller, dir, roots, chain, key)?)
    }

    fn of_parts(dir: &Path, parts: Parts) -> Result<Self, IdentityError> {
        let shown = Shown::of(&parts).map(ShownCertificate::new).map_err(|error| parts.refused(dir, error))?;
        let server = tls::controller_server(&parts, &shown, None).map_err(|error| parts.refused(dir, error))?;
        Ok(Self { parts, dir: dir.to_owned(), shown, server: Arc::new(server) })
    }

    /// Reads `ca.pem`, `controller.pem` and `controller.key` from a directory, and checks everything that an agent
    /// would check now.
    ///
    /// # Errors
    /// An [`IdentityError`] that says what is wrong and what to do.
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        let identity = Self::of_parts(dir, Parts::load(Owner::Controller, dir)?)?;
        identity.parts.check(dir, SystemTime::now())?;
        Ok(identity)
    }

    /// Writes the three files into a directory, which is made if need be.
    ///
    /// # Errors
    /// One of the files is there already, or the directory cannot be written to.
    pub fn save(&self, dir: &Path) -> Result<(), WriteError> {
        self.parts.save(dir)
    }

    /// Writes a certificate into a directory, in place of an earlier one. The key there stays.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_certificate(dir: &Path, certificate: &CertificateDer<'_>) -> Result<(), WriteError> {
        files::create_dir(dir)?;
        files::write(&dir.join(Self::CERTIFICATE_FILE), pem_of(certificate).as_bytes(), 0o644, Existing::Replace)
    }

    /// Shows a certificate with other dates, as [`Identity::renew`] does.
    ///
    /// # Errors
    /// Agents would not take the certificate, it ends no later, or the file cannot be written. Then all is as it was.
    pub fn renew(&self, certificate: CertificateDer<'static>) -> Result<(), RenewalError> {
        self.shown.renew(&self.parts, certificate, |new| match self.dir.as_os_str().is_empty() {
            true => Ok(()),
            false => Self::save_certificate(&self.dir, new),
        })
    }

    /// Returns whether the certificate is to be renewed at `now`. One that ends with its CA is not.
    pub fn is_renewal_due(&self, now: SystemTime) -> bool {
        self.parts.is_renewal_due(&self.info(), now)
    }

    /// Returns the controller's name.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// Returns the controller's certificate, followed by the others up to the CA if there are any.
    pub fn chain(&self) -> Arc<[CertificateDer<'static>]> {
        self.shown.now().chain.clone()
    }

    /// Returns the CAs that the controller trusts: one, except while a cluster changes its CA.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.parts.roots
    }

    /// Returns what the controller's certificate says.
    pub fn info(&self) -> Arc<CertificateInfo> {
        self.shown.now().info.clone()
    }
}

/// Returns the configuration for what a controller accepts on its port: agents
/// ([`CONTROLLER_ALPN`](crate::CONTROLLER_ALPN)), and HTTP (`h2`, `http/1.1`). A client need not show a certificate,
/// but a certificate that it shows has to be of the cluster's CA. [`cluster_peer`](crate::cluster_peer) says whose it
/// is.
pub fn controller_server_config(identity: &ControllerIdentity) -> Arc<ServerConfig> {
    identity.server.clone()
}

/// As [`controller_server_config`]. `tell` hears of clients' certificates that are refused.
///
/// # Errors
/// TLS does not take the identity.
pub fn telling_controller_server_config(
    identity: &ControllerIdentity,
    tell: TellRefused,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let config = tls::controller_server(&identity.parts, &identity.shown, Some(tell));
    config.map(Arc::new).map_err(|error| identity.parts.refused(&identity.dir, error))
}

/// Returns the configuration for a host's connections to controllers, with the ciphers that the identity allows. Dial
/// with [`controller_name`](crate::controller_name) as the server's name, whatever the address, and call
/// [`check_controller`](crate::check_controller) after the handshake.
///
/// # Errors
/// TLS does not take the identity.
pub fn controller_client_config(identity: &Identity) -> Result<Arc<ClientConfig>, IdentityError> {
    let config = tls::controller_client(&identity.ciphers, &identity.parts, &identity.shown);
    config.map(Arc::new).map_err(|error| identity.parts.refused(Path::new(""), error))
}

/// Returns the configuration for a controller's requests to another controller. A caller sets `alpn_protocols`.
///
/// # Errors
/// TLS does not take the identity.
pub fn other_controller_client_config(identity: &ControllerIdentity) -> Result<ClientConfig, IdentityError> {
    tls::other_controller_client(&identity.parts, &identity.shown)
        .map_err(|error| identity.parts.refused(Path::new(""), error))
}
