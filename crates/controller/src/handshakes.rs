//! TLS handshakes on the controller's port, and why one came to nothing.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::{AlertDescription, CertificateError, Error, ServerConfig};
use skein_api::cluster::UnixMs;
use skein_cluster::{CertificateValidity, HandshakeFailure};
use skein_identity::{
    CertificateInfo, ControllerIdentity, IdentityError, RefusedCertificate, telling_controller_server_config,
};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

tokio::task_local! {
    /// The certificate that the task's handshake refused.
    static REFUSED: RefCell<Option<RefusedCertificate>>;
}

/// A handshake that came to nothing.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Whom a certificate of the cluster's CA names that was shown.
    pub host: Option<String>,
    pub failure: HandshakeFailure,
}

/// TLS as the port of a controller speaks it.
pub struct PortTls {
    config: Arc<ServerConfig>,
    identity: ControllerIdentity,
}

impl PortTls {
    /// # Errors
    ///
    /// TLS does not take the identity.
    pub fn new(identity: &ControllerIdentity) -> Result<PortTls, IdentityError> {
        let tell = |refused| {
            // Verification is a part of the task's own handshake.
            let _ = REFUSED.try_with(|last| *last.borrow_mut() = Some(refused));
        };
        let config = telling_controller_server_config(identity, Arc::new(tell))?;
        Ok(PortTls { config, identity: identity.clone() })
    }

    /// Shakes hands with whoever connected from an address. `within`: how long that may take.
    ///
    /// # Errors
    ///
    /// It came to nothing.
    pub(crate) async fn accept(
        &self,
        socket: TcpStream,
        from: IpAddr,
        within: Duration,
    ) -> Result<TlsStream<TcpStream>, Failed> {
        let shaking = async {
            let accepted = timeout(within, TlsAcceptor::from(self.config.clone()).accept(socket)).await;
            let refused = REFUSED.with(|last| last.borrow_mut().take());
            (accepted, refused)
        };
        let (host, failure) = match REFUSED.scope(RefCell::default(), shaking).await {
            (Ok(Ok(stream)), _) => return Ok(stream),
            (Ok(Err(error)), refused) => {
                debug!("{from} does not come to an agreement: {error}");
                let failure = failure(&error, refused.as_ref(), || validity(&self.identity.info()));
                (refused.and_then(|of| of.host), failure)
            }
            (Err(_), _) => {
                debug!("{from} takes too long for a handshake");
                (None, HandshakeFailure::Broken)
            }
        };
        Err(Failed { host, failure })
    }
}

/// Returns from when until when a certificate is valid.
pub(crate) fn validity(of: &CertificateInfo) -> CertificateValidity {
    CertificateValidity { begins: unix_ms(of.not_before), ends: unix_ms(of.not_after) }
}

