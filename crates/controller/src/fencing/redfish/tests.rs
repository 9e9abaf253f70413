use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use skein_identity::{ClusterCa, ControllerNames, Validity, controller_server_config};

use super::*;
use crate::fencing::tls::Trust;

const LONG: Duration = Duration::from_secs(60);

/// What a fake management controller has got and answers.
#[derive(Default)]
struct Bmc {
    requests: Vec<String>,
    /// The status and the body of each path; of others 404.
    answers: Vec<(String, u16, String)>,
}

struct Fake {
    url: String,
    bmc: Arc<Mutex<Bmc>>,
}

trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

impl Fake {
    fn start(tls: Option<Arc<ServerConfig>>, answers: &[(&str, u16, &str)]) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let answers = answers.iter().map(|(path, status, body)| ((*path).to_owned(), *status, (*body).to_owned()));
        let bmc = Arc::new(Mutex::new(Bmc { requests: Vec::new(), answers: answers.collect() }));
        let shared = bmc.clone();
        // The thread ends with the test's process.
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (bmc, tls) = (shared.clone(), tls.clone());
                thread::spawn(move || serve(socket.unwrap(), tls, &bmc));
            }
        });
        Fake { url, bmc }
    }

    fn redfish(&self, trust: Trust) -> Redfish {
        let account = Some(("fencing".to_owned(), "open sesame".to_owned()));
        Redfish::new(&self.url, account, trust, Instant::now() + LONG).unwrap()
    }

    fn plain(&self) -> Redfish {
        self.redfish(Trust::Nothing)
    }

    fn requests(&self) -> Vec<String> {
        self.bmc.lock().requests.clone()
    }
}

