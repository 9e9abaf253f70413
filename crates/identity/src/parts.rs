//! The parts of an identity, whosever it is: certificate, key, and the CAs that its owner trusts; and their files.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, InconsistentKeys};

use crate::certificate::{CertificateInfo, ParseError, parse_pem, unix_seconds};
use crate::error::{IdentityError, KeyError};
use crate::files::{self, Existing, WriteError};
use crate::verify::{controller_name, member_name, verify};

/// The CA's certificate in an identity's directory.
pub(crate) const CA_FILE: &str = "ca.pem";

/// Whose identity it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A host's.
    Host,
    /// A controller's.
    Controller,
}

impl Owner {
    pub(crate) fn certificate_file(self) -> &'static str {
        match self {
            Owner::Host => "host.pem",
            Owner::Controller => "controller.pem",
        }
    }

    pub(crate) fn key_file(self) -> &'static str {
        match self {
            Owner::Host => "host.key",
            Owner::Controller => "controller.key",
        }
    }

    /// Returns the name that every client asks for.
    fn server_name(self) -> ServerName<'static> {
        match self {
            Owner::Host => member_name(),
            Owner::Controller => controller_name(),
        }
    }

    fn missing(self, dir: &Path, file: &'static str) -> IdentityError {
        let dir = dir.to_owned();
        match self {
            Owner::Host => IdentityError::Missing { dir, file },
            Owner::Controller => IdentityError::NoController { dir, file },
        }
    }

    fn other(self, path: PathBuf, source: Option<rustls::Error>) -> IdentityError {
        match self {
            Owner::Host => IdentityError::NotIdentity { path, source },
            Owner::Controller => IdentityError::NotController { path, source },
        }
    }
}

/// The parts of an identity.
pub(crate) struct Parts {
    pub(crate) owner: Owner,
    pub(crate) roots: Vec<CertificateDer<'static>>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) info: CertificateInfo,
    /// The name of the host or controller.
    pub(crate) name: String,
}

impl Clone for Parts {
    fn clone(&self) -> Parts {
        Parts {
            owner: self.owner,
            roots: self.roots.clone(),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            info: self.info.clone(),
            name: self.name.clone(),
        }
    }
}

impl Parts {
    /// Puts the parts together. `dir` is only for messages.
    pub(crate) fn new(
        owner: Owner,
        dir: &Path,
        roots: Vec<CertificateDer<'static>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let path = dir.join(owner.certificate_file());
        let bad = |path: PathBuf| |source| IdentityError::BadCertificate { path, source };
        let first = chain.first().ok_or(ParseError::NoCertificate).map_err(bad(path.clone()))?;
        let info = CertificateInfo::parse(first).map_err(bad(path.clone()))?;
        let name = match owner {
            Owner::Host => info.host().filter(|_| info.is_member()),
            Owner::Controller => info.controller(),
        };
        let Some(name) = name.map(str::to_owned) else { return Err(owner.other(path, None)) };
        let ca = dir.join(CA_FILE);
        for root in &roots {
            if !CertificateInfo::parse(root).map_err(bad(ca.clone()))?.is_ca {
                return Err(IdentityError::NotCa(ca));
            }
        }
        Ok(Self { owner, roots, chain, key, info, name })
    }

