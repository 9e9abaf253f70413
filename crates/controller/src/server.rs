//! The port of a controller: agents and HTTP over TLS, told apart by the protocol that both ends agree on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use skein_cluster::Input;
use skein_identity::{CONTROLLER_ALPN, CaFingerprint, ClusterPeer, cluster_peer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;
use tracing::{debug, warn};

use crate::agent_link::{self, AgentPeer, LinkSettings};
use crate::driver::Driver;
use crate::handshakes::{Failed, PortTls};
use crate::http::Peer;
use crate::limits::{ConnectionLimits, Connections, Counted};
use crate::signer::Signer;
use crate::timed_io::TimedIo;

/// The port unless another is named.
pub const DEFAULT_PORT: u16 = 7443;

/// How long a TLS handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long the head of a request may take, and how long a connection may be idle.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long a client may read nothing of what it is sent.
const STALL: Duration = Duration::from_secs(30);
/// How often an HTTP/2 connection is tried that says nothing.
const PING_PERIOD: Duration = Duration::from_secs(20);
/// How many requests of one HTTP/2 connection may be under way.
const STREAMS_MAX: u32 = 64;
/// How many bytes of an answer wait in the server for a client that reads slowly.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// How long requests that are under way are waited for at the end.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(5);

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The most connections.
    pub connections: ConnectionLimits,
    /// How often agents report.
    pub report_period: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long a client may read nothing of what it is sent.
    pub stall: Duration,
}

impl Default for ServerSettings {
    fn default() -> ServerSettings {
        ServerSettings {
            connections: ConnectionLimits::default(),
            report_period: Duration::from_secs(1),
            handshake: HANDSHAKE_WITHIN,
            stall: STALL,
        }
    }
}

/// What every connection needs.
struct Port {
    driver: Arc<Driver>,
    router: axum::Router,
    tls: PortTls,
    link: LinkSettings,
    handshake: Duration,
    stall: Duration,
}

/// Accepts connections until `stop` is done. Then requests that are under way are waited for, for some seconds.
pub async fn serve(
    listener: TcpListener,
    driver: Arc<Driver>,
    router: axum::Router,
    tls: PortTls,
    signer: Arc<Signer>,
    settings: ServerSettings,
    stop: impl Future<Output = ()>,
) {
    let connections = Connections::new(settings.connections);
    let link = LinkSettings { report_period: settings.report_period, signer };
    let graceful = GracefulShutdown::new();
    let port = Arc::new(Port { driver, router, tls, link, handshake: settings.handshake, stall: settings.stall });
    // All tasks end with this set.
    let mut tasks = tokio::task::JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            () = &mut stop => break,
        };
        match accepted {
            Ok((socket, from)) => match connections.add(from.ip().to_canonical()) {
                Some(counted) => {
                    let give_way = counted.give_way();
                    let served = serve_connection(port.clone(), socket, from, counted, graceful.watcher());
                    tasks.spawn(async move {
                        tokio::select! {
                            () = served => {}
                            () = give_way.notified() => debug!("{from} has too many connections: its oldest ends"),
                        }
                    });
                }
                None => debug!("{from} is not served: there are too many agents"),
            },
            Err(error) => {
                // Too many open files, mostly: others have to end first.
                warn!("no connection can be accepted: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    port.driver.shared().events.close();
    drop(port);
    // Agents' connections and what is left of others end with the tasks.
    let _ = timeout(SHUTDOWN_WITHIN, graceful.shutdown()).await;
}

async fn serve_connection(
    port: Arc<Port>,
    socket: TcpStream,
    from: SocketAddr,
    mut counted: Counted,
    watcher: Watcher,
) {
    let keep_alive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(30));
    // Without these a connection is slower, or known to be dead later.
    let _ = socket.set_nodelay(true);
    let _ = socket2::SockRef::from(&socket).set_tcp_keepalive(&keep_alive);
    let address = from.ip().to_canonical();
    let stream = match port.tls.accept(socket, address, port.handshake).await {
        Ok(stream) => stream,
        Err(Failed { host, failure }) => {
            return port.driver.shared().input(Input::HandshakeFailed { address, host, failure });
        }
    };
    let (_, tls) = stream.get_ref();
    let certificates = tls.peer_certificates().unwrap_or_default();
    let shown = certificates.first().cloned();
    let (peer, sha256) = (cluster_peer(certificates), certificates.first().map(CaFingerprint::of));
    let sha256 = sha256.map(CaFingerprint::to_hex).unwrap_or_default();
    let is_agent = tls.alpn_protocol() == Some(CONTROLLER_ALPN);
    match (peer, shown) {
        (ClusterPeer::Host(host), Some(certificate)) if is_agent => {
            counted.is_agents();
            // The end does not wait for agents.
            drop(watcher);
            let address = from.ip().to_canonical();
            let agent = AgentPeer { host, certificate, sha256, address };
            agent_link::serve(&port.driver, &port.link, &agent, stream).await;
        }
        (_, _) if is_agent => debug!("{from} speaks as an agent, and shows no host's certificate"),
        (peer, _) => {
            let peer =
                Arc::new(Peer { address: from.ip().to_canonical(), certificate: peer, certificate_sha256: sha256 });
            serve_http(&port, stream, peer, watcher).await;
        }
    }
}

async fn serve_http(port: &Port, stream: TlsStream<TcpStream>, peer: Arc<Peer>, watcher: Watcher) {
    let from = peer.address;
    let router = port.router.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request)
    });
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_PERIOD)
        .keep_alive_timeout(PING_PERIOD)
        .max_concurrent_streams(STREAMS_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(64 << 10);
    // Otherwise the first bytes would say which, and could be waited for without end.
    let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
    let stream = TokioIo::new(TimedIo::new(stream, port.stall));
    let connection = builder.serve_connection(stream, service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        debug!("a connection of {from} ended: {error}");
    }
}
