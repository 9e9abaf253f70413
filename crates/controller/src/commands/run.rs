//! `skein-controller run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use sd_notify::NotifyState;
use skein_cluster::{CLUSTER_KEY, Settings};
use skein_controller::config::{Config, DEFAULT_CONFIG};
use skein_controller::driver::{Driver, DriverSettings, ElectionTimes, Member, boot_clock};
use skein_controller::fencing::RealDevices;
use skein_controller::handshakes::PortTls;
use skein_controller::http::router;
use skein_controller::metrics::serve_metrics;
use skein_controller::server::{ServerSettings, serve};
use skein_controller::signer::Signer;
use skein_identity::ClusterCa;
use skein_metrics::ScrapeService;
use skein_store::{Key, Store, read_one};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

/// How long the store may take to tell whether it is a cluster's.
const WITHIN: Duration = Duration::from_secs(10);

/// Run the controller, as the service does.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-controller run

SIGTERM ends it: it gives up the lead first, so that another controller goes on at once. Guests and migrations need no
controller to go on.")]
pub struct Args {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// How often agents report, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(skein_api::REPORT_PERIOD_RANGE_MS))]
    report_ms: u64,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    let ca = config.ca.as_ref().map(|dir| ClusterCa::load(dir)).transpose()?;
    if ca.is_none() {
        warn!("this controller does not have the CA's key: no host can join by it, and no certificate is renewed");
    }
    let signer = Arc::new(Signer::new(ca, config.certificate_time()));
    let identity = signer.load_identity(&config.identity)?;
    let store = config.open_store()?;
    check(&*store)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the event loop")?;
    let settings = DriverSettings {
        member: Member { name: identity.name().to_owned(), url: config.url(), address: config.address() },
        store,
        store_kind: config.store_kind()?,
        fencing: Arc::new(RealDevices(config.fencing.clone())),
        core: Settings::default(),
        times: ElectionTimes::default(),
        boot: boot_clock(),
    };
    let listener = runtime.block_on(listen(config.listen))?;
    let driver = Driver::start(settings)?;
    // The cluster matters more than who looks at it: a wrong address does not keep the controller from running.
    let metrics = config.metrics.clone().map(|address| {
        let (driver, signer, identity) = (driver.clone(), signer.clone(), identity.clone());
        ScrapeService::start(move || serve_metrics(&address, &driver, signer.clone(), identity.clone()))
    });
    let server = ServerSettings { report_period: Duration::from_millis(args.report_ms), ..ServerSettings::default() };
    let served = runtime.block_on(async {
        let (stop, why) = stop(&driver)?;
        let router = router(driver.clone(), signer.clone(), identity.clone());
        let (renewed, renews) = (identity.clone(), signer.clone());
        tokio::spawn(async move { renews.keep_renewed(&renewed).await });
        tell_systemd(NotifyState::Ready);
        info!("ready on {}", config.listen);
        serve(listener, driver.clone(), router, PortTls::new(&identity)?, signer, server, stop).await;
        tell_systemd(NotifyState::Stopping);
        anyhow::Ok(why.borrow().clone())
    });
    // Connections end before the driver does.
    runtime.shutdown_timeout(Duration::from_secs(2));
    drop(metrics);
    driver.stop();
    match served? {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

/// Refuses a store that no cluster was made in.
fn check(store: &dyn Store) -> anyhow::Result<()> {
    match read_one(store, &Key::new(CLUSTER_KEY)?, WITHIN)?.1 {
        Some(_) => Ok(()),
        None => bail!("the store has no cluster: run 'skein-controller init' first, or restore a backup"),
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}: stop the program that has the port, or change 'listen' and try again")
    })
}

/// Returns what is done when the controller is to end, and why it cannot go on, if it cannot.
fn stop(
    driver: &Arc<Driver>,
) -> anyhow::Result<(impl Future<Output = ()> + use<>, tokio::sync::watch::Receiver<Option<String>>)> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    let (mut failed, why) = (driver.failed(), driver.failed());
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            // The sender ends with the driver, after this.
            _ = failed.wait_for(Option::is_some) => {}
        }
    };
    Ok((stop, why))
}

/// Tells systemd the state of this program (sd_notify(3)), if systemd started it.
fn tell_systemd(state: NotifyState) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn!("systemd cannot be told how the controller stands: {error}");
    }
}
