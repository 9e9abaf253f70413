//! A host's identity: its certificate, its key, and the CA that it trusts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::{CertificateError, ClientConfig, InconsistentKeys, ServerConfig};

use crate::certificate::{CertificateInfo, ParseError, parse_pem, unix_seconds};
use crate::cipher::{AllowedCiphers, CipherPolicy, CipherSpeeds};
use crate::files::{self, Existing, WriteError};
use crate::tls;

/// What is wrong with an identity. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file is missing.
    #[error(
        "there is no identity in {dir} ({file} is missing): run `skein ca issue HOST` where the cluster's CA is, \
         and copy what it wrote to this directory", dir = .dir.display()
    )]
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
    /// A certificate's file is not a valid certificate.
    #[error("{path} does not hold a certificate: copy it again from where the identity was issued")]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ParseError,
    },
    /// The key's file is not a valid key.
    #[error("{path} does not hold a private key: copy it again from where the identity was issued")]
    BadKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: KeyError,
    },
    /// Others may read or change the key.
    #[error(
        "{path} is open to other users (mode {mode:04o}): run `chmod 600 {path}`, and issue a new identity if \
         somebody may have read it", path = .path.display()
    )]
    KeyExposed {
        /// The file.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// Key and certificate are not a pair.
    #[error("{key} is not the key of {certificate}: copy both from the same `skein ca issue`")]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The CA's file contains a certificate that is not a CA's.
    #[error("{0} is not the certificate of a CA: copy ca.pem from where the identity was issued")]
    NotCa(PathBuf),
    /// The CA has expired, and its identities with it.
    #[error("the CA in {path} expired on {day}: make a new one with `skein ca init` and issue new identities")]
    CaExpired {
        /// The CA's file.
        path: PathBuf,
        /// The last day of validity.
        day: String,
    },
    /// The certificate is signed by a CA that is not in `ca.pem`.
    #[error("{certificate} is not signed by the CA in {ca}: copy both from the same `skein ca issue`")]
    OtherCa {
        /// The certificate's file.
        certificate: PathBuf,
        /// The CA's file.
        ca: PathBuf,
    },
    /// The certificate has expired.
    #[error("the identity in {path} expired on {day}: renew it with `skein ca renew {host}` and copy host.pem here")]
    Expired {
        /// The certificate's file.
        path: PathBuf,
        /// The last day of validity.
        day: String,
        /// The host's name.
        host: String,
    },
    /// The certificate is not valid yet.
    #[error("the identity in {path} is valid from {from} on only: is this host's clock right?")]
    NotYetValid {
        /// The certificate's file.
        path: PathBuf,
        /// The first day of its validity.
        from: String,
    },
    /// The certificate has no host name, lacks the members' name, or is for other purposes.
    #[error("{path} is not an identity of a skein host: make one with `skein ca issue HOST`")]
    NotIdentity {
        /// The certificate's file.
        path: PathBuf,
        /// What TLS finds wrong with the certificate. `None`: TLS finds nothing wrong.
        source: Option<rustls::Error>,
    },
    /// TLS cannot be set up with these ciphers.
    #[error("TLS cannot be set up with {ciphers} only: choose another --cipher")]
    Ciphers {
        /// The names of the ciphers.
        ciphers: String,
        /// What TLS finds wrong.
        source: rustls::Error,
    },
}

/// Why a text is not a usable private key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is not PEM, or has no private key.
    #[error("there is no PEM private key in it")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// TLS cannot use a key of this kind here.
    #[error("its key cannot be used")]
    Unusable(#[source] rustls::Error),
}

