//! Requests for certificates (RFC 2986): a host makes its key itself, and the key never leaves the host.

use std::path::Path;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::PrivateKeyDer;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::MEMBER_NAME;
use crate::certificate::parse_pem;
use crate::controller::ControllerIdentity;
use crate::error::IdentityError;
use crate::files::{self, FILE_BYTES_MAX, WriteError};
use crate::identity::Identity;
use crate::names::{BadName, host_name};
use crate::parts::{self, CA_FILE, Owner, Parts};

/// The object identifier of P-256 (RFC 5480, section 2.1.1.1).
const P256: &str = "1.2.840.10045.3.1.7";
/// The bytes of an uncompressed point of P-256 (RFC 5480, section 2.2).
const P256_POINT_BYTES: usize = 65;

/// Why a request for a certificate cannot be made or taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The text is not PEM of a request.
    #[error("that is no request for a certificate: make one with `skein ca request HOST`")]
    NotARequest,
    /// The request is larger than it can be.
    #[error("that request for a certificate has more than 64 KiB")]
    TooLarge,
    /// The request's signature is not of its key.
    #[error("the request for a certificate is damaged: who made it does not have its key")]
    BadSignature,
    /// The key is of a kind that Skein does not use.
    #[error("the request's key is not ECDSA on P-256: make it with `skein ca request HOST`")]
    OtherKey,
    /// The request names no host, or a malformed one.
    #[error("the request for a certificate names no host")]
    BadName(#[from] BadName),
    /// The request asks for more than one name.
    #[error("the request for a certificate of {name} asks for the name {other:?}, too: a host has one name")]
    MoreNames {
        /// The host's name.
        name: String,
        /// The other name.
        other: String,
    },
    /// The key's file cannot be read.
    #[error("cannot read the key in {path}")]
    Read {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The key's file is not a valid key.
    #[error("{path} holds no usable private key: remove it, and a new one is made")]
    BadKey {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        source: rcgen::Error,
    },
    /// The key or the request could not be made.
    #[error("cannot make the request for a certificate")]
    Make(#[from] rcgen::Error),
}

/// What a host has before its certificate is signed: its name and its key.
pub struct IdentityRequest {
    name: String,
    key: KeyPair,
}

impl std::fmt::Debug for IdentityRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentityRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl IdentityRequest {
    /// Makes a key (ECDSA on P-256) for a host or controller of that name.
    ///
    /// # Errors
    /// [`RequestError::BadName`], or the key cannot be made.
    pub fn new(name: &str) -> Result<Self, RequestError> {
        Ok(Self { name: host_name(name)?, key: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)? })
    }

    /// Takes the key `host.key` of a directory: of a request that was not answered, or for a certificate with new
    /// dates.
    ///
    /// # Errors
    /// [`RequestError::Read`], [`RequestError::BadKey`], [`RequestError::OtherKey`], [`RequestError::BadName`].
    pub fn with_key_of(dir: &Path, name: &str) -> Result<Self, RequestError> {
        let path = dir.join(Identity::KEY_FILE);
        let read = files::read(&path).map_err(|source| RequestError::Read { path: path.clone(), source })?;
        let key = KeyPair::from_pem(&String::from_utf8_lossy(&read.bytes))
            .map_err(|source| RequestError::BadKey { path, source })?;
        if key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
            return Err(RequestError::OtherKey);
        }
        Ok(Self { name: host_name(name)?, key })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the request as PEM text, which is no secret.
    ///
    /// # Errors
    /// The request cannot be signed.
    pub fn pem(&self) -> Result<String, RequestError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.name.as_str());
        let request = params.serialize_request(&self.key)?;
        Ok(parts::pem("CERTIFICATE REQUEST", request.der()))
    }

    /// Writes the key as `host.key` into a directory, which is made if need be.
    ///
    /// # Errors
    /// There is a key already, or the directory cannot be written to.
    pub fn save_key(&self, dir: &Path) -> Result<(), WriteError> {
        parts::save_key(dir, Owner::Host, &self.private_key())
    }

    /// Returns the host's identity from the CA's answer, both in PEM.
    ///
    /// # Errors
    /// The certificates are not valid, are not of this key, or are not signed by that CA.
    pub fn identity(self, ca: &str, certificate: &str) -> Result<Identity, IdentityError> {
        let parts = self.parts(Owner::Host, ca, certificate)?;
        Identity::new(parts.roots, parts.chain, parts.key)
    }

    /// Returns the controller's identity from the CA's answer, both in PEM.
    ///
    /// # Errors
    /// The certificates are not valid, are not of this key, or are not signed by that CA.
    pub fn controller_identity(self, ca: &str, certificate: &str) -> Result<ControllerIdentity, IdentityError> {
        let parts = self.parts(Owner::Controller, ca, certificate)?;
        ControllerIdentity::new(parts.roots, parts.chain, parts.key)
    }

    fn parts(&self, owner: Owner, ca: &str, certificate: &str) -> Result<Parts, IdentityError> {
        let parse = |text: &str, file: &str| {
            parse_pem(text.as_bytes()).map_err(|source| IdentityError::BadCertificate { path: file.into(), source })
        };
        let (roots, chain) = (parse(ca, CA_FILE)?, parse(certificate, owner.certificate_file())?);
        let parts = Parts::new(owner, Path::new(""), roots, chain, self.private_key())?;
        if parts.name != self.name {
            return Err(IdentityError::OtherName { asked: self.name.clone(), signed: parts.name });
        }
        parts.check(Path::new(""), std::time::SystemTime::now())?;
        Ok(parts)
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.serialize_der().into())
    }
}

/// A request for a certificate, as a CA gets it: read, and signed by its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningRequest {
    name: String,
    /// The public key, DER of a SubjectPublicKeyInfo.
    pub(crate) public_key: Vec<u8>,
}

impl SigningRequest {
    /// Reads a request in PEM. Nothing of it but name and key gets into a certificate.
    ///
    /// # Errors
    /// The text is no request, or asks for what no host can have.
    pub fn parse(text: &[u8]) -> Result<Self, RequestError> {
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(RequestError::TooLarge);
        }
        let section = pem::parse(text).map_err(|_| RequestError::NotARequest)?;
        if !["CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"].contains(&section.tag()) {
            return Err(RequestError::NotARequest);
        }
        let (rest, request) =
            X509CertificationRequest::from_der(section.contents()).map_err(|_| RequestError::NotARequest)?;
        if !rest.is_empty() {
            return Err(RequestError::NotARequest);
        }
        let info = &request.certification_request_info;
        let curve = info.subject_pki.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
        let point = info.subject_pki.subject_public_key.data.len();
        if curve.is_none_or(|curve| curve.to_id_string() != P256) || point != P256_POINT_BYTES {
            return Err(RequestError::OtherKey);
        }
        request.verify_signature().map_err(|_| RequestError::BadSignature)?;
        let common_name = info.subject.iter_common_name().next().and_then(|name| name.as_str().ok());
        let name = host_name(common_name.unwrap_or_default())?;
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(asked) = extension else { continue };
            for other in &asked.general_names {
                match other {
                    GeneralName::DNSName(other) if other.eq_ignore_ascii_case(&name) => {}
                    GeneralName::DNSName(MEMBER_NAME) => {}
                    other => return Err(RequestError::MoreNames { name, other: other.to_string() }),
                }
            }
        }
        Ok(Self { name, public_key: info.subject_pki.raw.to_vec() })
    }

    /// Returns the name that the request is for.
    pub fn name(&self) -> &str {
        &self.name
    }
}
