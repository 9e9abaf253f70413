//! Verifies certificates as the other end of a connection would.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;

use crate::{CONTROLLER_NAME, MEMBER_NAME};

/// Returns the server's name for every connection: [`MEMBER_NAME`].
pub fn member_name() -> ServerName<'static> {
    ServerName::try_from(MEMBER_NAME).expect("a constant DNS name")
}

/// Returns the server's name for connections to controllers: [`CONTROLLER_NAME`].
pub fn controller_name() -> ServerName<'static> {
    ServerName::try_from(CONTROLLER_NAME).expect("a constant DNS name")
}

pub(crate) fn root_store(roots: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, rustls::Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone())?;
    }
    Ok(Arc::new(store))
}

pub(crate) fn verifier_error(error: impl std::fmt::Display) -> rustls::Error {
    rustls::Error::General(error.to_string())
}

/// Verifies a chain as peers would, once as a client's and once as a server's that is dialled by `name`.
pub(crate) fn verify(
    roots: &[CertificateDer<'static>],
    chain: &[CertificateDer<'static>],
    name: &ServerName<'_>,
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
        name,
        &[],
        now,
    )?;
    Ok(())
}
