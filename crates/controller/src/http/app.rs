//! What all routes need.

use std::net::IpAddr;
use std::sync::Arc;

use skein_identity::{ClusterPeer, ControllerIdentity};
use tokio::sync::Semaphore;

use crate::driver::Driver;
use crate::limits::Wrong;
use crate::signer::Signer;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address.
    pub address: IpAddr,
    /// Whom the certificate stands for that was shown.
    pub certificate: ClusterPeer,
    /// The certificate's SHA-256.
    pub certificate_sha256: String,
}

/// What all routes need.
pub(crate) struct App {
    pub driver: Arc<Driver>,
    /// What signs certificates.
    pub signer: Arc<Signer>,
    /// This controller's identity.
    pub identity: ControllerIdentity,
    pub wrong: Wrong,
    /// How many questions about placement are answered at the same time.
    pub questions: Arc<Semaphore>,
}

pub(crate) type Shared = Arc<App>;