/// A host's identity, complete and consistent: the key belongs to the certificate.
///
/// [`Identity::load`] checks whether the identity is signed by its CA and valid *now*. [`Identity::with_ciphers`] says
/// which ciphers its connections may have.
pub struct Identity {
    roots: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    info: CertificateInfo,
    host: String,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl Clone for Identity {
    fn clone(&self) -> Identity {
        Identity {
            roots: self.roots.clone(),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            info: self.info.clone(),
            host: self.host.clone(),
            client: self.client.clone(),
            server: self.server.clone(),
        }
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("host", &self.host)
            .field("not_after", &self.info.not_after)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// The CA's certificate (or several, while a cluster changes from one to the next) in an identity's directory.
    pub const CA_FILE: &str = "ca.pem";
    /// The host's certificate in an identity's directory.
    pub const CERTIFICATE_FILE: &str = "host.pem";
    /// The host's key in an identity's directory.
    pub const KEY_FILE: &str = "host.key";

    pub(crate) fn new(
        roots: Vec<CertificateDer<'static>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        Self::in_dir(Path::new(""), roots, chain, key)
    }

    /// Builds an identity. `dir` is only for messages.
    fn in_dir(
        dir: &Path,
        roots: Vec<CertificateDer<'static>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let path = dir.join(Self::CERTIFICATE_FILE);
        let bad = |path: PathBuf| |source| IdentityError::BadCertificate { path, source };
        let first = chain.first().ok_or(ParseError::NoCertificate).map_err(bad(path.clone()))?;
        let info = CertificateInfo::parse(first).map_err(bad(path.clone()))?;
        let host = match info.host() {
            Some(host) if info.is_member() => host.to_owned(),
            _ => return Err(IdentityError::NotIdentity { path, source: None }),
        };
        let ca = dir.join(Self::CA_FILE);
        for root in &roots {
            if !CertificateInfo::parse(root).map_err(bad(ca.clone()))?.is_ca {
                return Err(IdentityError::NotCa(ca));
            }
        }
        let key_path = dir.join(Self::KEY_FILE);
        let ciphers = CipherPolicy::Auto.allowed(CipherSpeeds::of_this_cpu());
        let made = tls::configs(&ciphers, &roots, &chain, &key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                IdentityError::KeyMismatch { key: key_path, certificate: path }
            }
            rustls::Error::InvalidCertificate(_) => IdentityError::NotIdentity { path, source: Some(error) },
            error => IdentityError::BadKey { path: key_path, source: KeyError::Unusable(error) },
        });
        let (client, server) = made?;
        Ok(Self { roots, chain, key, info, host, client, server })
    }

