//! A controller that answers as a test says, over TLS with a certificate of a CA that the test made.

// Each test program uses only a part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde::Serialize;
use skein_api::cluster::ProblemDetails;
use skein_identity::{ClusterCa, ClusterPeer, ControllerNames, Validity, cluster_peer, controller_server_config};

/// After this a connection is given up.
const DEADLINE: Duration = Duration::from_secs(20);

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// As `GET /api/v1/hosts?limit=500`.
    pub what: String,
    /// With names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
    /// Whose certificate was shown.
    pub peer: ClusterPeer,
}

/// What is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    Json(u16, String),
    /// Another controller leads.
    Elsewhere(String),
    /// A stream of events, which ends.
    Stream(String),
    /// The connection ends without an answer.
    HangUp,
}

impl Answer {
    pub fn ok(value: &impl Serialize) -> Answer {
        Answer::Json(200, serde_json::to_string(value).unwrap())
    }

    pub fn refused(status: u16, detail: &str, cure: &str) -> Answer {
        let problem = ProblemDetails {
            kind: "urn:skein:refused".into(),
            title: "Refused".into(),
            status,
            detail: detail.into(),
            cure: cure.into(),
        };
        Answer::Json(status, serde_json::to_string(&problem).unwrap())
    }

    fn bytes(&self) -> String {
        match self {
            Answer::Json(204, _) => "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".into(),
            Answer::Json(status, body) => format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: \
                 close\r\n\r\n{body}",
                body.len()
            ),
            Answer::Elsewhere(location) => {
                format!("HTTP/1.1 307 X\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            }
            Answer::Stream(text) => {
                format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{text}")
            }
            Answer::HangUp => String::new(),
        }
    }
}

pub struct FakeController {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeController {
    /// Starts a controller. `answer` gets the requests and how many came before.
    pub fn start(ca: &ClusterCa, answer: impl Fn(&Asked, usize) -> Answer + Send + 'static) -> FakeController {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let names = ControllerNames::new("c1", ["127.0.0.1"]).unwrap();
        let tls = controller_server_config(&ca.issue_controller(&names, Validity::days(1)).unwrap());
        let (asked, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (seen, stopped) = (asked.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // A client that does not trust this controller ends the handshake.
                let _ = serve(socket, tls.clone(), &seen, &answer);
            }
        });
        FakeController { address, asked, stop, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns what came.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Returns what came, without headers and bodies.
    pub fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.what).collect()
    }
}

impl Drop for FakeController {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect_timeout(&self.address, DEADLINE);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    socket: TcpStream,
    tls: Arc<ServerConfig>,
    seen: &Mutex<Vec<Asked>>,
    answer: &impl Fn(&Asked, usize) -> Answer,
) -> std::io::Result<()> {
    socket.set_read_timeout(Some(DEADLINE))?;
    socket.set_write_timeout(Some(DEADLINE))?;
    let connection = ServerConnection::new(tls).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, socket));
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let what = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? <= 2 {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let stream = stream.get_mut();
    let peer = cluster_peer(stream.conn.peer_certificates().unwrap_or_default());
    let asked = Asked { what, headers, body: String::from_utf8_lossy(&body).into_owned(), peer };
    let before = {
        let mut seen = seen.lock().unwrap();
        seen.push(asked.clone());
        seen.len() - 1
    };
    stream.write_all(answer(&asked, before).bytes().as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()
}
