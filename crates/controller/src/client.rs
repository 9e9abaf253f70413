//! A client of the API: one request a connection, with an answer within a time. It trusts the cluster's CA and nobody
//! else.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use skein_identity::{
    CaFingerprint, ControllerIdentity, IdentityError, controller_name, other_controller_client_config,
    pinned_client_config,
};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// How long a request may take.
const WITHIN: Duration = Duration::from_secs(40);
/// How many bytes an answer has at most.
const BODY_BYTES_MAX: usize = 64 << 20;

/// A client of one controller.
#[derive(Clone)]
pub struct Client {
    address: String,
    tls: Arc<ClientConfig>,
    token: Option<String>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: hyper::HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens there, or the connection broke.
    #[error("the controller at {address} cannot be reached: is skein-controller running?")]
    Connect {
        /// The address.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The request is none.
    #[error("the request cannot be sent")]
    Request(#[from] hyper::http::Error),
    /// The connection broke.
    #[error("the connection to the controller broke")]
    Broke(#[from] hyper::Error),
    /// The answer is too large, or broke off.
    #[error("the controller's answer cannot be read")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is something else.
    #[error("the controller's answer is not understood")]
    Json(#[from] serde_json::Error),
    /// It takes too long.
    #[error("the controller does not answer in time")]
    Timeout,
}

impl Client {
    /// Makes a client of the controller at an address, of the cluster whose CA has this fingerprint.
    pub fn new(address: &str, ca: CaFingerprint, token: Option<String>) -> Client {
        let mut tls = pinned_client_config(ca);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Client::with_tls(address, Arc::new(tls), token)
    }

    /// Makes a client of another controller, which takes this one for an admin.
    ///
    /// # Errors
    ///
    /// TLS does not take the identity.
    pub fn of_controller(address: &str, identity: &ControllerIdentity) -> Result<Client, IdentityError> {
        let mut tls = other_controller_client_config(identity)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Client::with_tls(address, Arc::new(tls), None))
    }

    /// Returns the same client of another controller of the cluster.
    pub fn at(&self, address: &str) -> Client {
        Client { address: address.to_owned(), ..self.clone() }
    }

    /// Makes a client with its own configuration of TLS.
    pub fn with_tls(address: &str, tls: Arc<ClientConfig>, token: Option<String>) -> Client {
        Client { address: address.to_owned(), tls, token }
    }

    /// Sends a request. `headers` go along.
    ///
    /// # Errors
    ///
    /// There is no answer. A refusal is an answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Result<Answered, ClientError> {
        let sent = async {
            let response = self.open(method, path, headers, body).await?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(ClientError::Body)?;
            Ok(Answered { status: parts.status.as_u16(), headers: parts.headers, body: body.to_bytes().to_vec() })
        };
        timeout(WITHIN, sent).await.map_err(|_| ClientError::Timeout)?
    }

    /// Sends a request, and returns the answer with its body still to be read, as of a stream of events.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Result<Response<Incoming>, ClientError> {
        let connect = |source| ClientError::Connect { address: self.address.clone(), source };
        let socket = timeout(WITHIN, TcpStream::connect(&self.address)).await.map_err(|_| ClientError::Timeout)?;
        let stream = TlsConnector::from(self.tls.clone()).connect(controller_name(), socket.map_err(connect)?);
        let stream = stream.await.map_err(connect)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.address);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.is_some() && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::copy_from_slice(body.unwrap_or_default()));
        Ok(sender.send_request(request.body(body)?).await?)
    }
}

impl Answered {
    /// Reads the body.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, ClientError> {
        Ok(serde_json::from_slice(&self.body)?)
    }
}
