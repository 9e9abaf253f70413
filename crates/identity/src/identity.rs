//! A host's identity: its certificate, its key, and the CA that it trusts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};

use crate::certificate::CertificateInfo;
use crate::cipher::{AllowedCiphers, CipherPolicy, CipherSpeeds};
use crate::error::IdentityError;
use crate::files::{self, Existing, WriteError};
use crate::parts::{self, Owner, Parts, pem_of};
use crate::shown::{RenewalError, Shown, ShownCertificate};
use crate::tls;

/// A host's identity, complete and consistent: the key belongs to the certificate.
///
/// [`Identity::load`] checks whether the identity is signed by its CA and valid *now*. [`Identity::with_ciphers`] says
/// which ciphers its connections may have. Clones show the same certificate, also once it was renewed.
#[derive(Clone)]
pub struct Identity {
    /// As they were loaded, the certificate among them.
    pub(crate) parts: Parts,
    /// Where it was loaded from; empty: it was not.
    dir: PathBuf,
    pub(crate) shown: Arc<ShownCertificate>,
    /// The ciphers of all its connections.
    pub(crate) ciphers: AllowedCiphers,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("host", &self.parts.name)
            .field("not_after", &self.info().not_after)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// The CA's certificate (or several, while a cluster changes from one to the next) in an identity's directory.
    pub const CA_FILE: &str = parts::CA_FILE;
    /// The host's certificate in an identity's directory.
    pub const CERTIFICATE_FILE: &str = "host.pem";
    /// The host's key in an identity's directory.
    pub const KEY_FILE: &str = "host.key";

    pub(crate) fn new(
        roots: Vec<CertificateDer<'static>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let dir = Path::new("");
        Self::of_parts(dir, Parts::new(Owner::Host, dir, roots, chain, key)?)
    }

    /// Builds an identity. `dir` is only for messages.
    fn of_parts(dir: &Path, parts: Parts) -> Result<Self, IdentityError> {
        let ciphers = CipherPolicy::Auto.allowed(CipherSpeeds::of_this_cpu());
        let shown = Shown::of(&parts).map(ShownCertificate::new).map_err(|error| parts.refused(dir, error))?;
        let (client, server) = tls::configs(&ciphers, &parts, &shown).map_err(|error| parts.refused(dir, error))?;
        Ok(Self { parts, dir: dir.to_owned(), shown, ciphers, client, server })
    }

    /// Reads `ca.pem`, `host.pem` and `host.key` from a directory, and checks everything that a peer would check now.
    ///
    /// # Errors
    /// An [`IdentityError`] that says what is wrong and what to do.
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        let identity = Self::of_parts(dir, Parts::load(Owner::Host, dir)?)?;
        identity.parts.check(dir, SystemTime::now())?;
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
        let (client, server) = tls::configs(ciphers, &self.parts, &self.shown)
            .map_err(|source| IdentityError::Ciphers { ciphers: ciphers.to_string(), source })?;
        Ok(Self { ciphers: ciphers.clone(), client, server, ..self })
    }

    /// Writes the three files into a directory, which is made if need be.
    ///
    /// # Errors
    /// One of the files is there already, or the directory cannot be written to.
    pub fn save(&self, dir: &Path) -> Result<(), WriteError> {
        self.parts.save(dir)
    }

    /// Writes the certificates into a directory that has the key already
    /// ([`IdentityRequest::save_key`](crate::IdentityRequest::save_key)), in place of earlier ones.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save_beside_key(&self, dir: &Path) -> Result<(), WriteError> {
        self.parts.save_certificates(dir, Existing::Replace)
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

    /// Shows a certificate with other dates, of the same name and key, on all connections that begin from now on, and
    /// has it in place of the earlier one in the directory that the identity was loaded from. The file is written
    /// first: whoever is killed meanwhile starts with a certificate that is accepted.
    ///
    /// # Errors
    /// Peers would not take the certificate, it ends no later, or the file cannot be written. Then all is as it was.
    pub fn renew(&self, certificate: CertificateDer<'static>) -> Result<(), RenewalError> {
        self.shown.renew(&self.parts, certificate, |new| match self.dir.as_os_str().is_empty() {
            true => Ok(()),
            false => Self::save_certificate(&self.dir, new),
        })
    }

    /// Returns whether the certificate is to be renewed at `now`. One that ends with its CA is not: it would get no
    /// longer.
    pub fn is_renewal_due(&self, now: SystemTime) -> bool {
        self.parts.is_renewal_due(&self.info(), now)
    }

    /// Returns the host's name.
    pub fn host(&self) -> &str {
        &self.parts.name
    }

    /// Returns the host's certificate, followed by the others up to the CA if there are any.
    pub fn chain(&self) -> Arc<[CertificateDer<'static>]> {
        self.shown.now().chain.clone()
    }

    /// Returns the CAs that this host trusts: one, except while a cluster changes its CA.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.parts.roots
    }

    /// Returns what the host's certificate says.
    pub fn info(&self) -> Arc<CertificateInfo> {
        self.shown.now().info.clone()
    }
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
    use crate::parts::{key_pem, pem};
    use crate::{ClusterCa, Validity, parse_pem};
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::time::Duration;

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
        assert!(matches!(
            error(good, &write("host.key", key_pem(&foreign.parts.key))),
            IdentityError::KeyMismatch { .. }
        ));
        assert!(matches!(error(good, &write("ca.pem", other.certificate_pem())), IdentityError::OtherCa { .. }));
        assert!(matches!(error(good, &write("ca.pem", pem_of(&foreign.chain()[0]))), IdentityError::NotCa(_)));
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
        let early = error(future, &|_| ());
        assert!(matches!(&early, IdentityError::NotYetValid { host, .. } if host == "h1"));
        assert!(early.to_string().contains("skein-controller ticket --host h1"), "{early}");
    }

    #[test]
    fn an_expired_ca_is_told() {
        let ca = ClusterCa::create("lab").unwrap();
        let identity = ca.issue("h1", Validity::days(1)).unwrap();
        let later = SystemTime::now() + Duration::from_secs(3700 * 24 * 3600);
        assert!(matches!(identity.parts.check(Path::new("d"), later), Err(IdentityError::CaExpired { .. })));
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
                    [ca.certificate_pem(), pem_of(&identity.chain()[0]), key_pem(&identity.parts.key)]
                        .map(String::into_bytes)
                })
                .clone()
        }

        fn load(parts: &[Vec<u8>; 3]) {
            for owner in [Owner::Host, Owner::Controller] {
                if let Ok(parts) = Parts::from_pem(owner, Path::new(""), &parts[0], &parts[1], &parts[2]) {
                    if let Ok(shown) = Shown::of(&parts).map(ShownCertificate::new) {
                        let ciphers = CipherPolicy::AesGcm.allowed(CipherSpeeds::of_this_cpu());
                        let _ = tls::configs(&ciphers, &parts, &shown);
                    }
                    let _ = parts.check(Path::new(""), SystemTime::now());
                }
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
