//! Opens the controller's page in a real browser, by `browser/figures.mjs` of the page: of a large cluster whose agents
//! are simulated, and of a migration that is under way.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde::de::DeserializeOwned;
use skein_api::{MigrateOptions, Migration};
use skein_lab_cluster::{Controlled, Settings};
use skein_lab_fleet::FleetSettings;
use skein_lab_guest::Params;

use super::fleet;
use super::options::{ClusterOptions, in_thread};
use super::page_figure::{Live, Many, Opened};
use crate::error::BenchError;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/controller/page/browser/figures.mjs");
/// The migrations that are under way in the large cluster, and what each carries in a second: few are over before all
/// is seen.
const MIGRATIONS: u32 = 200;
const COPY_BYTES_PER_S: u64 = 1_000_000;
/// How long pages are looked at, in minutes.
const LARGE_MINUTES: [f64; 2] = [30.0, 1.0];
const LIVE_MINUTES: f64 = 0.5;
/// The host with the controller and the browser.
const SEAT: &str = "a";
const VM: &str = "v";
/// What the guest's migration may send, so that it is under way for as long as is needed.
const RATE_BITS_PER_S: u64 = 16_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the page of a large cluster.
pub fn large(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Opened, BenchError> {
    let settings = FleetSettings { copy_bytes_per_s: COPY_BYTES_PER_S, ..fleet::settings(options)? };
    let minutes = LARGE_MINUTES[usize::from(options.quick)].to_string();
    let tell = std::cell::RefCell::new(tell);
    skein_lab_fleet::show(&settings, MIGRATIONS, &|note| tell.borrow_mut()(note), |shown| {
        measured(Command::new("node"), "open", &shown.url, &shown.token_file, &["--minutes", &minutes])
    })?
}

/// Runs the page of a migration that is under way.
pub fn live(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<(Live, Many), BenchError> {
    let program = options.controller_program()?;
    in_thread(tell, |tell| {
        let settings = Settings { nics: 2, ..options.settings() };
        let mut world = Controlled::up(settings, &program, SEAT);
        let definition =
            world.cluster.working(VM, &Params { fill_mb: 500, compressible: 0, beat_ms: 100, ..Params::default() });
        world.cluster.start_vm("b", &definition);
        world.cluster.wait_working(VM);
        let limited = MigrateOptions { rate_bits_per_s: Some(RATE_BITS_PER_S), ..MigrateOptions::default() };
        let id = world.cluster.begin(VM, "b", SEAT, limited).id;
        let is_copying = |migration: &Migration| migration.copy.as_ref().is_some_and(|copy| copy.transferred_bytes > 0);
        world.cluster.wait(PATIENCE, "it copies", || is_copying(&world.cluster.migration("b", id)));
        let url = format!("https://{}", world.address_of(SEAT));
        let token = world.files_of(SEAT).join("identity/admin.token");
        let node = || {
            let node = world.cluster.lab().command(SEAT, PathBuf::from("node"));
            node.expect("the host is there")
        };
        let seen: Live = measured(node(), "live", &url, &token, &["--minutes", &LIVE_MINUTES.to_string()])?;
        tell(format!("{seen:?}"));
        let pid = world.controller_pid(SEAT).to_string();
        let many: Many = measured(node(), "many", &url, &token, &["--pid", &pid])?;
        tell(format!("{many:?}"));
        assert!(world.cluster.migration("b", id).outcome.is_none(), "the migration was over before all was seen");
        Ok((seen, many))
    })
}

/// Runs the script, which prints one line.
fn measured<T: DeserializeOwned>(
    mut node: Command,
    what: &str,
    url: &str,
    token: &Path,
    more: &[&str],
) -> Result<T, BenchError> {
    node.args([SCRIPT, what, "--url", url, "--token-file"]).arg(token).args(more);
    let said = node.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(BenchError::Watch)?;
    let line = String::from_utf8_lossy(&said.stdout).into_owned();
    serde_json::from_str(line.trim()).map_err(|error| {
        BenchError::Cluster(format!("the page's script said '{}' ({error}): has scripts/page.sh run?", line.trim()))
    })
}
