//! The certificate that an identity shows. All TLS configurations of an identity share it, so that it can be replaced
//! while they are in use: connections that are open go on, and new ones show the new certificate.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::{CertificateInfo, ParseError};
use crate::error::IdentityError;
use crate::files::WriteError;
use crate::parts::Parts;

/// Why a certificate does not take the place of the one that is shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewalError {
    /// The text is no certificate.
    #[error("what came is no certificate")]
    Parse(#[from] ParseError),
    /// Others would not take it, or it is of another key.
    #[error("the new certificate is of no use")]
    Identity(#[from] IdentityError),
    /// It is of another name.
    #[error("the new certificate is {new}'s, and this is {own}")]
    OtherName {
        /// The own name.
        own: String,
        /// The certificate's.
        new: String,
    },
    /// It ends no later than the one that is shown.
    #[error("the new certificate ends no later than the one that there is")]
    NotLater,
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A certificate with its key, as TLS takes them, and what the certificate says.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) chain: Arc<[CertificateDer<'static>]>,
    pub(crate) info: Arc<CertificateInfo>,
    certified: Arc<CertifiedKey>,
}

impl Shown {
    /// # Errors
    ///
    /// The key is not the certificate's, or of a kind that TLS does not take.
    pub(crate) fn of(parts: &Parts) -> Result<Shown, rustls::Error> {
        let chain = [&parts.chain[..], &parts.sent_with()].concat();
        let certified = CertifiedKey::from_der(chain, parts.key.clone_key(), &default_provider())?;
        let (chain, info) = (parts.chain.clone().into(), Arc::new(parts.info.clone()));
        Ok(Shown { chain, info, certified: Arc::new(certified) })
    }
}

/// The certificate that is shown at the moment.
#[derive(Debug)]
pub(crate) struct ShownCertificate(RwLock<Arc<Shown>>);

impl ShownCertificate {
    pub(crate) fn new(shown: Shown) -> Arc<ShownCertificate> {
        Arc::new(ShownCertificate(RwLock::new(Arc::new(shown))))
    }

    pub(crate) fn now(&self) -> Arc<Shown> {
        // Whoever held it only copied or set one value.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has `parts`, which are of the same owner, with the certificate `new` in place of the one that is shown, if peers
    /// would take it now. It is kept by `keep` before it is shown.
    pub(crate) fn renew(
        &self,
        parts: &Parts,
        new: CertificateDer<'static>,
        keep: impl FnOnce(&CertificateDer<'static>) -> Result<(), WriteError>,
    ) -> Result<(), RenewalError> {
        let dir = std::path::Path::new("");
        let renewed = Parts::new(parts.owner, dir, parts.roots.clone(), vec![new], parts.key.clone_key())?;
        if renewed.name != parts.name {
            return Err(RenewalError::OtherName { own: parts.name.clone(), new: renewed.name });
        }
        renewed.check(dir, std::time::SystemTime::now())?;
        if renewed.info.not_after <= self.now().info.not_after {
            return Err(RenewalError::NotLater);
        }
        let shown = Shown::of(&renewed).map_err(|error| renewed.refused(dir, error))?;
        keep(&renewed.chain[0])?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(shown);
        Ok(())
    }
}

impl ResolvesClientCert for ShownCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.now().certified.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for ShownCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now().certified.clone())
    }
}