    /// Reads `ca.pem`, `host.pem` and `host.key` from a directory, and checks everything that a peer would check now.
    ///
    /// # Errors
    /// An [`IdentityError`] that says what is wrong and what to do.
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        let read = |file: &'static str| {
            files::read(&dir.join(file)).map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => IdentityError::Missing { dir: dir.to_owned(), file },
                _ => IdentityError::Read { path: dir.join(file), source },
            })
        };
        let certificate = read(Self::CERTIFICATE_FILE)?;
        let key = read(Self::KEY_FILE)?;
        let ca = read(Self::CA_FILE)?;
        if exposed(key.mode) {
            return Err(IdentityError::KeyExposed { path: dir.join(Self::KEY_FILE), mode: key.mode });
        }
        let identity = Self::from_pem(dir, &ca.bytes, &certificate.bytes, &key.bytes)?;
        identity.check(dir, SystemTime::now())?;
        Ok(identity)
    }

    /// Returns this identity with the ciphers of a policy on this CPU. Without this call they are those of
    /// [`CipherPolicy::Auto`].
    ///
    /// # Errors
    /// [`IdentityError::Ciphers`].
    pub fn with_ciphers(self, policy: CipherPolicy) -> Result<Self, IdentityError> {
        self.with_allowed(&policy.allowed(CipherSpeeds::of_this_cpu()))
    }

    /// Returns this identity with these ciphers.
    ///
    /// # Errors
    /// [`IdentityError::Ciphers`].
    pub fn with_allowed(self, ciphers: &AllowedCiphers) -> Result<Self, IdentityError> {
        let (client, server) = tls::configs(ciphers, &self.roots, &self.chain, &self.key)
            .map_err(|source| IdentityError::Ciphers { ciphers: ciphers.to_string(), source })?;
        Ok(Self { client, server, ..self })
    }

    /// Parses the three files. `dir` is only for messages.
    fn from_pem(dir: &Path, ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let parse =
            |pem, file| parse_pem(pem).map_err(|source| IdentityError::BadCertificate { path: dir.join(file), source });
        let roots = parse(ca, Self::CA_FILE)?;
        let chain = parse(certificate, Self::CERTIFICATE_FILE)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| IdentityError::BadKey { path: dir.join(Self::KEY_FILE), source: KeyError::Pem(error) })?;
        Self::in_dir(dir, roots, chain, key)
    }

    /// Checks this identity as a peer with the same CA would at `now`, with errors for the identity's owner.
    fn check(&self, dir: &Path, now: SystemTime) -> Result<(), IdentityError> {
        let day = |time: jiff::Timestamp| time.strftime("%F").to_string();
        let path = dir.join(Self::CERTIFICATE_FILE);
        let ca = dir.join(Self::CA_FILE);
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
        tls::verify(&self.roots, &self.chain, now).map_err(|error| match &error {
            rustls::Error::InvalidCertificate(why) => match why {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    IdentityError::OtherCa { certificate: path, ca }
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    IdentityError::Expired { path, day: day(self.info.not_after), host: self.host.clone() }
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    IdentityError::NotYetValid { path, from: self.info.not_before.to_string() }
                }
                _ => IdentityError::NotIdentity { path, source: Some(error) },
            },
            _ => IdentityError::NotIdentity { path, source: Some(error) },
        })
    }

    /// Writes the three files into a directory, which is made if need be.
    ///
    /// # Errors
    /// One of the files is there already, or the directory cannot be written to.
    pub fn save(&self, dir: &Path) -> Result<(), WriteError> {
        let files = [Self::CA_FILE, Self::CERTIFICATE_FILE, Self::KEY_FILE].map(|file| dir.join(file));
        if let Some(taken) = files.iter().find(|path| path.exists()) {
            return Err(WriteError::Exists(taken.clone()));
        }
        files::create_dir(dir)?;
        let [ca, certificate, key] = files;
        let pem = |certificates: &[CertificateDer<'_>]| certificates.iter().map(pem_of).collect::<String>();
        files::write(&key, key_pem(&self.key).as_bytes(), 0o600, Existing::Refuse)?;
        files::write(&ca, pem(&self.roots).as_bytes(), 0o644, Existing::Refuse)?;
        files::write(&certificate, pem(&self.chain).as_bytes(), 0o644, Existing::Refuse)
    }

    /// Writes a certificate into a directory, which is made if need be, in place of an earlier one. The key there
    /// stays.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_certificate(dir: &Path, certificate: &CertificateDer<'_>) -> Result<(), WriteError> {
        files::create_dir(dir)?;
        files::write(&dir.join(Self::CERTIFICATE_FILE), pem_of(certificate).as_bytes(), 0o644, Existing::Replace)
    }

    /// Returns the host's name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the host's certificate, followed by the others up to the CA if there are any.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Returns the CAs that this host trusts: one, except while a cluster changes its CA.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// Returns what the host's certificate says.
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }
}

/// Returns whether a key file with these permission bits is open to more than its owner and its group's readers.
pub(crate) fn exposed(mode: u32) -> bool {
    mode & 0o027 != 0
}

pub(crate) fn pem_of(certificate: &CertificateDer<'_>) -> String {
    pem("CERTIFICATE", certificate)
}

fn key_pem(key: &PrivateKeyDer<'_>) -> String {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    pem(label, key.secret_der())
}

fn pem(label: &str, der: &[u8]) -> String {
    pem::encode_config(&pem::Pem::new(label, der), pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF))
}

