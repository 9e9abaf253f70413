//! Garbage, too much of everything, and whoever is slow: no harm to anybody else.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::http;
use hyper_util::rt::{TokioExecutor, TokioIo};
use skein_api::cluster::{AuditRecord, Contact, Host, Page, ProblemDetails};
use skein_controller::ConnectionLimits;
use skein_controller::client::{Answered, Client};
use skein_controller::server::ServerSettings;
use skein_identity::{CONTROLLER_ALPN, Validity, controller_client_config, controller_name, pinned_client_config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::drain::all_seen;
use crate::setup::{LONG, Method, TestCluster, TestController, get, send};

/// How many events of 60 KB a slow reader is sent.
const EVENTS: usize = 400;

/// Connects as the agent of a host does.
async fn agent_port(cluster: &TestCluster, controller: &TestController, host: &str) -> TlsStream<TcpStream> {
    let identity = cluster.ca.issue(host, Validity::days(1)).unwrap();
    let connector = TlsConnector::from(controller_client_config(&identity).unwrap());
    let socket = TcpStream::connect(controller.address).await.unwrap();
    connector.connect(controller_name(), socket).await.unwrap()
}

/// Reads until the other end hangs up.
async fn rest(stream: &mut TlsStream<TcpStream>) -> String {
    let mut text = Vec::new();
    // A connection may end without a word.
    let _ = timeout(LONG, stream.read_to_end(&mut text)).await.expect("it is hung up");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_agents_port_ends_its_connection_only() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let client = cluster.client(&controller, "viewer");
    let _agent = cluster.agent("alpha", &[&controller]);
    all_seen(&client, 1, 1).await;

    let hello = |host: &str| {
        let rest = r#""release":"0.1.0","api":1,"instance":1,"boot_id":null,"highest_term":0}"#;
        format!(r#"{{"line":"hello","host":"{host}",{rest}"#)
    };
    let garbage = vec![b'x'; 100 << 10];
    let cases: [(&[u8], &str); 5] = [
        (b"\xff\xfe\n", "cannot be read"),
        (b"{\"line\":\"report\",\"sequence\":1}\n", "something else than hello"),
        (&format!("{}\n", hello("alpha")).into_bytes(), "its certificate is beta's"),
        (&garbage, "too long"),
        (&format!("{}\n", hello("../../x")).into_bytes(), "cannot be"),
    ];
    for (bytes, why) in cases {
        let mut stream = agent_port(&cluster, &controller, "beta").await;
        // The other end may have hung up before it has read all.
        let _ = stream.write_all(bytes).await;
        let said = rest(&mut stream).await;
        assert!(said.is_empty() || (said.contains(r#""line":"refused""#) && said.contains(why)), "{said}");
    }
    // A line of lies after a good beginning.
    let mut stream = agent_port(&cluster, &controller, "beta").await;
    stream.write_all(format!("{}\n", hello("beta")).as_bytes()).await.unwrap();
    stream.write_all(b"{\"line\":\"report\",\"sequence\":1,\"vms_gone\":[\"../x\"]}\n").await.unwrap();
    assert!(rest(&mut stream).await.contains(r#""line":"welcome""#));

    // Whoever shows no host's certificate is no agent.
    let mut tls = pinned_client_config(cluster.ca.fingerprint());
    tls.alpn_protocols = vec![CONTROLLER_ALPN.to_vec()];
    let socket = TcpStream::connect(controller.address).await.unwrap();
    let mut nobody = TlsConnector::from(Arc::new(tls)).connect(controller_name(), socket).await.unwrap();
    assert_eq!(rest(&mut nobody).await, "");

    // Not even TLS.
    let mut plain = TcpStream::connect(controller.address).await.unwrap();
    plain.write_all(&[0; 5000]).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(LONG, plain.read_to_end(&mut answer)).await.expect("it is hung up");
    let alpha: Host = get(&client, "/api/v1/hosts/alpha").await;
    assert_eq!((alpha.contact, alpha.vms_running), (Contact::Online, 1));
    controller.stop().await;
}

/// Sends a gigabyte in pieces of 1 MiB, each between the same bytes. Returns how many bytes were taken.
async fn send_gigabyte(cluster: &TestCluster, controller: &TestController, header: &str, piece: &[u8]) -> u64 {
    let mut tls = pinned_client_config(cluster.ca.fingerprint());
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let socket = TcpStream::connect(controller.address).await.unwrap();
    let mut stream = TlsConnector::from(Arc::new(tls)).connect(controller_name(), socket).await.unwrap();
    let head = format!(
        "POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n\
         Content-Type: application/json\r\n{header}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut sent = 0_u64;
    while sent < 1 << 30 && timeout(LONG, stream.write_all(piece)).await.expect("it is hung up").is_ok() {
        sent += piece.len() as u64;
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_a_gigabyte_is_refused_early() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    controller.leads().await;
    let spaces = vec![b' '; 1 << 20];
    let sent = send_gigabyte(&cluster, &controller, "Content-Length: 1073741824", &spaces).await;
    assert!(sent < 64 << 20, "{sent} bytes were taken");
    // Its length is told by nobody.
    let chunk = [b"100000\r\n", &*spaces, b"\r\n"].concat();
    let sent = send_gigabyte(&cluster, &controller, "Transfer-Encoding: chunked", &chunk).await;
    assert!(sent < 64 << 20, "{sent} bytes were taken");
    let client = cluster.client(&controller, "viewer");
    assert_eq!(send(&client, Method::GET, "/healthz", "").await.status, 200);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_with_wrong_tokens_harm_nobody() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let _agent = cluster.agent("alpha", &[&controller]);
    let admin = cluster.client(&controller, "admin");
    all_seen(&admin, 1, 1).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..1000 {
        let client: Client = cluster.client(&controller, &format!("wrong-{number}"));
        tasks.spawn(async move { client.send(Method::GET, "/api/v1/hosts", &[], None).await.map(|of| of.status) });
    }
    let mut counts = std::collections::BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        if let Ok(status) = done.unwrap() {
            *counts.entry(status).or_insert(0) += 1;
        }
    }
    assert!(counts.keys().all(|status| [401, 429].contains(status)), "{counts:?}");
    // A connection that gave way to a later one has no status here, also where a 401 was on its way.
    let of = |status: u16| counts.get(&status).copied().unwrap_or(0);
    assert!(of(401) <= 20 && of(429) > 100, "{counts:?}");
    // The right token goes on, from the same address, and the host was never lost.
    let status = all_seen(&admin, 1, 1).await;
    assert_eq!(status.hosts.lost, 0);
    let log: Page<AuditRecord> = get(&admin, "/api/v1/audit?limit=500").await;
    assert!((1..=60).contains(&log.items.len()), "{}", log.items.len());
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_that_is_refused_often_does_not_fill_the_audit_log() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    controller.leads().await;
    let viewer = cluster.client(&controller, "viewer");
    for _ in 0..300 {
        assert_eq!(send(&viewer, Method::POST, "/api/v1/tokens", "{}").await.status, 403);
    }
    let log: Page<AuditRecord> = get(&admin, "/api/v1/audit?limit=500").await;
    let refused = log.items.iter().filter(|of| of.status == 403).count();
    // A second minute may have begun meanwhile.
    assert!((60..=200).contains(&refused), "{refused}");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_keep_nobody_out() {
    let cluster = TestCluster::new();
    let limits = ConnectionLimits { all: 100, of_address: 4 };
    let settings = ServerSettings { connections: limits, ..ServerSettings::default() };
    let controller = cluster.start_with("c1", skein_cluster::Settings::default(), settings).await;
    let hosts = ["h1", "h2", "h3", "h4", "h5", "h6"];
    let _agents = hosts.map(|host| cluster.agent(host, &[&controller]));
    let client = cluster.client(&controller, "viewer");
    all_seen(&client, 6, 0).await;
    let mut idle = Vec::new();
    for _ in 0..12 {
        idle.push(TcpStream::connect(controller.address).await.unwrap());
    }
    // The oldest gives way, and neither agents nor whoever comes then are kept out.
    let ended = timeout(LONG, idle[0].read(&mut [0])).await.expect("it is ended");
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    let _late = cluster.agent("h7", &[&controller]);
    assert_eq!(all_seen(&client, 7, 0).await.hosts.lost, 0);
    drop(idle);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_read_events_is_cut() {
    let cluster = TestCluster::new();
    let settings = ServerSettings { stall: Duration::from_secs(1), ..ServerSettings::default() };
    let controller = cluster.start_with("c1", skein_cluster::Settings::default(), settings).await;
    let _agent = cluster.agent("alpha", &[&controller]);
    let admin = cluster.client(&controller, "admin");
    all_seen(&admin, 1, 0).await;
    let mut tls = pinned_client_config(cluster.ca.fingerprint());
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let socket = TcpStream::connect(controller.address).await.unwrap();
    let mut slow = TlsConnector::from(Arc::new(tls)).connect(controller_name(), socket).await.unwrap();
    slow.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer viewer\r\n\r\n").await.unwrap();
    // Each change is an event of the host with its settings: more in all than the kernels' buffers have.
    let large = format!(r#"{{"properties":{{"p":"{}"}}}}"#, "x".repeat(60_000));
    for number in 0..EVENTS {
        let body = large.replace("\"p\"", &format!("\"p{number}\""));
        let put = send(&admin, Method::PUT, "/api/v1/hosts/alpha/settings", &body).await;
        assert_eq!(put.status, 204, "{}", String::from_utf8_lossy(&put.body));
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    // It was cut: what the kernels hold comes, and then an end instead of more events.
    let mut got = 0;
    let ended = timeout(LONG, async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = slow.read(&mut buffer).await {
            got += bytes;
        }
    });
    ended.await.expect("the stream ends");
    assert!(got < EVENTS * 60_000, "{got} bytes came");
    assert_eq!(all_seen(&admin, 1, 0).await.hosts.lost, 0);
    controller.stop().await;
}

/// Sends a request over HTTP/2, whose body is sent in pieces as the controller takes them. Returns the answer.
async fn over_http2(
    cluster: &TestCluster,
    controller: &TestController,
    head: http::request::Builder,
    bytes: usize,
) -> Answered {
    let mut tls = pinned_client_config(cluster.ca.fingerprint());
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(controller.address).await.unwrap();
    let stream = TlsConnector::from(Arc::new(tls)).connect(controller_name(), socket).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let body = Full::new(Bytes::from(vec![b' '; bytes]));
    let head = head.header("content-type", "application/json");
    let answer = sender.send_request(head.body(body).unwrap()).await.expect("the answer comes");
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.expect("all of the answer comes").to_bytes().to_vec();
    Answered { status: parts.status.as_u16(), headers: parts.headers, body }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_arrives_whole_though_nobody_reads_the_body() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    controller.leads().await;
    let base = format!("https://{}", controller.address);
    for bytes in [1, 60_000, 300_000, 1 << 20, 8 << 20] {
        for (method, path, token, status) in [
            ("POST", "/api/v1/hosts/alpha/drain", "wrong", 401),
            ("PUT", "/api/v1/rules/r", "viewer", 403),
            ("POST", "/api/v1/nothing", "admin", 404),
            ("POST", "/api/v1/hosts", "admin", 405),
        ] {
            let head = http::Request::builder().method(method).uri(format!("{base}{path}"));
            let head = head.header("authorization", format!("Bearer {token}"));
            let answer = over_http2(&cluster, &controller, head, bytes).await;
            assert_eq!(answer.status, status, "{bytes} {path}");
            let problem: ProblemDetails = answer.json().unwrap();
            assert!(problem.status == status && !problem.cure.is_empty(), "{problem:?}");
        }
    }
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_never_comes_delays_its_own_refusal_only() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let mut tls = pinned_client_config(cluster.ca.fingerprint());
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let socket = TcpStream::connect(controller.address).await.unwrap();
    let mut stream = TlsConnector::from(Arc::new(tls)).connect(controller_name(), socket).await.unwrap();
    let head = "POST /api/v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let client = cluster.client(&controller, "viewer");
    controller.leads().await;
    assert_eq!(send(&client, Method::GET, "/healthz", "").await.status, 200);
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    controller.stop().await;
}