fn unix_ms(time: Timestamp) -> UnixMs {
    UnixMs(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

/// Says why a handshake came to nothing. `own`: from when until when this controller's certificate is valid.
fn failure(
    error: &io::Error,
    refused: Option<&RefusedCertificate>,
    own: impl FnOnce() -> CertificateValidity,
) -> HandshakeFailure {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return HandshakeFailure::Broken;
    };
    match (tls, refused) {
        (Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. }), Some(of)) => {
            HandshakeFailure::NotValidYet { begins: unix_ms(of.not_before) }
        }
        (Error::InvalidCertificate(Expired | ExpiredContext { .. }), Some(of)) => {
            HandshakeFailure::Expired { ended: unix_ms(of.not_after) }
        }
        (Error::InvalidCertificate(_), _) => HandshakeFailure::OtherCertificate,
        // TLS has one alert for both.
        (Error::AlertReceived(AlertDescription::CertificateExpired), _) => {
            HandshakeFailure::AgentRefusesDates { own: Some(own()) }
        }
        (
            Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::DecryptError
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate,
            ),
            _,
        ) => HandshakeFailure::AgentRefuses,
        _ => HandshakeFailure::Broken,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rustls::ClientConfig;
    use skein_identity::{ClusterCa, ControllerNames, Identity, Validity, controller_client_config, controller_name};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const WITHIN: Duration = Duration::from_secs(60);

    /// From so many days on, for ten days.
    fn validity(from_days: i32) -> Validity {
        let (now, off) = (SystemTime::now(), DAY * from_days.unsigned_abs());
        let not_before = if from_days < 0 { now - off } else { now + off };
        Validity { not_before, not_after: not_before + 10 * DAY }
    }

    fn port(ca: &ClusterCa, from_days: i32) -> PortTls {
        let names = ControllerNames::new("c1", ["127.0.0.1"]).unwrap();
        PortTls::new(&ca.issue_controller(&names, validity(from_days)).unwrap()).unwrap()
    }

    fn agent(ca: &ClusterCa, from_days: i32) -> Identity {
        ca.issue("alpha", validity(from_days)).unwrap()
    }

    /// Shakes hands with an agent that dials as agents do. Returns what is known if that comes to nothing.
    async fn dialled(port: &PortTls, tls: Arc<ClientConfig>) -> Option<(Option<String>, HandshakeFailure)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connector = TlsConnector::from(tls);
        let dialling = async {
            let socket = TcpStream::connect(address).await.unwrap();
            // Whatever is wrong, this end hears of it until the other one hangs up.
            if let Ok(mut stream) = connector.connect(controller_name(), socket).await {
                let _ = stream.read_u8().await;
            }
        };
        let accepting = async {
            let (socket, from) = listener.accept().await.unwrap();
            match port.accept(socket, from.ip(), WITHIN).await {
                Ok(mut stream) => {
                    let _ = stream.shutdown().await;
                    None
                }
                Err(Failed { host, failure }) => Some((host, failure)),
            }
        };
        tokio::join!(dialling, accepting).1
    }

    fn config(identity: &Identity) -> Arc<ClientConfig> {
        controller_client_config(identity).unwrap()
    }

    #[tokio::test]
    async fn it_is_known_whose_certificate_is_refused_and_why() {
        let ca = ClusterCa::create("lab").unwrap();
        let port = port(&ca, -1);
        assert_eq!(dialled(&port, config(&agent(&ca, -1))).await, None);

        let early = agent(&ca, 2);
        let begins = unix_ms(early.info().not_before);
        let found = dialled(&port, config(&early)).await;
        assert_eq!(found, Some((Some("alpha".into()), HandshakeFailure::NotValidYet { begins })));

        let late = agent(&ca, -20);
        let ended = unix_ms(late.info().not_after);
        let found = dialled(&port, config(&late)).await;
        assert_eq!(found, Some((Some("alpha".into()), HandshakeFailure::Expired { ended })));
    }

    #[tokio::test]
    async fn a_certificate_of_another_ca_names_nobody() {
        let (ca, other) = (ClusterCa::create("lab").unwrap(), ClusterCa::create("lab").unwrap());
        let port = port(&ca, -1);
        // An agent that trusts the cluster's CA, and shows what another has signed: by its signature, and by its dates.
        for (from_days, is_dated) in [(-1, false), (2, true)] {
            let mut mixed = ClientConfig::clone(&config(&agent(&ca, from_days)));
            mixed.client_auth_cert_resolver = config(&agent(&other, from_days)).client_auth_cert_resolver.clone();
            let (host, failure) = dialled(&port, Arc::new(mixed)).await.unwrap();
            assert_eq!(host, None, "{failure:?}");
            assert_eq!(matches!(failure, HandshakeFailure::NotValidYet { .. }), is_dated, "{failure:?}");
        }
    }

    #[tokio::test]
    async fn an_agent_that_refuses_the_controller_says_why() {
        let (ca, other) = (ClusterCa::create("lab").unwrap(), ClusterCa::create("lab").unwrap());
        let alpha = agent(&ca, -1);
        for from_days in [-20, 2] {
            let port = port(&ca, from_days);
            let own = Some(super::validity(&port.identity.info()));
            let found = dialled(&port, config(&alpha)).await;
            assert_eq!(found, Some((None, HandshakeFailure::AgentRefusesDates { own })), "{from_days}");
        }
        let found = dialled(&port(&other, -1), config(&alpha)).await;
        assert_eq!(found, Some((None, HandshakeFailure::AgentRefuses)));
    }

    #[tokio::test]
    async fn who_hangs_up_in_the_middle_is_known_by_the_address() {
        let ca = ClusterCa::create("lab").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        drop(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let (socket, from) = listener.accept().await.unwrap();
        let failed = port(&ca, -1).accept(socket, from.ip(), WITHIN).await.err().unwrap();
        assert!(matches!(failed, Failed { host: None, failure: HandshakeFailure::Broken }));
    }
}
