//! Serves metrics of the controller and of its cluster, at an address of their own: followers do so, too.
//!
//! | file | what |
//! |---|---|
//! | `cluster` | hosts, VMs, operations: counted at each scrape |
//! | `seldom` | what takes longer to find, as what is broken of rules: found now and then |

mod cluster;
mod seldom;

use std::sync::{Arc, Weak};
use std::thread;
use std::time::SystemTime;

use skein_identity::ControllerIdentity;
use skein_metrics::{Samples, ScrapeAddress, ScrapeError, ScrapeServer, controller};

use crate::driver::Driver;
use crate::signer::Signer;
use seldom::Seldom;

/// Why a controller's metrics are not served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Nobody can connect.
    #[error(transparent)]
    Scrape(#[from] ScrapeError),
    /// What is found now and then has no thread.
    #[error("a thread cannot be started")]
    Thread(#[from] std::io::Error),
}

/// Serves metrics until what is returned is dropped.
///
/// # Errors
///
/// The address cannot be listened at, or there is no thread.
pub fn serve_metrics(
    address: &ScrapeAddress,
    driver: &Arc<Driver>,
    signer: Arc<Signer>,
    identity: ControllerIdentity,
) -> Result<ScrapeServer, MetricsError> {
    let seldom = Arc::new(Seldom::default());
    let (own, found) = (Arc::downgrade(driver), seldom.clone());
    let of = Arc::downgrade(driver);
    let started_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let server = ScrapeServer::start(address, move |samples| collect(samples, &own, &found, started_s))?;
    // It ends with the driver, some seconds later at most.
    thread::Builder::new().name("metrics".into()).spawn(move || seldom.run(&of, &signer, &identity))?;
    Ok(server)
}

/// Tells all values of this moment; only of a controller that is still there.
fn collect(samples: &mut Samples, driver: &Weak<Driver>, seldom: &Seldom, started_s: f64) {
    let Some(driver) = driver.upgrade() else { return };
    samples.set(&controller::BUILD, &[env!("CARGO_PKG_VERSION")], true);
    samples.set(&controller::START_TIME, &[], started_s);
    let leader = driver.leader();
    samples.set(&controller::LEADS, &[], driver.leads());
    samples.set(&controller::LEADER_KNOWN, &[], leader.is_some());
    samples.set(&controller::TERM, &[], leader.map_or(0, |leader| leader.term));
    samples.set(&controller::CONTROLLERS, &["there"], driver.members().len());
    samples.set(&controller::CONTROLLERS, &["gone"], driver.gone_members().len());
    samples.set(&controller::AGENTS, &[], driver.shared().connected_agents());
    samples.set(&controller::STORE_REVISION, &[], driver.shared().events.last().revision);
    for member in driver.store_members() {
        let state = if member.problem.is_none() { "well" } else { "ill" };
        samples.add(&controller::STORE_MEMBERS, &[state], 1_u64);
    }
    driver.shared().meter.collect(samples);
    driver.read(|core| cluster::collect(samples, core.tables()));
    seldom.collect(samples, driver.leads());
}
