//! Controllers in this process, and clients of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use skein_api::cluster::{Operation, StoreKind, Token, UnixMs};
use skein_cluster::{ClusterRecord, Settings, TokenRecord};
use skein_controller::client::{Answered, Client};
use skein_controller::driver::{Driver, DriverSettings, ElectionTimes, MIGRATIONS, Member, boot_clock, wall};
use skein_controller::handshakes::PortTls;
use skein_controller::http::{router, sha256_hex};
use skein_controller::server::{ServerSettings, serve};
use skein_controller::signer::Signer;
use skein_identity::{ClusterCa, ControllerIdentity, ControllerNames, Validity};
use skein_store::election::TermBase;
use skein_store::schema::open_schema;
use skein_store::{Key, Operation as Put, Store, Transaction, Value};
use skein_store_sqlite::SqliteStore;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fake_agent::{FakeAgent, World};
use crate::fake_devices::FakeDevices;

pub use hyper::Method;
pub use skein_api::cluster::Role;

/// How long anything may take on a machine that is busy.
pub const LONG: Duration = Duration::from_secs(60);

/// What controllers of a cluster share.
pub struct TestCluster {
    pub ca: ClusterCa,
    pub store: Arc<dyn Store>,
    pub world: Arc<World>,
    pub devices: Arc<FakeDevices>,
    /// For how long certificates are valid that controllers sign.
    pub valid_for: Duration,
    /// Whether controllers have the CA's key.
    pub signs: bool,
}

/// A controller that runs until this is dropped.
pub struct TestController {
    pub address: SocketAddr,
    pub driver: Arc<Driver>,
    pub identity: ControllerIdentity,
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

/// Returns a value as the store has it.
fn value(of: &impl Serialize) -> Value {
    Value::new(serde_json::to_vec(of).unwrap()).unwrap()
}

impl TestCluster {
    /// Makes a cluster with a token for each role, whose secrets are the roles' names.
    pub fn new() -> TestCluster {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory(boot_clock()).unwrap());
        open_schema(&*store, MIGRATIONS, TermBase(wall().0), LONG).unwrap();
        let put = |key: &str, value| Put::put(Key::new(key).unwrap(), value);
        let cluster = ClusterRecord { name: "lab".into(), id: "0123456789abcdef".into(), ca_sha256: None };
        let mut transaction = Transaction::new().then(put("cluster", value(&cluster)));
        for (name, role) in [("viewer", Role::Viewer), ("operator", Role::Operator), ("admin", Role::Admin)] {
            let token = Token { name: name.into(), role, created: UnixMs(0), expires: None };
            let record = TokenRecord { token, secret_sha256: sha256_hex(name.as_bytes()) };
            transaction = transaction.then(put(&format!("token/{name}"), value(&record)));
        }
        store.commit(&transaction, LONG).unwrap();
        let (ca, valid_for) = (ClusterCa::create("lab").unwrap(), Duration::from_secs(86_400));
        TestCluster { ca, store, world: Arc::default(), devices: Arc::default(), valid_for, signs: true }
    }

    /// Starts a controller, with the CA.
    pub async fn start(&self, name: &str) -> TestController {
        let settings = Settings { retry_ms: 200, dialled_ms: 0, ..Settings::default() };
        self.start_with(name, settings, ServerSettings::default()).await
    }

    pub async fn start_with(&self, name: &str, core: Settings, server: ServerSettings) -> TestController {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (url, at) = (format!("https://{address}"), address.to_string());
        let member = Member { name: name.into(), url, address: at };
        // No test waits for these times to run out, and on a busy machine they do not.
        let times = ElectionTimes { lease: LONG / 3, ..ElectionTimes::default() };
        let server = ServerSettings { report_period: LONG / 3, handshake: LONG, ..server };
        let (store, store_kind) = (self.store.clone(), StoreKind::Memory);
        let fencing = self.devices.clone();
        let settings = DriverSettings { member, store, store_kind, fencing, core, times, boot: boot_clock() };
        let driver = Driver::start(settings).unwrap();
        let names = ControllerNames::new(name, ["127.0.0.1"]).unwrap();
        let identity = self.ca.issue_controller(&names, Validity::days(1)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        self.ca.save(dir.path()).unwrap();
        let ca = self.signs.then(|| ClusterCa::load(dir.path()).unwrap());
        let signer = Arc::new(Signer::new(ca, self.valid_for));
        let router = router(driver.clone(), signer.clone(), identity.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let tls = PortTls::new(&identity).unwrap();
        let serving = serve(listener, driver.clone(), router, tls, signer, server, async {
            let _ = stopped.await;
        });
        let server = Some(tokio::spawn(serving));
        TestController { address, driver, identity, stop: Some(stop), server }
    }

    /// Starts the agent of a host.
    pub fn agent(&self, host: &str, controllers: &[&TestController]) -> FakeAgent {
        FakeAgent::start(&self.ca, &self.world, host, controllers.iter().map(|of| of.address).collect())
    }

    /// Returns a client with a token: a role's name, or anything else.
    pub fn client(&self, of: &TestController, token: &str) -> Client {
        Client::new(&of.address.to_string(), self.ca.fingerprint(), (!token.is_empty()).then(|| token.to_owned()))
    }
}

impl TestController {
    /// Waits until it leads. Before that it refuses changes, and may know no token.
    pub async fn leads(&self) {
        until("it leads", async || self.driver.leads().then_some(())).await;
    }

    /// Ends the server and the driver, as a stop of the service does.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(LONG, self.server.take().unwrap()).await.unwrap().unwrap();
        let driver = self.driver.clone();
        tokio::task::spawn_blocking(move || driver.stop()).await.unwrap();
    }
}

/// Waits until there is something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begin.elapsed() < LONG, "it takes too long until {what}");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// Sends a request, with a body or none.
pub async fn send(client: &Client, method: Method, path: &str, body: &str) -> Answered {
    send_with(client, method, path, &[], body).await
}

pub async fn send_with(client: &Client, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Answered {
    let body = (!body.is_empty()).then_some(body.as_bytes());
    client.send(method, path, headers, body).await.unwrap()
}

pub async fn get<T: DeserializeOwned>(client: &Client, path: &str) -> T {
    let answer = send(client, Method::GET, path, "").await;
    assert_eq!(answer.status, 200, "{path}: {}", String::from_utf8_lossy(&answer.body));
    answer.json().unwrap()
}

/// Waits until an operation is over.
pub async fn over(client: &Client, id: &str) -> Operation {
    until("the operation is over", async || {
        let operation: Operation = get(client, &format!("/api/v1/operations/{id}")).await;
        operation.state.is_over().then_some(operation)
    })
    .await
}
