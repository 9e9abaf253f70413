//! A fleet that stands, with guests that say something and migrations under way, for whoever looks at its controller.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use skein_api::cluster::MigrateRequest;
use skein_client::ControllerError;

use crate::controller::ControllerProcess;
use crate::error::FleetError;
use crate::processes::Processes;
use crate::settings::FleetSettings;
use crate::words::{host_name, vm_name};

/// How long a cluster may take until all of its hosts are shown, and its migrations are under way.
const STANDS_WITHIN: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a guest changes, so that events come.
const MARK_PERIOD: Duration = Duration::from_millis(20);

/// A controller to look at.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its address, as `https://127.0.0.1:7443`.
    pub url: String,
    /// The file of the admin's token.
    pub token_file: PathBuf,
    /// Its process.
    pub pid: u32,
}

/// Makes a fleet, has `migrations` of its guests moved, and calls `look` while 50 guests a second say something.
///
/// # Errors
///
/// The fleet cannot be run, or does not stand in time.
pub fn show<R: Send>(
    settings: &FleetSettings,
    migrations: u32,
    tell: &dyn Fn(String),
    look: impl FnOnce(&Shown) -> R + Send,
) -> Result<R, FleetError> {
    let dir = tempfile::tempdir().map_err(FleetError::io("cannot make a directory"))?;
    let mut controller = ControllerProcess::init(&settings.controller, dir.path())?;
    controller.start()?;
    controller.wait_ready()?;
    let processes = Processes::begin(settings, &controller.ca(), controller.address)?;
    let client = controller.client()?;
    let end = Instant::now() + STANDS_WITHIN;
    let guests = settings.hosts * settings.guests_per_host;
    let wait = |what: &str, is: &dyn Fn() -> Result<bool, ControllerError>| -> Result<(), FleetError> {
        while !is()? {
            if Instant::now() > end {
                return Err(FleetError::Late(format!("not in time: {what}")));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    };
    wait("all hosts are shown", &|| {
        let status = client.cluster()?;
        Ok(status.hosts.online == settings.hosts && status.vms.running == guests)
    })?;
    // One guest of each of the first hosts goes to a host of the other half.
    for number in 1..=migrations.min(settings.hosts / 2) {
        let vm = vm_name((number - 1) * settings.guests_per_host + 1);
        let to = Some(host_name(settings.hosts / 2 + number));
        client.migrate(&vm, &MigrateRequest { to, ..MigrateRequest::default() })?;
    }
    let begun = client.cluster()?.operations_running;
    tell(format!("{} hosts with {guests} guests are shown, and {begun} migrations are under way", settings.hosts));
    let pid = controller.pid().unwrap_or_default();
    let shown = Shown { url: format!("https://{}", controller.address), token_file: controller.token_file(), pid };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let marking = scope.spawn(|| {
            let (mut due, mut number) = (Instant::now(), 0);
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                processes.mark(number)?;
                due += MARK_PERIOD;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok::<(), FleetError>(())
        });
        let seen = look(&shown);
        is_over.store(true, Ordering::Relaxed);
        marking.join().unwrap_or_else(|_| Err(FleetError::Late("it panicked".into())))?;
        // What was seen is worth more than this.
        let left = client.cluster().map_or_else(|error| error.to_string(), |of| of.operations_running.to_string());
        tell(format!("migrations that are under way at the end: {left}"));
        Ok(seen)
    })
}
