//! Keeps the host in contact with the cluster's controllers: dials each of them, reports what changes, carries out what
//! the one that leads commands. Nothing here is needed for a migration to end well, and nothing waits for a controller
//! but the thread of its own connection.
//!
//! ```text
//!  VMs, migrations, /proc ─▶ observer ─▶ snapshot ─▶ link (a thread for each controller) ─▶ reports
//!                                                        │
//!                         server: answers requests ◀─ commands, if the term is not below the highest
//! ```
//!
//! | file | what |
//! |---|---|
//! | `host` | what controllers see of the host, and do to it: a trait, which the server implements |
//! | `observe`, `loads` | the host is looked at, for all connections |
//! | `report` | what a controller has not been told yet |
//! | `link`, `errors` | the connection to one controller |
//! | `acknowledged` | which reports a leader has acknowledged, and what leaders are told of the watchdog |
//! | `wire`, `dial` | lines over TLS over a socket |
//! | `learnt` | controllers that the file does not name |
//! | `renewal` | the host's certificate is renewed before it ends |
//! | `leader_questions` | the leader is asked whether a person may start or move a VM |
//! | `commands`, `terms` | commands, and whose are obeyed |

mod acknowledged;
mod commands;
mod dial;
mod errors;
mod host;
mod leader_questions;
#[cfg(test)]
mod leader_questions_tests;
mod learnt;
mod link;
mod loads;
mod observe;
mod renewal;
#[cfg(test)]
mod renewal_tests;
mod report;
mod terms;
#[cfg(test)]
mod test_parts;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use skein_identity::{Identity, IdentityError};
use skein_inventory::{ControllersFile, HostAddress};
use thiserror::Error;
use tracing::warn;

pub(crate) use self::acknowledged::{Acknowledged, now_ms};
pub use self::dial::DEFAULT_CONTROLLER_PORT;
pub(crate) use self::host::{ControlledHost, GuestProcess};
pub(crate) use self::leader_questions::{ByHand, LeaderQuestions, QuestionTimes, Turn};

use self::dial::TcpDial;
use self::learnt::LearntControllers;
use self::link::{Link, LinkContext, LinkTimes};
use self::observe::Observer;
use self::renewal::Renewal;
use self::terms::Terms;
use crate::random::random;
use crate::samples::Recorder;
use crate::watched_file::WatchedFile;

/// Says how often it is looked whether the file has changed.
const FILE_PERIOD: Duration = Duration::from_millis(500);

/// The reason why controllers cannot be dialled at all.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ControllersError {
    #[error("the host's identity cannot be shown to controllers")]
    Identity(#[from] IdentityError),
    #[error("a thread for controllers cannot be started")]
    Threads(#[from] io::Error),
}

/// The files of an agent about controllers.
pub(crate) struct ControllerFiles<'a> {
    /// Names controllers; a person's.
    pub(crate) list: &'a Path,
    /// Keeps the controllers that those have named.
    pub(crate) learnt: &'a Path,
    /// Keeps the highest term.
    pub(crate) term: &'a Path,
}

/// The connections to all controllers. Dropping it ends them; what was commanded goes on.
pub(crate) struct Controllers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    file: WatchedFile<ControllersFile>,
    context: Arc<LinkContext>,
    links: Mutex<BTreeMap<HostAddress, Arc<Link>>>,
    stopping: AtomicBool,
}

impl Controllers {
    /// Dials the controllers of the file, whichever these are at any time, and those that they name. Which reports were
    /// acknowledged is kept in `acknowledged`. The leader among them is asked the `questions`. What they watch is in
    /// `samples`.
    ///
    /// # Errors
    ///
    /// TLS does not take the identity, or a thread cannot be started.
    pub(crate) fn start(
        files: ControllerFiles<'_>,
        identity: &Identity,
        host: Arc<dyn ControlledHost>,
        acknowledged: Arc<Acknowledged>,
        questions: Arc<LeaderQuestions>,
        samples: Arc<Recorder>,
    ) -> Result<Controllers, ControllersError> {
        let context = LinkContext {
            tls: skein_identity::controller_client_config(identity)?,
            renewal: Renewal::new(identity.clone()),
            observer: Observer::new(host.clone()),
            acknowledged,
            questions,
            samples,
            host,
            terms: Arc::new(Terms::load(files.term)),
            learnt: Arc::new(LearntControllers::load(files.learnt)),
            dial: Arc::new(TcpDial),
            times: LinkTimes::default(),
            instance: u64::from_ne_bytes(random()),
        };
        Ok(Controllers::with(files.list, context)?)
    }

    fn with(file: &Path, context: LinkContext) -> io::Result<Controllers> {
        let file = WatchedFile::new(file, ControllersFile::parse);
        let shared = Arc::new(Shared {
            file,
            context: Arc::new(context),
            links: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let keeping = shared.clone();
        let keeper = thread::Builder::new().name("controllers".into()).spawn(move || keeping.keep())?;
        Ok(Controllers { shared, threads: Mutex::new(vec![keeper]) })
    }

    /// Ends all connections. What was commanded goes on.
    pub(crate) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for thread in self.threads.lock().drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Keeps a connection to each controller of the file, until the agent stops.
    fn keep(&self) {
        let mut is_observed = false;
        while !self.stopping.load(Ordering::SeqCst) {
            let wanted = self.wanted();
            if !is_observed && !wanted.is_empty() {
                let observer = self.context.observer.clone();
                let begun = thread::Builder::new().name("observer".into()).spawn(move || observer.run());
                is_observed = begun.inspect_err(|error| warn!("controllers are told nothing: {error}")).is_ok();
            }
            let mut links = self.links.lock();
            links.retain(|address, link| {
                let stays = wanted.contains(address);
                if !stays {
                    link.end();
                }
                stays
            });
            for address in wanted {
                if !links.contains_key(&address)
                    && let Err(error) = self.dial(&mut links, address.clone())
                {
                    warn!("the controller {address} is not dialled: {error}");
                }
            }
            drop(links);
            thread::park_timeout(FILE_PERIOD);
        }
        self.links.lock().values().for_each(|link| link.end());
        // Nobody waits for the observer, which may wait for a QEMU that does not answer.
        self.context.observer.stop();
    }

    /// Returns where controllers are to be dialled: those of the file, and those that controllers have named since. A
    /// file without controllers is somebody's word that there is to be none.
    fn wanted(&self) -> Vec<HostAddress> {
        let mut wanted = self.file.refreshed().latest.addresses.clone();
        if wanted.is_empty() {
            return wanted;
        }
        let links = self.links.lock();
        // The file may have another address of the same controller.
        let dialled: Vec<String> = wanted.iter().filter_map(|address| links.get(address)?.name()).collect();
        for (name, address) in self.context.learnt.all() {
            let port = |of: &HostAddress| of.port.unwrap_or(DEFAULT_CONTROLLER_PORT);
            let is_same = |of: &HostAddress| of.host == address.host && port(of) == port(&address);
            if !dialled.contains(&name) && !wanted.iter().any(is_same) {
                wanted.push(address);
            }
        }
        wanted
    }

    fn dial(&self, links: &mut BTreeMap<HostAddress, Arc<Link>>, address: HostAddress) -> io::Result<()> {
        let link = Link::new(address.clone())?;
        let (own, context) = (link.clone(), self.context.clone());
        thread::Builder::new().name("controller".into()).spawn(move || own.keep(&context))?;
        links.insert(address, link);
        Ok(())
    }
}
