//! What may be wrong with an identity.

use std::path::PathBuf;

use crate::certificate::ParseError;

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
    #[error(
        "the identity in {path} expired on {day}: where there is a controller, `skein-controller ticket --host {host}` \
         makes a token for `skein join`, which keeps the key; else `skein ca renew {host}`, and copy host.pem here"
    )]
    Expired {
        /// The certificate's file.
        path: PathBuf,
        /// The last day of validity.
        day: String,
        /// The host's name.
        host: String,
    },
    /// The certificate is not valid yet.
    #[error(
        "the identity in {path} is valid from {from} on only: is this host's clock right? If it is, the certificate \
         was signed with a clock that was ahead: where there is a controller, `skein-controller ticket --host {host}` \
         makes a token for `skein join`, which keeps the key; else `skein ca renew {host}`, and copy host.pem here"
    )]
    NotYetValid {
        /// The certificate's file.
        path: PathBuf,
        /// The first day of its validity.
        from: String,
        /// The host's name.
        host: String,
    },
    /// The certificate has no host name, lacks the members' name, or is for other purposes.
    #[error("{path} is not an identity of a skein host: make one with `skein ca issue HOST`")]
    NotIdentity {
        /// The certificate's file.
        path: PathBuf,
        /// What TLS finds wrong with the certificate. `None`: TLS finds nothing wrong.
        source: Option<rustls::Error>,
    },
    /// A file of a controller's identity is missing.
    #[error(
        "there is no controller's identity in {dir} ({file} is missing): it is made where the cluster's CA is, and its \
         three files belong in this directory", dir = .dir.display()
    )]
    NoController {
        /// The directory.
        dir: PathBuf,
        /// The missing file.
        file: &'static str,
    },
    /// A controller's certificate has expired.
    #[error(
        "the controller's identity in {path} expired on {day}: start skein-controller with the CA's key (`ca` in \
         controller.toml), and it is renewed"
    )]
    ControllerExpired {
        /// The certificate's file.
        path: PathBuf,
        /// The last day of validity.
        day: String,
    },
    /// A controller's certificate is not valid yet.
    #[error(
        "the controller's identity in {path} is valid from {from} on only: is this host's clock right? If it is, the \
         certificate was signed with a clock that was ahead: start skein-controller with the CA's key (`ca` in \
         controller.toml), and it is replaced"
    )]
    ControllerNotYetValid {
        /// The certificate's file.
        path: PathBuf,
        /// The first day of its validity.
        from: String,
    },
    /// The certificate lacks the controllers' name, has the members', or is for other purposes.
    #[error("{path} is not an identity of a controller: a host's identity is not one")]
    NotController {
        /// The certificate's file.
        path: PathBuf,
        /// What TLS finds wrong with the certificate. `None`: TLS finds nothing wrong.
        source: Option<rustls::Error>,
    },
    /// The certificate that the CA sent is of another name than was asked for.
    #[error("the CA signed a certificate for {signed}, and {asked} was asked for")]
    OtherName {
        /// The name that was asked for.
        asked: String,
        /// The name in the certificate.
        signed: String,
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
