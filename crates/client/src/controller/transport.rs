//! TLS below an HTTP client, with whom its configuration trusts: the cluster's controllers, and nobody else.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use skein_identity::{CaFingerprint, Identity, IdentityError, controller_client_config, pinned_client_config};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// What a caller shows a controller, and whom the caller trusts.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// Nothing is shown, as by a host that joins.
    Nothing {
        /// The cluster's CA.
        ca: CaFingerprint,
    },
    /// A token.
    Token {
        /// The cluster's CA.
        ca: CaFingerprint,
        /// The token's secret.
        secret: String,
    },
    /// A host's certificate, with which the host may look.
    Host(Box<Identity>),
}

impl Credentials {
    /// Returns the configuration of TLS: no server is taken but a controller of the cluster, whatever its address.
    pub(super) fn tls(&self) -> Result<Arc<ClientConfig>, IdentityError> {
        let mut tls = match self {
            Credentials::Nothing { ca } | Credentials::Token { ca, .. } => pinned_client_config(*ca),
            Credentials::Host(identity) => ClientConfig::clone(&*controller_client_config(identity)?),
        };
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(tls))
    }

    pub(super) fn secret(&self) -> Option<&str> {
        match self {
            Credentials::Token { secret, .. } => Some(secret),
            Credentials::Nothing { .. } | Credentials::Host(_) => None,
        }
    }
}

/// Puts TLS over a connection.
#[derive(Debug)]
pub struct TlsConnector {
    /// Who is trusted.
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate is to have, whatever its address.
    pub name: ServerName<'static>,
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = TlsTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<TlsTransport>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        let mut connection =
            ClientConnection::new(self.config.clone(), self.name.clone()).map_err(std::io::Error::other)?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        // At once, so that nothing is sent to a server that is not trusted.
        connection.complete_io(&mut socket)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(TlsTransport { buffers, stream: StreamOwned { conn: connection, sock: socket } }))
    }
}

/// A connection with TLS.
pub struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl std::fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsTransport").finish_non_exhaustive()
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        self.stream.write_all(&self.buffers.output()[..amount])?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
