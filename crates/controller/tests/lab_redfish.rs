//! A host's power by Redfish, against a server that is not ours: OpenStack's sushy emulator, over HTTP and over TLS.
//!
// Cores: 0.3
// Timeout: 300 s

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use skein_api::cluster::{FencingDevice, PowerState};
use skein_cluster::{PowerAction, PowerResult};
use skein_controller::fencing::{FencingConfig, FencingDevices, PowerCall, RealDevices};
use skein_identity::{ClusterCa, ControllerNames, Validity};

const LONG: Duration = Duration::from_secs(100);
const UUID: &str = "11111111-1111-1111-1111-111111111111";

/// Returns the emulator's program, or `None` and why there is none.
fn program() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/sushy/bin/sushy-emulator");
    if path.exists() {
        return Some(path);
    }
    println!("skipped: there is no sushy-emulator here (scripts/sushy.sh)");
    None
}

/// An emulator that runs until this is dropped.
struct Emulator {
    process: Child,
    address: SocketAddr,
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Emulator {
    fn start(program: &Path, dir: &Path, tls: Option<(&Path, &Path)>) -> Emulator {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let state = dir.join("state");
        std::fs::create_dir_all(&state).unwrap();
        let mut config = format!(
            "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {}\nSUSHY_EMULATOR_STATE_DIR = '{}'\n\
             SUSHY_EMULATOR_FAKE_SYSTEMS = [{{'uuid': '{UUID}', 'name': 'hosta', 'power_state': 'On', 'nics': []}}]\n",
            address.port(),
            state.display()
        );
        if let Some((certificate, key)) = tls {
            let (certificate, key) = (certificate.display(), key.display());
            config += &format!("SUSHY_EMULATOR_SSL_CERT = '{certificate}'\nSUSHY_EMULATOR_SSL_KEY = '{key}'\n");
        }
        let file = dir.join("sushy.conf");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let mut command = Command::new(program);
        command.arg("--fake").arg("--config").arg(&file).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let mut emulator = Emulator { process: command.spawn().unwrap(), address };
        let begin = Instant::now();
        while TcpStream::connect_timeout(&address, LONG).is_err() {
            let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(emulator.process.try_wait().unwrap().is_none() && begin.elapsed() < LONG, "{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        emulator
    }
}

fn told(device: &FencingDevice, action: PowerAction) -> PowerResult {
    let lease_left = || Some(Duration::from_secs(5));
    let call = PowerCall { device, action, until: Instant::now() + LONG, lease_left: &lease_left };
    RealDevices(FencingConfig::default()).call(&call)
}

fn power(device: &FencingDevice) -> PowerState {
    match told(device, PowerAction::Read) {
        PowerResult::State(power, _) => power,
        other => panic!("it does not say whether it has power: {other:?}"),
    }
}

/// Waits until the power is as it should be: the emulator takes seconds, as devices do.
fn until(device: &FencingDevice, wanted: PowerState) {
    let begin = Instant::now();
    while power(device) != wanted {
        assert!(begin.elapsed() < LONG, "it is not {wanted:?} after {LONG:?}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn redfish(url: String, ca: Option<String>) -> FencingDevice {
    FencingDevice::Redfish { url, system: None, user: None, secret: None, certificate_sha256: None, ca }
}

/// Has a host shut itself down, sleep and wake, and then be fenced.
fn sleeps_and_wakes(device: &FencingDevice) {
    match told(device, PowerAction::Check { shutdown: true }) {
        PowerResult::State(PowerState::On, words) => assert!(words.contains("hosta"), "{words}"),
        other => panic!("it cannot do what sleep takes: {other:?}"),
    }
    assert_eq!(told(device, PowerAction::Shutdown), PowerResult::Accepted);
    until(device, PowerState::Off);
    assert_eq!(told(device, PowerAction::On), PowerResult::Accepted);
    until(device, PowerState::On);
    assert_eq!(told(device, PowerAction::Off), PowerResult::Accepted);
    until(device, PowerState::Off);
}

#[test]
fn a_host_is_shut_down_woken_and_fenced() {
    let Some(program) = program() else { return };
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(&program, dir.path(), None);
    sleeps_and_wakes(&redfish(format!("http://{}", emulator.address), None));
}

#[test]
fn over_tls_only_its_own_certificate_is_trusted() {
    let Some(program) = program() else { return };
    let dir = tempfile::tempdir().unwrap();
    let ca = ClusterCa::create("bmc").unwrap();
    let names = ControllerNames::new("bmc", ["127.0.0.1"]).unwrap();
    let saved = dir.path().join("bmc");
    ca.issue_controller(&names, Validity::days(1)).unwrap().save(&saved).unwrap();
    let file = |ends: &str| {
        let mut all = std::fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().path());
        all.find(|path| path.file_name().unwrap().to_string_lossy().ends_with(ends)).expect("it is saved")
    };
    let (certificate, key) = (file("controller.pem"), file(".key"));
    let emulator = Emulator::start(&program, dir.path(), Some((&certificate, &key)));
    let url = format!("https://{}", emulator.address);
    let other = ClusterCa::create("other").unwrap();
    let refused = told(&redfish(url.clone(), Some(other.certificate_pem())), PowerAction::Shutdown);
    assert!(matches!(&refused, PowerResult::Refused(why) if why.contains("is not trusted")), "{refused:?}");
    let device = redfish(url, Some(ca.certificate_pem()));
    assert_eq!(power(&device), PowerState::On);
    sleeps_and_wakes(&device);
}
