//! What a certificate says, for people and for checks.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;

use crate::{CONTROLLER_NAME, MEMBER_NAME};

/// Most certificates of a CA bundle: a bundle of more is not one of Skein's.
const CERTIFICATES_MAX: usize = 16;

/// Why bytes are not valid certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// There is no `BEGIN CERTIFICATE` section.
    #[error("there is no PEM certificate in it")]
    NoCertificate,
    /// A section is cut off or is not base64.
    #[error("it is broken PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// There are more sections than make sense.
    #[error("it holds more than {CERTIFICATES_MAX} certificates")]
    TooMany,
    /// The section's content is not X.509.
    #[error("it is not an X.509 certificate ({0})")]
    X509(String),
}

/// Returns the certificates of a PEM text, in their order. Other sections are skipped.
///
/// # Errors
/// A [`ParseError`] if there is no certificate, too many, or a damaged one.
pub fn parse_pem(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ParseError> {
    let mut certificates = Vec::new();
    for section in CertificateDer::pem_slice_iter(pem) {
        if certificates.len() == CERTIFICATES_MAX {
            return Err(ParseError::TooMany);
        }
        certificates.push(section.map_err(ParseError::Pem)?);
    }
    if certificates.is_empty() { Err(ParseError::NoCertificate) } else { Ok(certificates) }
}

/// What a certificate says about itself. Nothing of this is verified here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The subject's distinguished name, as `CN=…`.
    pub subject: String,
    /// The distinguished name of the certificate's signer.
    pub issuer: String,
    /// The DNS names for which the certificate is valid, in lower case.
    pub names: Vec<String>,
    /// The IP addresses for which the certificate is valid.
    pub addresses: Vec<IpAddr>,
    /// The subject's common name, if it has one.
    pub common_name: Option<String>,
    /// Whether the certificate may sign others.
    pub is_ca: bool,
    /// The first second of validity.
    pub not_before: Timestamp,
    /// The last second of validity.
    pub not_after: Timestamp,
    /// SHA-256 over the DER encoding, as `AB:CD:…`.
    pub fingerprint: String,
    /// The public key, DER of a SubjectPublicKeyInfo.
    pub(crate) public_key: Vec<u8>,
}

impl CertificateInfo {
    /// Parses one certificate.
    ///
    /// # Errors
    /// [`ParseError::X509`] if the bytes are not an X.509 certificate.
    pub fn parse(der: &CertificateDer<'_>) -> Result<Self, ParseError> {
        let x509 = |error: &dyn std::fmt::Display| ParseError::X509(error.to_string());
        let (rest, cert) = x509_parser::parse_x509_certificate(der).map_err(|e| x509(&e))?;
        if !rest.is_empty() {
            return Err(x509(&"bytes after its end"));
        }
        let san = cert.subject_alternative_name().map_err(|e| x509(&e))?;
        let (names, addresses) = alternatives(san.map_or(&[], |san| &san.value.general_names));
        let timestamp =
            |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).map_err(|e| x509(&e));
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der);
        Ok(Self {
            subject: cert.subject().to_string(),
            issuer: cert.issuer().to_string(),
            names,
            addresses,
            common_name: cert
                .subject()
                .iter_common_name()
                .next()
                .and_then(|name| name.as_str().ok())
                .map(str::to_owned),
            is_ca: cert.is_ca(),
            not_before: timestamp(cert.validity().not_before)?,
            not_after: timestamp(cert.validity().not_after)?,
            fingerprint: digest.as_ref().iter().map(|b| format!("{b:02X}")).collect::<Vec<_>>().join(":"),
            public_key: cert.public_key().raw.to_vec(),
        })
    }

    /// Returns the host name beside [`MEMBER_NAME`]. `None`: there is not exactly one, or it is the controllers'.
    pub fn host(&self) -> Option<&str> {
        if self.has(CONTROLLER_NAME) {
            return None;
        }
        let mut hosts = self.names.iter().filter(|name| *name != MEMBER_NAME);
        let host = hosts.next()?;
        hosts.next().is_none().then_some(host)
    }

    /// Returns whether the certificate carries [`MEMBER_NAME`].
    pub fn is_member(&self) -> bool {
        self.has(MEMBER_NAME)
    }

    /// Returns the name of the controller that the certificate is of. `None`: the certificate is no controller's. A
    /// certificate with [`CONTROLLER_NAME`] that is a host's, too, is neither's: a CA that does not know the name's
    /// meaning may have issued it.
    pub fn controller(&self) -> Option<&str> {
        let is_controller = self.has(CONTROLLER_NAME) && !self.is_member();
        self.common_name.as_deref().filter(|name| is_controller && self.has(name) && *name != CONTROLLER_NAME)
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }

    /// Returns from when on the certificate is to be renewed: when a third of its validity is left.
    pub fn renewal_from(&self) -> Timestamp {
        let (begin, end) = (self.not_before.as_second(), self.not_after.as_second());
        Timestamp::from_second(end - (end - begin).max(0) / 3).unwrap_or(self.not_after)
    }

    /// Returns the whole days from `now` until the certificate expires, rounded down; negative once it has expired.
    pub fn days_left(&self, now: SystemTime) -> i64 {
        (self.not_after.as_second() - unix_seconds(now)).div_euclid(24 * 3600)
    }
}

/// Returns the DNS names, in lower case, and the IP addresses among a certificate's alternative names.
pub(crate) fn alternatives(names: &[GeneralName<'_>]) -> (Vec<String>, Vec<IpAddr>) {
    let (mut dns, mut addresses) = (Vec::new(), Vec::new());
    for name in names {
        match name {
            GeneralName::DNSName(name) => dns.push(name.to_ascii_lowercase()),
            GeneralName::IPAddress(bytes) => {
                let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                addresses.extend(v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok());
            }
            _ => {}
        }
    }
    (dns, addresses)
}

/// Returns the seconds since 1970. A clock before 1970 counts as 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs().try_into().unwrap_or(i64::MAX)
}
