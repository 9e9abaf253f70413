//! A cluster's CA, the identities it issues to hosts, and the TLS configurations made from them.
//!
//! Membership is the only right there is: whoever holds an identity signed by the cluster's CA may talk to every agent,
//! whoever does not gets nothing, not even a TLS handshake. An identity therefore carries two names: [`MEMBER_NAME`],
//! which every identity has, so that a host dialled by any of its IP addresses can be checked for membership; and the
//! host's own name, which tells who it is ([`peer_name`]).
//!
//! A **controller** has an identity of the same CA with another mark, [`CONTROLLER_NAME`], in place of [`MEMBER_NAME`]:
//! an agent obeys no host, and takes no controller for a host. Its certificate has the names and addresses, too, by
//! which HTTPS clients dial it. A host that joins makes its key itself ([`IdentityRequest`]), and knows its cluster by
//! the fingerprint of the CA ([`pinned_client_config`]).
//!
//! A certificate is **renewed** while the identity is in use: its configurations show the new one on connections that
//! begin from then on ([`Identity::renew`]).
//!
//! Which ciphers a host allows is a [`CipherPolicy`], and how fast its CPU is at each ([`CipherSpeeds`]).
//!
//! Absent on purpose: TLS 1.2, session tickets and 0-RTT (nothing to replay), revocation lists (make a new CA instead,
//! see `docs/identity.md`), and any way to turn verification off.

mod ca;
mod certificate;
mod cipher;
mod controller;
mod error;
mod explain;
mod files;
mod identity;
mod join_token;
mod names;
mod parts;
mod peer;
mod pin;
mod refused;
mod request;
mod shown;
mod tls;
mod verify;

pub use ca::{CaError, ClusterCa, Validity};
pub use certificate::{CertificateInfo, ParseError, parse_pem};
pub use cipher::{AllowedCiphers, CipherPolicy, CipherSpeeds, RecordCipher, UnknownPolicy, record_cipher};
pub use controller::{
    ControllerIdentity, controller_client_config, controller_server_config, other_controller_client_config,
    telling_controller_server_config,
};
pub use error::{IdentityError, KeyError};
pub use explain::{clock_words, explain, explain_controller, explain_io, utc_words};
pub use files::WriteError;
pub use identity::{Identity, client_config, server_config};
pub use join_token::{JoinToken, NoJoinToken};
pub use names::{BadName, ControllerNames};
pub use parts::pem_of as certificate_pem;
pub use peer::{ClusterPeer, PeerError, check_controller, check_peer, cluster_peer, peer_name};
pub use pin::{CaFingerprint, NoFingerprint, PinError, pinned_ca, pinned_client_config};
pub use refused::{RefusedCertificate, TellRefused};
pub use request::{IdentityRequest, RequestError, SigningRequest};
pub use rustls::pki_types::CertificateDer;
pub use shown::RenewalError;
pub use verify::{controller_name, member_name};

/// The name that every identity carries: what a TLS client asks for, whatever address it dials.
///
/// `.internal` is reserved for private use, so no public CA can ever sign it.
pub const MEMBER_NAME: &str = "member.skein.internal";

/// The name that every controller's certificate carries, and no host's.
pub const CONTROLLER_NAME: &str = "controller.skein.internal";

/// The application protocol of an agent's connection to a controller.
pub const CONTROLLER_ALPN: &[u8] = b"skein-controller/1";

/// The application protocol that both ends must agree on (TLS ALPN). Another major version has another name.
pub const ALPN: &[u8] = b"skein/1";

/// The application protocol of two ends that, after the handshake, protect records by AEGIS-128X2
/// ([`RecordCipher::Aegis128X2`]). All else is as with [`ALPN`].
pub const ALPN_AEGIS: &[u8] = b"skein/1+aegis-128x2";

/// The default directory of a host's identity.
pub const DEFAULT_IDENTITY_DIR: &str = "/etc/skein/identity";

/// The default directory of a controller's identity.
pub const DEFAULT_CONTROLLER_DIR: &str = "/etc/skein/controller";

/// The default directory of a cluster's CA.
pub const DEFAULT_CA_DIR: &str = "/etc/skein/ca";

/// How long an identity is valid by default, in days.
pub const DEFAULT_VALIDITY_DAYS: u32 = 365;

/// How long a CA is valid, in days: ten years.
pub const CA_VALIDITY_DAYS: u32 = 3652;

/// How many days before it expires an identity should be renewed.
pub const RENEW_DAYS_BEFORE: i64 = 30;
