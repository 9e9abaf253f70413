//! The first contact of a host that knows no more of its cluster than the fingerprint of its CA's certificate.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use crate::certificate::CertificateInfo;
use crate::tls::pinned_client;
use crate::verify::controller_name;

/// The SHA-256 of a CA's certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CaFingerprint([u8; 32]);

impl CaFingerprint {
    /// Returns the fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Self(bytes)
    }

    /// Returns the fingerprint as 64 hexadecimal digits.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Writes `AB:CD:…`, as `skein ca show` does.
impl fmt::Display for CaFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        f.write_str(&pairs.join(":"))
    }
}

impl fmt::Debug for CaFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text that is no fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint has 64 hexadecimal digits, with or without colons: `skein ca show` prints it")]
pub struct NoFingerprint;

impl FromStr for CaFingerprint {
    type Err = NoFingerprint;

    /// Reads 64 hexadecimal digits of either case, with a colon between each two or without.
    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let pairs: Vec<&[u8]> = match text.len() {
            64 => text.as_bytes().chunks(2).collect(),
            95 => text.as_bytes().split(|byte| *byte == b':').collect(),
            _ => return Err(NoFingerprint),
        };
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(NoFingerprint);
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() {
            return Err(NoFingerprint);
        }
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            let [high, low] = *pair else { return Err(NoFingerprint) };
            *byte = (digit(high)? * 16 + digit(low)?) as u8;
        }
        Ok(Self(bytes))
    }
}

/// Why a server is not taken at the first contact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// No CA with the fingerprint is in what the server shows.
    #[error("it is of another cluster: no CA with the fingerprint {0} is in its certificates")]
    OtherCa(CaFingerprint),
    /// The certificate with the fingerprint is no CA's.
    #[error("the certificate with the fingerprint {0} is not the certificate of a CA")]
    NotCa(CaFingerprint),
    /// The CA has expired, or is not valid yet.
    #[error("the cluster's CA is valid from {from} to {to} only: is this host's clock right?")]
    CaNotValid {
        /// The first day.
        from: String,
        /// The last day.
        to: String,
    },
    /// The certificate is of the cluster, and not a controller's.
    #[error("it is of this cluster, but no controller")]
    NotController,
}

/// Returns the CA with that fingerprint in the chain that a server showed.
pub fn pinned_ca<'a>(
    chain: &'a [CertificateDer<'static>],
    fingerprint: CaFingerprint,
) -> Option<&'a CertificateDer<'static>> {
    chain.iter().find(|certificate| CaFingerprint::of(certificate) == fingerprint)
}

/// Returns the configuration of a client that takes any controller of the cluster whose CA has that fingerprint,
/// whatever the name by which it is dialled. The CA is in what the server shows ([`pinned_ca`]). The client shows
/// nothing, and names no protocol: a caller sets `alpn_protocols`.
pub fn pinned_client_config(fingerprint: CaFingerprint) -> ClientConfig {
    pinned_client(|provider| Arc::new(PinVerifier { fingerprint, provider }))
}

#[derive(Debug)]
struct PinVerifier {
    fingerprint: CaFingerprint,
    provider: Arc<CryptoProvider>,
}

impl PinVerifier {
    /// Returns the trusted CA of a server's certificates.
    fn root(&self, intermediates: &[CertificateDer<'_>], now: UnixTime) -> Result<RootCertStore, Error> {
        let fingerprint = self.fingerprint;
        let ca = intermediates
            .iter()
            .find(|certificate| CaFingerprint::of(certificate) == fingerprint)
            .ok_or_else(|| refused(PinError::OtherCa(fingerprint)))?;
        let info = CertificateInfo::parse(ca).map_err(|_| CertificateError::BadEncoding)?;
        if !info.is_ca {
            return Err(refused(PinError::NotCa(fingerprint)));
        }
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if !(info.not_before.as_second()..=info.not_after.as_second()).contains(&seconds) {
            let day = |time: jiff::Timestamp| time.strftime("%F").to_string();
            return Err(refused(PinError::CaNotValid { from: day(info.not_before), to: day(info.not_after) }));
        }
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        Ok(roots)
    }
}

fn refused(error: PinError) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let roots = Arc::new(self.root(intermediates, now)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, self.provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let verified = verifier
            .verify_server_cert(end_entity, intermediates, &controller_name(), ocsp_response, now)
            .map_err(|error| match error {
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => refused(PinError::NotController),
            error => error,
        })?;
        let info = CertificateInfo::parse(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        info.controller().map(|_| verified).ok_or_else(|| refused(PinError::NotController))
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