    /// Reads the three files from a directory, and checks everything that a peer would check now.
    pub(crate) fn load(owner: Owner, dir: &Path) -> Result<Self, IdentityError> {
        let read = |file: &'static str| {
            files::read(&dir.join(file)).map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => owner.missing(dir, file),
                _ => IdentityError::Read { path: dir.join(file), source },
            })
        };
        let certificate = read(owner.certificate_file())?;
        let key = read(owner.key_file())?;
        let ca = read(CA_FILE)?;
        if exposed(key.mode) {
            return Err(IdentityError::KeyExposed { path: dir.join(owner.key_file()), mode: key.mode });
        }
        Self::from_pem(owner, dir, &ca.bytes, &certificate.bytes, &key.bytes)
    }

    /// Parses the three files. `dir` is only for messages.
    pub(crate) fn from_pem(
        owner: Owner,
        dir: &Path,
        ca: &[u8],
        certificate: &[u8],
        key: &[u8],
    ) -> Result<Self, IdentityError> {
        let parse =
            |pem, file| parse_pem(pem).map_err(|source| IdentityError::BadCertificate { path: dir.join(file), source });
        let roots = parse(ca, CA_FILE)?;
        let chain = parse(certificate, owner.certificate_file())?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| IdentityError::BadKey {
            path: dir.join(owner.key_file()),
            source: KeyError::Pem(error),
        })?;
        Self::new(owner, dir, roots, chain, key)
    }

    /// Checks the parts as a peer with the same CA would at `now`, with errors for the identity's owner.
    pub(crate) fn check(&self, dir: &Path, now: SystemTime) -> Result<(), IdentityError> {
        let day = |time: jiff::Timestamp| time.strftime("%F").to_string();
        let path = dir.join(self.owner.certificate_file());
        let ca = dir.join(CA_FILE);
        let seconds = unix_seconds(now);
        // TLS never checks when a CA expires: a root is trusted because it is there.
        let mut last = None;
        for root in &self.roots {
            let end = CertificateInfo::parse(root)
                .map_err(|source| IdentityError::BadCertificate { path: ca.clone(), source })?;
            last = last.max(Some(end.not_after));
        }
        if let Some(last) = last.filter(|last| last.as_second() < seconds) {
            return Err(IdentityError::CaExpired { path: ca, day: day(last) });
        }
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds as u64));
        verify(&self.roots, &self.chain, &self.owner.server_name(), now).map_err(|error| match &error {
            rustls::Error::InvalidCertificate(why) => match why {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    IdentityError::OtherCa { certificate: path, ca }
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    let day = day(self.info.not_after);
                    match self.owner {
                        Owner::Host => IdentityError::Expired { path, day, host: self.name.clone() },
                        Owner::Controller => IdentityError::ControllerExpired { path, day },
                    }
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    let from = self.info.not_before.to_string();
                    match self.owner {
                        Owner::Host => IdentityError::NotYetValid { path, from, host: self.name.clone() },
                        Owner::Controller => IdentityError::ControllerNotYetValid { path, from },
                    }
                }
                _ => self.owner.other(path, Some(error)),
            },
            _ => self.owner.other(path, Some(error)),
        })
    }

    /// Returns what is sent after the chain: of a controller the trusted CA that signed its certificate, by that CA's
    /// name, as whoever knows no more than the CA's fingerprint needs the CA's certificate.
    pub(crate) fn sent_with(&self) -> Vec<CertificateDer<'static>> {
        let signed = |root: &&CertificateDer<'static>| {
            CertificateInfo::parse(root).is_ok_and(|info| info.subject == self.info.issuer)
                && !self.chain.contains(root)
        };
        match self.owner {
            Owner::Host => Vec::new(),
            Owner::Controller => self.roots.iter().filter(signed).cloned().collect(),
        }
    }

    /// Returns whether a certificate that is shown is to be renewed at `now`, and a CA that is trusted outlives it.
    pub(crate) fn is_renewal_due(&self, shown: &CertificateInfo, now: SystemTime) -> bool {
        let outlives = |root| CertificateInfo::parse(root).is_ok_and(|ca| ca.not_after > shown.not_after);
        unix_seconds(now) >= shown.renewal_from().as_second() && self.roots.iter().any(outlives)
    }

    /// Returns the error of an identity that TLS does not take. `dir` is only for messages.
    pub(crate) fn refused(&self, dir: &Path, error: rustls::Error) -> IdentityError {
        let (key, certificate) = (dir.join(self.owner.key_file()), dir.join(self.owner.certificate_file()));
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                IdentityError::KeyMismatch { key, certificate }
            }
            rustls::Error::InvalidCertificate(_) => self.owner.other(certificate, Some(error)),
            error => IdentityError::BadKey { path: key, source: KeyError::Unusable(error) },
        }
    }

    /// Writes the three files into a directory, which is made if need be. A file that is there already is an error.
    pub(crate) fn save(&self, dir: &Path) -> Result<(), WriteError> {
        let taken = [CA_FILE, self.owner.certificate_file(), self.owner.key_file()].map(|file| dir.join(file));
        if let Some(taken) = taken.into_iter().find(|path| path.exists()) {
            return Err(WriteError::Exists(taken));
        }
        self.save_key(dir)?;
        self.save_certificates(dir, Existing::Refuse)
    }

    /// Writes the key into a directory, which is made if need be.
    pub(crate) fn save_key(&self, dir: &Path) -> Result<(), WriteError> {
        save_key(dir, self.owner, &self.key)
    }

    /// Writes the certificates into a directory, which is made if need be.
    pub(crate) fn save_certificates(&self, dir: &Path, existing: Existing) -> Result<(), WriteError> {
        files::create_dir(dir)?;
        let text = |certificates: &[CertificateDer<'_>]| certificates.iter().map(pem_of).collect::<String>();
        files::write(&dir.join(CA_FILE), text(&self.roots).as_bytes(), 0o644, existing)?;
        files::write(&dir.join(self.owner.certificate_file()), text(&self.chain).as_bytes(), 0o644, existing)
    }
}

/// Writes a key into a directory, which is made if need be. A key that is there already is an error.
pub(crate) fn save_key(dir: &Path, owner: Owner, key: &PrivateKeyDer<'_>) -> Result<(), WriteError> {
    files::create_dir(dir)?;
    files::write(&dir.join(owner.key_file()), key_pem(key).as_bytes(), 0o600, Existing::Refuse)
}

/// Returns whether a key file with these permission bits is open to more than its owner and its group's readers.
pub(crate) fn exposed(mode: u32) -> bool {
    mode & 0o027 != 0
}

/// Returns a certificate as PEM text.
pub fn pem_of(certificate: &CertificateDer<'_>) -> String {
    pem("CERTIFICATE", certificate)
}

pub(crate) fn key_pem(key: &PrivateKeyDer<'_>) -> String {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    pem(label, key.secret_der())
}

pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    pem::encode_config(&pem::Pem::new(label, der), pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF))
}