/// Returns the configuration for connections that this host opens. Dial with [`member_name`](crate::member_name) as the
/// server's name, whatever the address.
///
/// In TLS 1.3 the handshake is over for the client before the server has judged the client's certificate: only the
/// first bytes read from the server show that the server accepted it.
pub fn client_config(identity: &Identity) -> Arc<ClientConfig> {
    identity.client.clone()
}

/// Returns the configuration for connections that this host accepts. The handshake fails for a client without an
/// identity of the cluster.
pub fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    identity.server.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterCa, Validity};
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    const HOUR: Duration = Duration::from_secs(3600);

    fn saved(ca: &ClusterCa, validity: Validity) -> (tempfile::TempDir, PathBuf) {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("identity");
        ca.issue("h1", validity).unwrap().save(&dir).unwrap();
        (tmp, dir)
    }

    #[test]
    fn saves_securely_and_loads_again() {
        let ca = ClusterCa::create("lab").unwrap();
        let (_tmp, dir) = saved(&ca, Validity::days(365));
        let mode = |file: &str| std::fs::metadata(dir.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("host.key"), mode("host.pem"), mode("ca.pem")), (0o700, 0o600, 0o644, 0o644));
        let identity = Identity::load(&dir).unwrap();
        assert_eq!(identity.host(), "h1");
        assert_eq!(identity.info().names, ["h1", "member.skein.internal"]);
        assert!((364..=365).contains(&identity.info().days_left(SystemTime::now())));
        assert!(matches!(identity.save(&dir), Err(WriteError::Exists(_))));
        assert!(!format!("{identity:?}").contains("PRIVATE"));

        let renewed = ca.renew(&identity.chain()[0], Validity::days(400)).unwrap();
        Identity::save_certificate(&dir, &renewed).unwrap();
        let left = Identity::load(&dir).unwrap().info().days_left(SystemTime::now());
        assert!((399..=400).contains(&left));
    }

    #[test]
    fn says_what_is_wrong_with_an_identity() {
        let ca = ClusterCa::create("lab").unwrap();
        let other = ClusterCa::create("lab").unwrap();
        let good = Validity::days(1);
        let failing = |validity: Validity, spoil: &dyn Fn(&Path)| {
            let (_tmp, dir) = saved(&ca, validity);
            spoil(&dir);
            let error = Identity::load(&dir).unwrap_err();
            (error, dir)
        };
        let write = |file: &'static str, text: String| move |dir: &Path| std::fs::write(dir.join(file), &text).unwrap();
        let error = |validity, spoil: &dyn Fn(&Path)| failing(validity, spoil).0;

        for file in ["ca.pem", "host.pem", "host.key"] {
            let missing = error(good, &|dir| std::fs::remove_file(dir.join(file)).unwrap());
            assert!(matches!(missing, IdentityError::Missing { file: f, .. } if f == file));
            let text = missing.to_string();
            assert!(text.contains(file) && text.contains("skein ca issue"), "{text}");
        }
        for mode in [0o604, 0o644, 0o660, 0o602] {
            let open = error(good, &|dir| {
                std::fs::set_permissions(dir.join("host.key"), PermissionsExt::from_mode(mode)).unwrap();
            });
            assert!(matches!(open, IdentityError::KeyExposed { mode: m, .. } if m == mode));
        }
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for text in ["", "garbage", garbage, &garbage[..30]] {
            for file in ["ca.pem", "host.pem"] {
                let bad = error(good, &write(file, text.to_owned()));
                assert!(matches!(&bad, IdentityError::BadCertificate { path, .. } if path.ends_with(file)), "{bad:?}");
            }
            let bad = error(good, &write("host.key", text.to_owned()));
            assert!(matches!(&bad, IdentityError::BadKey { .. }), "{bad:?}");
        }
        let foreign = other.issue("h1", good).unwrap();
        assert!(matches!(error(good, &write("host.key", key_pem(&foreign.key))), IdentityError::KeyMismatch { .. }));
        assert!(matches!(error(good, &write("ca.pem", other.certificate_pem())), IdentityError::OtherCa { .. }));
        assert!(matches!(error(good, &write("ca.pem", pem_of(&foreign.chain[0]))), IdentityError::NotCa(_)));
        assert!(matches!(error(good, &write("host.pem", ca.certificate_pem())), IdentityError::NotIdentity { .. }));
        assert!(matches!(
            error(good, &write("ca.pem", "x".repeat(files::FILE_BYTES_MAX as usize + 1))),
            IdentityError::Read { .. }
        ));

        let now = SystemTime::now();
        let past = Validity { not_before: now - 48 * HOUR, not_after: now - HOUR };
        let (expired, _) = failing(past, &|_| ());
        assert!(matches!(&expired, IdentityError::Expired { host, .. } if host == "h1"));
        assert!(expired.to_string().contains("skein ca renew h1"), "{expired}");
        let future = Validity { not_before: now + HOUR, not_after: now + 48 * HOUR };
        assert!(matches!(error(future, &|_| ()), IdentityError::NotYetValid { .. }));
    }

    #[test]
    fn an_expired_ca_is_told() {
        let ca = ClusterCa::create("lab").unwrap();
        let identity = ca.issue("h1", Validity::days(1)).unwrap();
        let later = SystemTime::now() + Duration::from_secs(3700 * 24 * 3600);
        assert!(matches!(identity.check(Path::new("d"), later), Err(IdentityError::CaExpired { .. })));
    }

    #[test]
    fn two_cas_are_trusted_while_changing_from_one_to_the_next() {
        let (old, new) = (ClusterCa::create("old").unwrap(), ClusterCa::create("new").unwrap());
        let (_tmp, dir) = saved(&new, Validity::days(1));
        std::fs::write(dir.join("ca.pem"), old.certificate_pem() + &new.certificate_pem()).unwrap();
        assert_eq!(Identity::load(&dir).unwrap().roots().len(), 2);
    }

    /// Any bytes, and any damage to good bytes, give an error or an identity, never a panic.
    mod arbitrary {
        use super::*;

        fn parts() -> [Vec<u8>; 3] {
            static PARTS: std::sync::OnceLock<[Vec<u8>; 3]> = std::sync::OnceLock::new();
            PARTS
                .get_or_init(|| {
                    let ca = ClusterCa::create("lab").unwrap();
                    let identity = ca.issue("h1", Validity::days(1)).unwrap();
                    [ca.certificate_pem(), pem_of(&identity.chain[0]), key_pem(&identity.key)].map(String::into_bytes)
                })
                .clone()
        }

        fn load(parts: &[Vec<u8>; 3]) {
            if let Ok(identity) = Identity::from_pem(Path::new(""), &parts[0], &parts[1], &parts[2]) {
                let _ = identity.check(Path::new(""), SystemTime::now());
            }
        }

        proptest! {
            #[test]
            fn bytes_never_panic(which in 0..3usize, bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
                let mut parts = parts();
                parts[which] = bytes;
                load(&parts);
            }

            #[test]
            fn der_never_panics(which in 0..3usize, bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
                let mut parts = parts();
                parts[which] = pem(if which == 2 { "PRIVATE KEY" } else { "CERTIFICATE" }, &bytes).into_bytes();
                load(&parts);
            }

            #[test]
            fn damaged_certificates_never_panic(
                which in 0..2usize,
                at in any::<prop::sample::Index>(),
                byte: u8,
                cut: bool,
            ) {
                let mut parts = parts();
                let mut der = parse_pem(&parts[which]).unwrap()[0].to_vec();
                let at = at.index(der.len());
                der[at] = byte;
                if cut { der.truncate(at); }
                parts[which] = pem_of(&der.into()).into_bytes();
                load(&parts);
            }
        }
    }
}
