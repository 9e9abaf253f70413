//! TLS as Skein speaks it: version 1.3 only, both ends verified, no resumption.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};

use crate::CONTROLLER_ALPN;
use crate::cipher::AllowedCiphers;
use crate::parts::Parts;
use crate::refused::{TellRefused, TellingVerifier};
use crate::shown::ShownCertificate;
use crate::verify::{root_store, verifier_error};

/// Returns aws-lc with these ciphers.
fn provider(ciphers: &AllowedCiphers) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: ciphers.suites().to_vec(), ..default_provider() })
}

/// Returns the configurations of a host's identity for connections between agents.
pub(crate) fn configs(
    ciphers: &AllowedCiphers,
    parts: &Parts,
    shown: &Arc<ShownCertificate>,
) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), rustls::Error> {
    let provider = provider(ciphers);
    let roots = root_store(&parts.roots)?;
    let client = client(provider.clone(), roots.clone(), shown, ciphers.protocols())?;
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build().map_err(verifier_error)?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(shown.clone());
    server.alpn_protocols = ciphers.protocols();
    forget_sessions(&mut server);
    Ok((Arc::new(client), Arc::new(server)))
}

fn client(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    shown: &Arc<ShownCertificate>,
    protocols: Vec<Vec<u8>>,
) -> Result<ClientConfig, rustls::Error> {
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_root_certificates(roots)
        .with_client_cert_resolver(shown.clone());
    client.alpn_protocols = protocols;
    client.resumption = Resumption::disabled();
    Ok(client)
}

fn forget_sessions(server: &mut ServerConfig) {
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
}

/// Returns the configuration for a host's connections to controllers, which have ciphers of TLS only.
pub(crate) fn controller_client(
    ciphers: &AllowedCiphers,
    parts: &Parts,
    shown: &Arc<ShownCertificate>,
) -> Result<ClientConfig, rustls::Error> {
    let roots = root_store(&parts.roots)?;
    client(provider(ciphers), roots, shown, vec![CONTROLLER_ALPN.to_vec()])
}

/// Returns the configuration for a controller's requests to another controller.
pub(crate) fn other_controller_client(
    parts: &Parts,
    shown: &Arc<ShownCertificate>,
) -> Result<ClientConfig, rustls::Error> {
    client(Arc::new(default_provider()), root_store(&parts.roots)?, shown, Vec::new())
}

/// Returns the configuration for what a controller accepts. Clients may show a certificate, and `tell` hears of those
/// that are refused.
pub(crate) fn controller_server(
    parts: &Parts,
    shown: &Arc<ShownCertificate>,
    tell: Option<TellRefused>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(root_store(&parts.roots)?, provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(verifier_error)?;
    let verifier = match tell {
        Some(tell) => Arc::new(TellingVerifier { inner: verifier, tell }),
        None => verifier,
    };
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(shown.clone());
    server.alpn_protocols = [CONTROLLER_ALPN, b"h2", b"http/1.1"].map(<[u8]>::to_vec).to_vec();
    forget_sessions(&mut server);
    Ok(server)
}

/// Returns the configuration of a client that takes whom `verifier` takes, and shows nothing.
pub(crate) fn pinned_client(verifier: impl FnOnce(Arc<CryptoProvider>) -> Arc<dyn ServerCertVerifier>) -> ClientConfig {
    let provider = Arc::new(default_provider());
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])
        .expect("aws-lc speaks TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier(provider))
        .with_no_client_auth();
    client.resumption = Resumption::disabled();
    client
}
