//! Where etcd is, and with which certificate it is asked.

use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a connection is asked for a sign of life, and how long that may take. etcd ends connections that ask more
/// often than every 5 s (`--grpc-keepalive-min-time`).
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(3));

/// Where etcd is, and who asks.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// The members' addresses for clients: `https://HOST:2379`.
    pub endpoints: Vec<String>,
    /// What all keys begin with, a path with a slash at both ends.
    pub namespace: String,
    /// Certificates. `None`: connections without TLS.
    pub tls: Option<EtcdTls>,
}

/// Certificates, as files in PEM.
#[derive(Debug, Clone)]
pub struct EtcdTls {
    /// The CA of etcd's certificates.
    pub ca: PathBuf,
    /// The client's certificate and its key, where etcd asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why a store in etcd cannot be opened. (That etcd is away is not one of the reasons.)
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No address was given.
    #[error("no address of etcd is given: give those of all members, such as https://etcd1:2379")]
    NoEndpoints,
    /// An address is none, or does not go with the certificates.
    #[error("{endpoint} is no address of etcd: write https://HOST:PORT, or http:// without certificates")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong.
        #[source]
        source: etcd_client::Error,
    },
    /// The namespace is no path.
    #[error(
        "{namespace:?} cannot be what all keys begin with: write a path with a slash at both ends, such as /skein/"
    )]
    Namespace {
        /// The namespace.
        namespace: String,
    },
    /// A file with a certificate or a key cannot be read.
    #[error("cannot read {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: std::io::Error,
    },
    /// No threads can be started.
    #[error("cannot start threads")]
    Threads(#[source] std::io::Error),
}

impl EtcdOptions {
    /// These addresses, without TLS, and the usual namespace.
    pub fn new(endpoints: Vec<String>) -> EtcdOptions {
        EtcdOptions { endpoints, namespace: "/skein/".into(), tls: None }
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        if self.endpoints.is_empty() {
            return Err(OpenError::NoEndpoints);
        }
        let inner = self.namespace.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
        if !inner.is_some_and(|inner| inner.split('/').all(|segment| !segment.is_empty())) {
            return Err(OpenError::Namespace { namespace: self.namespace.clone() });
        }
        Ok(())
    }

    pub(crate) fn connect_options(&self) -> Result<ConnectOptions, OpenError> {
        let options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_keep_alive_while_idle(true)
            // A member that is cut off says so, and does not wait.
            .with_require_leader(true);
        let Some(tls) = &self.tls else { return Ok(options) };
        let mut config = TlsOptions::new().ca_certificate(Certificate::from_pem(read(&tls.ca)?));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(options.with_tls(config))
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, OpenError> {
    std::fs::read(path).map_err(|source| OpenError::File { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_path() {
        let checked = |namespace: &str| {
            let options = EtcdOptions { namespace: namespace.into(), ..EtcdOptions::new(vec!["http://a:1".into()]) };
            options.check().is_ok()
        };
        assert!(checked("/skein/") && checked("/a/b/"));
        assert!(["", "/", "//", "skein/", "/skein", "/a//b/"].iter().all(|namespace| !checked(namespace)));
        assert!(matches!(EtcdOptions::new(Vec::new()).check(), Err(OpenError::NoEndpoints)));
    }
}
