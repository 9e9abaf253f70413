//! Who is at the other end of a connection.

use rustls::CommonState;
use rustls::pki_types::CertificateDer;

use crate::certificate::{CertificateInfo, ParseError};
use crate::{ALPN, ALPN_AEGIS, CONTROLLER_ALPN};

/// Why a peer is refused after its handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The handshake is not over, or only one end showed a certificate.
    #[error("the peer showed no certificate: give it an identity with `skein ca issue`")]
    NoCertificate,
    /// The certificate cannot be read.
    #[error("the peer's certificate cannot be read")]
    BadCertificate(#[source] ParseError),
    /// The certificate does not say which host it is.
    #[error("the peer's certificate does not name one host: issue its identity with `skein ca issue HOST`")]
    NoHost,
    /// The peer agreed neither on [`ALPN`] nor on [`ALPN_AEGIS`].
    #[error("the peer speaks TLS, but not skein's protocol: is that port a skein agent's, and of this version?")]
    OtherProtocol,
    /// The peer is a controller, and no host.
    #[error("the peer is a controller of this cluster, and no host")]
    Controller,
    /// The certificate lacks the controllers' name, or has the members'.
    #[error("the peer is no controller of this cluster: its certificate is not a controller's")]
    NotController,
    /// The peer did not agree on [`CONTROLLER_ALPN`].
    #[error("the peer speaks TLS, but not as a controller does to agents: is that port a controller's?")]
    OtherControllerProtocol,
}

/// Whom a verified certificate stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterPeer {
    /// The host of this name.
    Host(String),
    /// The controller of this name.
    Controller(String),
    /// There is no certificate, or one of neither kind.
    Nobody,
}

/// Returns whom a peer's certificate chain, which TLS has verified, stands for.
pub fn cluster_peer(certificates: &[CertificateDer<'_>]) -> ClusterPeer {
    let Some(info) = certificates.first().and_then(|first| CertificateInfo::parse(first).ok()) else {
        return ClusterPeer::Nobody;
    };
    match (info.controller(), info.host().filter(|_| info.is_member())) {
        (Some(name), _) => ClusterPeer::Controller(name.to_owned()),
        (None, Some(host)) => ClusterPeer::Host(host.to_owned()),
        (None, None) => ClusterPeer::Nobody,
    }
}

/// Returns the host name in a peer's certificate chain, which TLS has verified.
///
/// # Errors
/// There is no certificate, it does not name one host, or it is a controller's.
pub fn peer_name(certificates: &[CertificateDer<'_>]) -> Result<String, PeerError> {
    let first = certificates.first().ok_or(PeerError::NoCertificate)?;
    let info = CertificateInfo::parse(first).map_err(PeerError::BadCertificate)?;
    if info.controller().is_some() {
        return Err(PeerError::Controller);
    }
    info.host().filter(|_| info.is_member()).map(str::to_owned).ok_or(PeerError::NoHost)
}

/// Checks after a handshake that both ends speak this protocol. Returns the peer's host name.
///
/// # Errors
/// [`PeerError::OtherProtocol`], or an error of [`peer_name`].
pub fn check_peer(connection: &CommonState) -> Result<String, PeerError> {
    let name = peer_name(connection.peer_certificates().unwrap_or_default())?;
    // A peer may skip the negotiation: TLS leaves this check to the application.
    if !matches!(connection.alpn_protocol(), Some(ALPN | ALPN_AEGIS)) {
        return Err(PeerError::OtherProtocol);
    }
    Ok(name)
}

/// Checks after a handshake of an agent that the other end is a controller of the cluster, and speaks to agents.
/// Returns the controller's name.
///
/// # Errors
/// [`PeerError::NotController`], [`PeerError::OtherControllerProtocol`], or there is no certificate that can be read.
pub fn check_controller(connection: &CommonState) -> Result<String, PeerError> {
    let first = connection.peer_certificates().and_then(<[_]>::first).ok_or(PeerError::NoCertificate)?;
    let info = CertificateInfo::parse(first).map_err(PeerError::BadCertificate)?;
    let name = info.controller().ok_or(PeerError::NotController)?;
    if connection.alpn_protocol() != Some(CONTROLLER_ALPN) {
        return Err(PeerError::OtherControllerProtocol);
    }
    Ok(name.to_owned())
}
