//! A cluster's certificate authority.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::certificate::{CertificateInfo, ParseError, parse_pem};
use crate::controller::ControllerIdentity;
use crate::error::IdentityError;
use crate::files::{self, Existing, WriteError};
use crate::identity::Identity;
use crate::names::{BadName, ControllerNames, host_name};
use crate::parts::{exposed, pem_of};
use crate::pin::CaFingerprint;
use crate::request::SigningRequest;
use crate::{CA_VALIDITY_DAYS, CONTROLLER_NAME, MEMBER_NAME};

/// How much earlier than its issue a certificate is valid, because hosts' clocks differ.
const BACKDATING: Duration = Duration::from_secs(5 * 60);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Why the CA could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaError {
    /// There is no CA in this directory.
    #[error("there is no CA in {dir} ({file} is missing): make one with `skein ca init --dir \
             {dir}`", dir = .dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
        /// The missing file.
        file: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The certificate's file is not a valid certificate.
    #[error("{path} is not the certificate of a CA: restore it from a backup")]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Option<ParseError>,
    },
    /// The key's file is not a valid key.
    #[error("{path} holds no usable private key: restore it from a backup")]
    BadKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rcgen::Error,
    },
    /// Others may read the key.
    #[error("{path} can be read by other users (mode {mode:04o}): run `chmod 600 {path}`", path = .path.display())]
    KeyExposed {
        /// The file.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// Key and certificate are not a pair.
    #[error("{key} is not the key of {certificate}: restore both from the same backup")]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The CA itself has expired.
    #[error("this CA expired on {0}: make a new one with `skein ca init`")]
    Expired(String),
    /// The CA's name cannot be put into a certificate.
    #[error("{0:?} is no name for a CA: use 1 to 64 letters, digits, spaces and the signs - _ .")]
    BadName(String),
    /// The host's name cannot be put into a certificate.
    #[error(transparent)]
    BadHost(#[from] BadName),
    /// The request is for another name than was allowed.
    #[error("the request is for a certificate of {asked}, and {allowed} is allowed: make it anew for that name")]
    OtherName {
        /// The name that the request is for.
        asked: String,
        /// The name that may be signed.
        allowed: String,
    },
    /// The certificate to renew was not issued by this CA.
    #[error("that identity was not issued by this CA: issue a new one with `skein ca issue`")]
    NotIssuedHere(#[source] Option<ParseError>),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The key or certificate could not be made.
    #[error("cannot make the certificate")]
    Make(#[from] rcgen::Error),
    /// The certificate that was made does not work.
    #[error("the new identity is not usable")]
    Identity(#[from] IdentityError),
}

/// The time in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The certificate is not valid before this time.
    pub not_before: SystemTime,
    /// The certificate is not valid after this time.
    pub not_after: SystemTime,
}

impl Validity {
    /// Returns the time from five minutes ago (clocks differ) until `days` days from now.
    pub fn days(days: u32) -> Self {
        Self::lasting(DAY * days)
    }

    /// Returns the time from five minutes ago, or a tenth of `time` if that is less, until `time` from now.
    pub fn lasting(time: Duration) -> Self {
        let now = SystemTime::now();
        Self { not_before: now - BACKDATING.min(time / 10), not_after: now + time }
    }
}

/// A CA: its certificate and its key.
pub struct ClusterCa {
    certificate: CertificateDer<'static>,
    info: CertificateInfo,
    issuer: Issuer<'static, KeyPair>,
}

impl ClusterCa {
    /// The certificate's file in a CA's directory.
    pub const CERTIFICATE_FILE: &str = "ca.pem";
    /// The key's file in a CA's directory.
    pub const KEY_FILE: &str = "ca.key";

    /// Makes a CA (ECDSA on P-256), valid for ten years. `name` is for people: every certificate contains it.
    ///
    /// # Errors
    /// [`CaError::BadName`], or the key or the certificate cannot be made.
    pub fn create(name: &str) -> Result<Self, CaError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || " -_.".contains(c);
        if name.is_empty() || name.len() > 64 || name.trim() != name || !name.chars().all(fits) {
            return Err(CaError::BadName(name.to_owned()));
        }
        let mut params = params(name, Validity::days(CA_VALIDITY_DAYS));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.self_signed(&key)?.der().clone();
        Self::new(certificate, key, Path::new(Self::CERTIFICATE_FILE))
    }

    fn new(certificate: CertificateDer<'static>, key: KeyPair, path: &Path) -> Result<Self, CaError> {
        let bad = |source| CaError::BadCertificate { path: path.to_owned(), source };
        let info = CertificateInfo::parse(&certificate).map_err(|e| bad(Some(e)))?;
        if !info.is_ca {
            return Err(bad(None));
        }
        if info.public_key != key.subject_public_key_info() {
            return Err(CaError::KeyMismatch {
                key: path.with_file_name(Self::KEY_FILE),
                certificate: path.to_owned(),
            });
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        Ok(Self { certificate, info, issuer })
    }

    /// Reads a CA from its directory.
    ///
    /// # Errors
    /// A file is missing, cannot be read or is not valid, or the files do not fit together.
    pub fn load(dir: &Path) -> Result<Self, CaError> {
        let read = |file: &'static str| {
            let path = dir.join(file);
            match files::read(&path) {
                Ok(content) => Ok((path, content)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    Err(CaError::Missing { dir: dir.to_owned(), file })
                }
                Err(source) => Err(CaError::Read { path, source }),
            }
        };
        let (certificate_path, certificate) = read(Self::CERTIFICATE_FILE)?;
        let (key_path, key) = read(Self::KEY_FILE)?;
        if exposed(key.mode) {
            return Err(CaError::KeyExposed { path: key_path, mode: key.mode });
        }
        let certificate = parse_pem(&certificate.bytes)
            .map_err(|e| CaError::BadCertificate { path: certificate_path.clone(), source: Some(e) })?
            .swap_remove(0);
        let text = String::from_utf8_lossy(&key.bytes);
        let key = KeyPair::from_pem(&text).map_err(|source| CaError::BadKey { path: key_path, source })?;
        Self::new(certificate, key, &certificate_path)
    }

    /// Writes the CA into a directory, which is made if need be.
    ///
    /// # Errors
    /// A CA is there already, or the directory cannot be written to.
    pub fn save(&self, dir: &Path) -> Result<(), CaError> {
        let (certificate, key) = (dir.join(Self::CERTIFICATE_FILE), dir.join(Self::KEY_FILE));
        if let Some(taken) = [&certificate, &key].into_iter().find(|path| path.exists()) {
            return Err(WriteError::Exists(taken.clone()).into());
        }
        files::create_dir(dir)?;
        files::write(&key, self.issuer.key().serialize_pem().as_bytes(), 0o600, Existing::Refuse)?;
        files::write(&certificate, self.certificate_pem().as_bytes(), 0o644, Existing::Refuse)?;
        Ok(())
    }

    /// Returns the CA's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the CA's certificate as PEM text.
    pub fn certificate_pem(&self) -> String {
        pem_of(&self.certificate)
    }

    /// Returns what the CA's certificate says.
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }

    /// Returns the SHA-256 of the CA's certificate, by which a host knows the cluster before it has the certificate.
    pub fn fingerprint(&self) -> CaFingerprint {
        CaFingerprint::of(&self.certificate)
    }

    /// Issues an identity with a new key to a host. The identity expires with the CA at the latest.
    ///
    /// # Errors
    /// [`CaError::BadHost`], [`CaError::Expired`], or the certificate cannot be made.
    pub fn issue(&self, host: &str, validity: Validity) -> Result<Identity, CaError> {
        let host = host_name(host)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = self.sign(&host, &host_names(&host)?, &key, validity)?;
        let key = PrivateKeyDer::from(key);
        Ok(Identity::new(vec![self.certificate.clone()], vec![certificate], key)?)
    }

    /// Issues an identity with a new key to a controller. The identity expires with the CA at the latest.
    ///
    /// # Errors
    /// [`CaError::Expired`], or the certificate cannot be made.
    pub fn issue_controller(&self, names: &ControllerNames, validity: Validity) -> Result<ControllerIdentity, CaError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = self.sign(names.name(), &controller_names(names)?, &key, validity)?;
        Ok(ControllerIdentity::new(vec![self.certificate.clone()], vec![certificate], PrivateKeyDer::from(key))?)
    }

    /// Signs a host's request, if it is for the name `allowed`.
    ///
    /// # Errors
    /// [`CaError::OtherName`], [`CaError::BadHost`], [`CaError::Expired`], or the certificate cannot be made.
    pub fn sign_host(
        &self,
        request: &SigningRequest,
        allowed: &str,
        validity: Validity,
    ) -> Result<CertificateDer<'static>, CaError> {
        let host = host_name(allowed)?;
        allow(request, &host)?;
        self.sign(&host, &host_names(&host)?, &SubjectPublicKeyInfo::from_der(&request.public_key)?, validity)
    }

    /// Signs a controller's request, if it is for the controller's name. The other names are those of `names`, whatever
    /// the request says.
    ///
    /// # Errors
    /// [`CaError::OtherName`], [`CaError::Expired`], or the certificate cannot be made.
    pub fn sign_controller(
        &self,
        request: &SigningRequest,
        names: &ControllerNames,
        validity: Validity,
    ) -> Result<CertificateDer<'static>, CaError> {
        allow(request, names.name())?;
        let key = SubjectPublicKeyInfo::from_der(&request.public_key)?;
        self.sign(names.name(), &controller_names(names)?, &key, validity)
    }

    /// Returns a new certificate for the names and the *key* of an earlier certificate of this CA, a host's or a
    /// controller's. So only this file, which is not secret, has to be taken there. The earlier certificate may have
    /// expired.
    ///
    /// # Errors
    /// [`CaError::NotIssuedHere`], [`CaError::Expired`], or the certificate cannot be made.
    pub fn renew(&self, earlier: &CertificateDer<'_>, validity: Validity) -> Result<CertificateDer<'static>, CaError> {
        let (_, cert) = x509_parser::parse_x509_certificate(earlier)
            .map_err(|e| CaError::NotIssuedHere(Some(ParseError::X509(e.to_string()))))?;
        let (_, ca) = x509_parser::parse_x509_certificate(&self.certificate)
            .map_err(|e| CaError::NotIssuedHere(Some(ParseError::X509(e.to_string()))))?;
        cert.verify_signature(Some(ca.public_key())).map_err(|_| CaError::NotIssuedHere(None))?;
        let info = CertificateInfo::parse(earlier).map_err(|e| CaError::NotIssuedHere(Some(e)))?;
        let key = SubjectPublicKeyInfo::from_der(&info.public_key)?;
        if let Some(name) = info.controller() {
            let dialled: Vec<String> = info.addresses.iter().map(IpAddr::to_string).collect();
            let dns = info.names.iter().filter(|name| *name != CONTROLLER_NAME);
            let names = ControllerNames::new(name, dns.chain(&dialled).map(String::as_str))?;
            return self.sign(names.name(), &controller_names(&names)?, &key, validity);
        }
        let host = host_name(info.host().ok_or(CaError::NotIssuedHere(None))?)?;
        self.sign(&host, &host_names(&host)?, &key, validity)
    }

    fn sign(
        &self,
        common_name: &str,
        names: &[SanType],
        key: &impl PublicKeyData,
        validity: Validity,
    ) -> Result<CertificateDer<'static>, CaError> {
        let ca_end = SystemTime::from(self.info.not_after);
        if ca_end <= SystemTime::now() {
            return Err(CaError::Expired(self.info.not_after.strftime("%F").to_string()));
        }
        let not_after = validity.not_after.min(ca_end);
        let mut params = params(common_name, Validity { not_after, ..validity });
        params.subject_alt_names = names.to_vec();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.der().clone())
    }
}

/// Refuses a request for another name than is allowed.
fn allow(request: &SigningRequest, allowed: &str) -> Result<(), CaError> {
    if request.name() == allowed {
        return Ok(());
    }
    Err(CaError::OtherName { asked: request.name().to_owned(), allowed: allowed.to_owned() })
}

fn host_names(host: &str) -> Result<Vec<SanType>, CaError> {
    dns_names([host, MEMBER_NAME])
}

fn controller_names(names: &ControllerNames) -> Result<Vec<SanType>, CaError> {
    let mut all = dns_names(names.dns().chain([CONTROLLER_NAME]))?;
    all.extend(names.addresses().map(SanType::IpAddress));
    Ok(all)
}

fn dns_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<SanType>, CaError> {
    Ok(names.into_iter().map(|name| Ok(SanType::DnsName(name.try_into()?))).collect::<Result<_, rcgen::Error>>()?)
}

fn params(common_name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = validity.not_before.into();
    params.not_after = validity.not_after.into();
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn saves_securely_and_loads_again() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new/ca");
        let ca = ClusterCa::create("lab 1").unwrap();
        ca.save(&dir).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&dir.join("ca.key")), 0o600);
        assert!(matches!(ca.save(&dir), Err(CaError::Write(WriteError::Exists(_)))));
        let again = ClusterCa::load(&dir).unwrap();
        assert_eq!(again.certificate(), ca.certificate());
        assert_eq!(again.info().subject, "CN=lab 1");
        assert!((3650..=3652).contains(&again.info().days_left(SystemTime::now())));
        again.issue("h1", Validity::days(1)).unwrap();
    }

    #[test]
    fn says_what_is_wrong_with_a_ca() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(matches!(ClusterCa::load(dir), Err(CaError::Missing { file: "ca.pem", .. })));
        ClusterCa::create("one").unwrap().save(dir).unwrap();
        let key = dir.join("ca.key");
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(matches!(ClusterCa::load(dir), Err(CaError::KeyExposed { mode: 0o644, .. })));
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        assert!(matches!(ClusterCa::load(dir), Err(CaError::KeyMismatch { .. })));
        std::fs::write(&key, "what").unwrap();
        assert!(matches!(ClusterCa::load(dir), Err(CaError::BadKey { .. })));
        std::fs::write(dir.join("ca.pem"), "what").unwrap();
        assert!(matches!(ClusterCa::load(dir), Err(CaError::BadCertificate { .. })));
    }

    #[test]
    fn names_are_checked() {
        let ca = ClusterCa::create("lab").unwrap();
        for host in [
            "",
            "10.0.0.1",
            "::1",
            "a b",
            "../x",
            "a/b",
            "*.x",
            "member.skein.internal",
            "controller.skein.internal",
            "x.",
            "ü",
            &"a.".repeat(40),
        ] {
            assert!(matches!(ca.issue(host, Validity::days(1)), Err(CaError::BadHost { .. })), "{host:?}");
        }
        assert_eq!(ca.issue("Node-1.Example.org", Validity::days(1)).unwrap().host(), "node-1.example.org");
        for name in ["", " x", "a\nb", "ü", &"x".repeat(65)] {
            assert!(matches!(ClusterCa::create(name), Err(CaError::BadName(_))), "{name:?}");
        }
    }

    #[test]
    fn renewal_keeps_name_and_key() {
        let ca = ClusterCa::create("lab").unwrap();
        let past = SystemTime::now() - 10 * DAY;
        let old = ca.issue("h1", Validity { not_before: past, not_after: past + DAY }).unwrap();
        let new = ca.renew(&old.chain()[0], Validity::days(20)).unwrap();
        let (before, after) = (old.info(), CertificateInfo::parse(&new).unwrap());
        assert_eq!((before.host(), &before.public_key), (after.host(), &after.public_key));
        assert!(before.days_left(SystemTime::now()) < 0);
        assert!((19..=20).contains(&after.days_left(SystemTime::now())));
        assert_ne!(before.fingerprint, after.fingerprint);

        // The CA has the same name and another key, so it did not issue the certificate.
        let other = ClusterCa::create("lab").unwrap();
        assert!(matches!(other.renew(&old.chain()[0], Validity::days(1)), Err(CaError::NotIssuedHere(_))));
        assert!(matches!(ca.renew(ca.certificate(), Validity::days(1)), Err(CaError::NotIssuedHere(_))));
    }

    #[test]
    fn no_identity_outlives_its_ca() {
        let ca = ClusterCa::create("lab").unwrap();
        let identity = ca.issue("h1", Validity::days(50_000)).unwrap();
        assert_eq!(identity.info().not_after, ca.info().not_after);
    }
}
