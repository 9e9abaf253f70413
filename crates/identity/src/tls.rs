//! TLS as Skein speaks it: version 1.3 only, both ends verified, no resumption.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, CommonState, RootCertStore, ServerConfig, version};

use crate::certificate::{CertificateInfo, ParseError};
use crate::cipher::AllowedCiphers;
use crate::{ALPN, ALPN_AEGIS, MEMBER_NAME};

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
}

/// Returns the server's name for every connection: [`MEMBER_NAME`].
pub fn member_name() -> ServerName<'static> {
    ServerName::try_from(MEMBER_NAME).expect("a constant DNS name")
}

/// Returns the host name in a peer's certificate chain, which TLS has verified.
///
/// # Errors
/// There is no certificate, or it does not name one host.
pub fn peer_name(certificates: &[CertificateDer<'_>]) -> Result<String, PeerError> {
    let first = certificates.first().ok_or(PeerError::NoCertificate)?;
    let info = CertificateInfo::parse(first).map_err(PeerError::BadCertificate)?;
    info.host().map(str::to_owned).ok_or(PeerError::NoHost)
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

/// Returns aws-lc with these ciphers.
fn provider(ciphers: &AllowedCiphers) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: ciphers.suites().to_vec(), ..default_provider() })
}

fn root_store(roots: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, rustls::Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone())?;
    }
    Ok(Arc::new(store))
}

fn verifier_error(error: impl std::fmt::Display) -> rustls::Error {
    rustls::Error::General(error.to_string())
}

/// Returns both configurations of one identity.
pub(crate) fn configs(
    ciphers: &AllowedCiphers,
    roots: &[CertificateDer<'static>],
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), rustls::Error> {
    let provider = provider(ciphers);
    let roots = root_store(roots)?;

    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])?
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain.to_vec(), key.clone_key())?;
    client.alpn_protocols = ciphers.protocols();
    client.resumption = Resumption::disabled();

    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build().map_err(verifier_error)?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.to_vec(), key.clone_key())?;
    server.alpn_protocols = ciphers.protocols();
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok((Arc::new(client), Arc::new(server)))
}

/// Verifies a chain as peers would, once as a client's and once as a server's.
pub(crate) fn verify(
    roots: &[CertificateDer<'static>],
    chain: &[CertificateDer<'static>],
    now: UnixTime,
) -> Result<(), rustls::Error> {
    let (roots, provider) = (root_store(roots)?, Arc::new(default_provider()));
    let (first, rest) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
    WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(verifier_error)?
        .verify_client_cert(first, rest, now)?;
    WebPkiServerVerifier::builder_with_provider(roots, provider).build().map_err(verifier_error)?.verify_server_cert(
        first,
        rest,
        &member_name(),
        &[],
        now,
    )?;
    Ok(())
}
