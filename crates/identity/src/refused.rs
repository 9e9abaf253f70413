//! Tells of clients' certificates that a controller refuses: TLS itself forgets them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::certificate::CertificateInfo;

/// A client's certificate that was refused. The client has not proven that the certificate's key is the client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCertificate {
    /// The host that the certificate names. `None`: the cluster's CA has not signed the certificate, or it is no
    /// host's.
    pub host: Option<String>,
    /// The first second of validity.
    pub not_before: Timestamp,
    /// The last second of validity.
    pub not_after: Timestamp,
}

/// Takes what was refused, on the thread that carries out the handshake.
pub type TellRefused = Arc<dyn Fn(RefusedCertificate) + Send + Sync>;

/// Verifies as another verifier does, and tells what that refuses.
pub(crate) struct TellingVerifier {
    pub inner: Arc<dyn ClientCertVerifier>,
    pub tell: TellRefused,
}

impl fmt::Debug for TellingVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TellingVerifier").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl TellingVerifier {
    /// Returns what is told of a certificate. `None`: it cannot be read.
    fn refused(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Option<RefusedCertificate> {
        let info = CertificateInfo::parse(certificate).ok()?;
        let begins = u64::try_from(info.not_before.as_second()).ok()?;
        let then = UnixTime::since_unix_epoch(Duration::from_secs(begins));
        // Dates are looked at before signatures: only this says whose word the name is.
        let is_signed = self.inner.verify_client_cert(certificate, intermediates, then).is_ok();
        let host = info.host().filter(|_| is_signed && info.is_member()).map(str::to_owned);
        Some(RefusedCertificate { host, not_before: info.not_before, not_after: info.not_after })
    }
}

impl ClientCertVerifier for TellingVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.inner.verify_client_cert(end_entity, intermediates, now).inspect_err(|_| {
            if let Some(refused) = self.refused(end_entity, intermediates) {
                (self.tell)(refused);
            }
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.inner.requires_raw_public_keys()
    }
}