fn serve(socket: TcpStream, tls: Option<Arc<ServerConfig>>, bmc: &Mutex<Bmc>) {
    let wire: Box<dyn Wire> = match tls {
        Some(tls) => Box::new(StreamOwned::new(ServerConnection::new(tls).unwrap(), socket)),
        None => Box::new(socket),
    };
    let mut wire = BufReader::new(wire);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if !wire.read_line(&mut line).is_ok_and(|count| count > 0) {
                return;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
            if head.is_empty() || lower.starts_with("authorization:") {
                head += line.trim();
                head.push(' ');
            }
        }
        let mut body = vec![0; length];
        wire.read_exact(&mut body).unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        head += &String::from_utf8(body).unwrap();
        let mut bmc = bmc.lock();
        bmc.requests.push(head);
        let found = bmc.answers.iter().find(|(of, ..)| *of == path).map(|(_, status, body)| (*status, body.clone()));
        drop(bmc);
        let (status, body) = found.unwrap_or((404, String::new()));
        if status == 0 {
            return;
        }
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        wire.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

const SYSTEM: &str = r##"{"Name": "hosta", "HostName": "hosta.example", "Model": "R1", "PowerState": "On", "Actions":
    {"#ComputerSystem.Reset": {"target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
     "ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}}}"##;
const ONE: &str = r#"{"Members": [{"@odata.id": "/redfish/v1/Systems/1"}]}"#;
const RESET: &str = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset";
const SYSTEM_1: &str = "/redfish/v1/Systems/1";

#[test]
fn the_only_system_is_found_read_and_switched_off() {
    let bmc = Fake::start(None, &[(SYSTEMS, 200, ONE), (SYSTEM_1, 200, SYSTEM), (RESET, 204, "")]);
    let redfish = bmc.plain();
    let system = redfish.system(None).unwrap();
    assert_eq!(system.power(), PowerState::On);
    assert_eq!(system.words(), "name hosta, host name hosta.example, model R1");
    redfish.reset(&system.reset_target(ResetType::ForceOff).unwrap(), ResetType::ForceOff, LONG).unwrap();
    let account = "authorization: Basic ZmVuY2luZzpvcGVuIHNlc2FtZQ==";
    let expected = [
        format!("GET {SYSTEMS} HTTP/1.1 {account} "),
        format!("GET {SYSTEM_1} HTTP/1.1 {account} "),
        format!("POST {RESET} HTTP/1.1 {account} {{\"ResetType\":\"ForceOff\"}}"),
    ];
    assert_eq!(bmc.requests(), expected);
    let off = SYSTEM.replace("\"On\", \"Act", "\"Off\", \"Act");
    bmc.bmc.lock().answers[1].2 = off;
    assert_eq!(redfish.system(Some("1")).unwrap().power(), PowerState::Off);
}

#[test]
fn what_is_not_clear_is_refused() {
    let two = r#"{"Members": [{"@odata.id": "/redfish/v1/Systems/a"}, {"@odata.id": "/redfish/v1/Systems/b"}]}"#;
    let away = SYSTEM.replace(RESET, "http://10.0.0.1/reset");
    let away_paths = ["/redfish/v1/Systems/away", "/redfish/v1/Systems/soft"];
    let soft = SYSTEM.replace("\"ForceOff\"", "\"GracefulShutdown\"");
    let bmc = Fake::start(
        None,
        &[
            (SYSTEMS, 200, two),
            (away_paths[0], 200, &away),
            (away_paths[1], 200, &soft),
            ("/redfish/v1/Systems/page", 200, "<html>"),
            ("/redfish/v1/Systems/closed", 401, ""),
            ("/busy", 503, r#"{"error": {"@Message.ExtendedInfo": [{"Message": "come back later"}]}}"#),
            ("/silent", 0, ""),
        ],
    );
    let redfish = bmc.plain();
    let told = |error: RedfishError| (skein_cluster::error_chain(&error), error.is_refusal());
    let of = |id: &str| redfish.system(Some(id));
    let off = |path: &str| redfish.reset(path, ResetType::ForceOff, LONG);
    let (which, _) = told(redfish.system(None).unwrap_err());
    assert_eq!(which, "it has 2 systems: set which one it is, a, b");
    assert!(told(of("away").unwrap().reset_target(ResetType::On).unwrap_err()).0.contains("no path below /redfish/"));
    assert!(
        told(of("soft").unwrap().reset_target(ResetType::ForceOff).unwrap_err()).0.contains("On, GracefulShutdown")
    );
    assert!(matches!(of("page"), Err(RedfishError::NotRedfish { .. })));
    assert!(matches!(of("none"), Err(RedfishError::Status { status: 404, .. })));
    let (closed, _) = told(of("closed").unwrap_err());
    assert!(closed.contains("refuses the account (401)") && !closed.contains("sesame"), "{closed}");
    // A power-off that was answered with an error, or not at all, may have been done.
    let (busy, is_refusal) = told(off("/busy").unwrap_err());
    assert!(busy.contains("503") && busy.contains("come back later") && !is_refusal, "{busy}");
    assert!(!told(off("/silent").unwrap_err()).1);
    assert!(told(off("/none").unwrap_err()).1);
}

#[test]
fn nobody_is_told_a_password_whose_certificate_is_not_the_one_that_is_set() {
    let ca = ClusterCa::create("bmc").unwrap();
    let names = ControllerNames::new("bmc", ["127.0.0.1"]).unwrap();
    let identity = ca.issue_controller(&names, Validity::days(1)).unwrap();
    let mut tls = ServerConfig::clone(&*controller_server_config(&identity));
    tls.alpn_protocols.clear();
    let bmc = Fake::start(Some(Arc::new(tls)), &[(SYSTEM_1, 200, SYSTEM)]);
    let ask = |sha256: Option<&str>, pem: Option<&str>| {
        bmc.redfish(Trust::of(sha256, pem).unwrap()).system(Some("1")).map(|system| system.power())
    };
    let told = |error: RedfishError| skein_cluster::error_chain(&error);
    let other = told(ask(Some(&"ab".repeat(32)), None).unwrap_err());
    let seen = other.split("has the SHA-256 ").nth(1).unwrap_or_else(|| panic!("{other}"));
    let seen = seen.split(',').next().unwrap().to_owned();
    let other_ca = ClusterCa::create("other").unwrap();
    assert!(ask(None, Some(&other_ca.certificate_pem())).is_err());
    assert!(bmc.requests().is_empty(), "{:?}", bmc.requests());
    // As people copy it from other programs.
    assert_eq!(ask(Some(&seen.to_uppercase()), None).unwrap(), PowerState::On);
    assert_eq!(ask(None, Some(&ca.certificate_pem())).unwrap(), PowerState::On);
    assert!(Trust::of(None, Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----")).is_err());
}
