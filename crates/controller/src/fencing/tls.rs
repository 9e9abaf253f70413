//! Which certificate is a management controller's: one that is known by its digest, or one that a known CA has issued.
//!
//! Management controllers make their own certificates, with names and ends that nobody looks after. So a digest is all
//! that counts where one is set.

use std::sync::{Arc, Mutex, PoisonError};

use ::aws_lc_rs::digest;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

/// Which certificates are trusted.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Without TLS there is no certificate.
    Nothing,
    /// As this configuration says.
    Tls(Arc<ClientConfig>),
}

/// Why no certificate can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The CA's certificate cannot be read.
    #[error("the CA that is set cannot be read")]
    Ca(#[source] rustls::pki_types::pem::Error),
    /// The CA's certificate cannot be used.
    #[error("the CA that is set cannot be used")]
    Tls(#[from] Error),
    /// The CA's certificate cannot be used.
    #[error("the CA that is set cannot be used")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// A certificate that is not the one that is set.
#[derive(Debug, thiserror::Error)]
#[error("the certificate has the SHA-256 {seen}, and {set} is set")]
struct OtherCertificate {
    seen: String,
    set: String,
}

impl Trust {
    /// Returns what a device's settings trust.
    pub fn of(certificate_sha256: Option<&str>, ca: Option<&str>) -> Result<Trust, TrustError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match (certificate_sha256, ca) {
            (Some(sha256), _) => {
                let sha256 = sha256.to_ascii_lowercase();
                Arc::new(KnownCertificate { sha256, seen: Arc::default(), provider: provider.clone() })
            }
            (None, Some(pem)) => {
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    roots.add(certificate.map_err(TrustError::Ca)?)?;
                }
                WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build()?
            }
            (None, None) => return Ok(Trust::Nothing),
        };
        Trust::by(verifier, provider)
    }

    /// Trusts no certificate. Returns where the SHA-256 of the one is noted that a device shows.
    pub fn noting() -> Result<(Trust, Arc<Mutex<String>>), TrustError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let known = KnownCertificate { sha256: String::new(), seen: Arc::default(), provider: provider.clone() };
        let seen = known.seen.clone();
        Ok((Trust::by(Arc::new(known), provider)?, seen))
    }

    fn by(verifier: Arc<dyn ServerCertVerifier>, provider: Arc<CryptoProvider>) -> Result<Trust, TrustError> {
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(Trust::Tls(Arc::new(config)))
    }
}

/// Takes one certificate, whatever its name and its time.
#[derive(Debug)]
struct KnownCertificate {
    sha256: String,
    /// The SHA-256 of the certificate that was shown.
    seen: Arc<Mutex<String>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for KnownCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let digest = digest::digest(&digest::SHA256, end_entity);
        let seen: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&seen);
        if seen == self.sha256 {
            return Ok(ServerCertVerified::assertion());
        }
        let other = OtherCertificate { seen, set: self.sha256.clone() };
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(other)))))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
