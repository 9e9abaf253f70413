//! One migration of one guest, driven and timed over QMP.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime},
};

use serde_json::json;
use skein_api::PageFigures;
use skein_hypervisor::{MigrationInfo, MigrationStatus, Qmp, QmpError, QmpEvent, Tls, Tuning};
use skein_lab_guest::{Gaps, Guest};

use crate::{
    carry::qemu_tls,
    results::{Phases, Step},
    rewriting::Count,
};

/// How often progress is asked for.
pub(crate) const ASK_EVERY: Duration = Duration::from_millis(100);

/// The time for the guest to run on the target once the source reports that it is done.
pub(crate) const RESUME_DEADLINE: Duration = Duration::from_secs(20);

/// The time for a migration to be over once it was cancelled.
pub(crate) const CANCEL_DEADLINE: Duration = Duration::from_secs(20);

/// The time for QEMU to compute the downtime.
const RECKON_DEADLINE: Duration = Duration::from_millis(500);

/// The heartbeat is looked at from this long before the migration until this long after.
pub(crate) const SETTLE: Duration = Duration::from_millis(600);

/// Why a migration did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// A QEMU refused, or did not answer.
    #[error("QEMU on the {end}")]
    Qmp {
        /// The QEMU's end: `source` or `target`.
        end: &'static str,
        /// The error of the QMP connection.
        source: QmpError,
    },
    /// The migration failed.
    #[error("the migration {status}: {reason}")]
    Failed {
        /// QEMU's word for the status.
        status: String,
        /// QEMU's reason.
        reason: String,
    },
    /// The migration took too long.
    #[error("not done after {} s", .0.as_secs())]
    Late(Duration),
    /// The guest never ran on the target.
    #[error("the guest does not run on the target")]
    NotResumed,
    /// The agents went over TCP where the mover is to go over RDMA.
    #[error("the guest moved, but without RDMA; the agents' logs say why")]
    WithoutRdma,
    /// An agent refused, or did not answer.
    #[error("the agent on the source")]
    Agent(#[source] skein_client::CallError),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// A migration that completed.
#[derive(Clone, Debug)]
pub struct Moved {
    /// The source QEMU's report.
    pub info: MigrationInfo,
    /// The moments, counted from the start given to [`migrate`].
    pub phases: Phases,
    /// What the guest missed.
    pub gaps: Option<Gaps>,
    /// When QEMU was told to migrate, counted like the phases: 0 if that is the start.
    pub migrate_s: f64,
    /// The steps of the handover, if agents did it.
    pub steps: Vec<Step>,
    /// What became of the bytes, as agents report it.
    pub pages: Option<PageFigures>,
    /// What the guest had rewritten when it ran on the target.
    pub rewritten: Option<Count>,
}

impl Moved {
    /// Makes all moments count from a moment that is `by_s` later.
    pub fn shift(&mut self, by_s: f64) {
        self.phases.shift(by_s);
        self.migrate_s -= by_s;
        self.steps.iter_mut().for_each(|step| step.at_s -= by_s);
    }
}

/// When a migration begins, and what ends it early.
#[derive(Clone, Copy, Debug)]
pub struct Timing<'a> {
    /// The moment that times count from.
    pub start: Instant,
    /// The time after which the migration is called off.
    pub deadline: Duration,
    /// A flag that ends the migration early when it is set.
    pub interrupt: &'a AtomicBool,
}

/// How far a migration is, for threads that watch it.
#[derive(Debug, Default)]
pub struct ReachedState {
    /// The bytes that QEMU has sent.
    pub sent_bytes: AtomicU64,
    /// The bytes that QEMU believes are left.
    pub left_bytes: AtomicU64,
}

/// Gives both QEMUs the same settings, and makes the target listen. Returns the settings.
///
/// # Errors
///
/// [`MigrationError::Qmp`] if a QEMU refuses.
pub fn prepare(
    source: &mut Guest,
    target: &mut Guest,
    tuning: &Tuning,
    tls: Option<&Path>,
    listen: &str,
) -> Result<Tuning, MigrationError> {
    let mut tuning = tuning.clone();
    // A QEMU that was a target before keeps its earlier settings.
    for name in TLS_PARAMETERS {
        tuning.parameters.entry(name).or_insert("".into());
    }
    if let Some(files) = tls {
        credentials(&mut source.qemu.qmp, files, "client").map_err(at("source"))?;
        credentials(&mut target.qemu.qmp, files, "server").map_err(at("target"))?;
        TLS_PARAMETERS.iter().for_each(|name| drop(tuning.parameters.remove(*name)));
        tuning.tls = Some(Tls { creds: CREDENTIALS.into(), hostname: Some(qemu_tls::HOST_NAME.into()) });
    }
    target.qemu.qmp.tune(&tuning).map_err(at("target"))?;
    target.qemu.qmp.migrate_incoming(listen).map_err(at("target"))?;
    source.qemu.qmp.tune(&tuning).map_err(at("source"))?;
    Ok(tuning)
}

const CREDENTIALS: &str = "bench-tls";
const TLS_PARAMETERS: [&str; 2] = ["tls-creds", "tls-hostname"];

fn credentials(qmp: &mut Qmp, files: &Path, endpoint: &str) -> Result<(), QmpError> {
    let arguments = json!({
        "qom-type": "tls-creds-x509", "id": CREDENTIALS, "dir": files, "endpoint": endpoint, "verify-peer": true
    });
    match qmp.execute("object-add", arguments.clone()) {
        // A QEMU that was a target before has the credentials of a server.
        Err(QmpError::Refused { description, .. }) if description.contains("duplicate") => {
            qmp.execute("object-del", json!({ "id": CREDENTIALS }))?;
            qmp.execute("object-add", arguments).map(drop)
        }
        other => other.map(drop),
    }
}

/// Starts the migration and waits until the guest runs on the target, or for good on the source.
///
/// # Errors
///
/// [`MigrationError`] if the guest does not run on the target. Where it is then has to be asked; see
/// [`back_at_source`].
pub fn migrate(
    source: &mut Guest,
    target: &mut Guest,
    connect: &str,
    timing: Timing<'_>,
    reached: &ReachedState,
) -> Result<Moved, MigrationError> {
    let Timing { start, deadline, interrupt } = timing;
    let clock = Clock::now(start);
    // Events from before are not part of this migration.
    while source.qemu.qmp.next_event(Duration::ZERO).map_err(at("source"))?.is_some() {}
    let since = Instant::now().checked_sub(SETTLE).unwrap_or(start);
    source.qemu.qmp.migrate(connect).map_err(at("source"))?;

    let mut phases = Phases::default();
    let mut asked = Instant::now();
    let qmp = &mut source.qemu.qmp;
    let over = loop {
        if let Some(event) = qmp.next_event(Duration::from_millis(20)).map_err(at("source"))?
            && note(&mut phases, &event, &clock)
        {
            break true;
        }
        if asked.elapsed() >= ASK_EVERY {
            asked = Instant::now();
            let info = qmp.migration().map_err(at("source"))?;
            if let Some(ram) = info.ram {
                reached.sent_bytes.store(ram.transferred, Ordering::Relaxed);
                reached.left_bytes.store(ram.remaining, Ordering::Relaxed);
            }
            if info.status.is_over() {
                break true;
            }
        }
        if interrupt.load(Ordering::Relaxed) || start.elapsed() > deadline {
            break false;
        }
    };
    if !over {
        // QEMU refuses if the last byte has gone meanwhile: the migration is over by itself then.
        let _ = qmp.query("migrate_cancel");
        let _ = qmp.wait_migrated(CANCEL_DEADLINE, |_| {});
    }
    let info = last_account(qmp).map_err(at("source"))?;
    // Reads the events that came with the answer.
    while let Some(event) = qmp.next_event(Duration::ZERO).map_err(at("source"))? {
        note(&mut phases, &event, &clock);
    }
    match info.status {
        MigrationStatus::Completed => {}
        _ if interrupt.load(Ordering::Relaxed) => return Err(MigrationError::Interrupted),
        _ if !over => return Err(MigrationError::Late(deadline)),
        status => {
            let mut reason = info.error.clone().unwrap_or_else(|| "no reason given".into());
            let said = target.qemu.stderr();
            if !said.starts_with("it wrote nothing") {
                reason = format!("{reason}; the target: {}", said.replace('\n', " | "));
            }
            return Err(MigrationError::Failed { status: format!("{status:?}").to_lowercase(), reason });
        }
    }
    phases.completed_s.get_or_insert_with(|| start.elapsed().as_secs_f64());
    phases.resume_s = Some(resumed(&mut target.qemu.qmp, &clock)?);
    let rewritten = Count::ask(target.agent());
    // Beats are collected until well after the switchover.
    std::thread::sleep(SETTLE);
    let gaps = Gaps::between(&source.beats().since(since), &target.beats().since(since));
    Ok(Moved { info, phases, gaps, migrate_s: 0.0, steps: Vec::new(), pages: None, rewritten })
}

/// Returns QEMU's report when the migration is over. Some versions say `completed` a moment before they have computed
/// the downtime.
fn last_account(qmp: &mut Qmp) -> Result<MigrationInfo, QmpError> {
    let end = Instant::now() + RECKON_DEADLINE;
    loop {
        let info = qmp.migration()?;
        let reckoned = info.status != MigrationStatus::Completed || info.downtime.is_some_and(|ms| ms > 0);
        if reckoned || Instant::now() > end {
            return Ok(info);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Brings a guest back after a migration that failed: ends the target first, and then lets the guest go on at the
/// source. Returns `false` if it cannot.
pub fn back_at_source(source: &mut Guest, target: Guest) -> bool {
    drop(target);
    let qmp = &mut source.qemu.qmp;
    qmp.is_running().is_ok_and(|runs| runs) || (qmp.query("cont").is_ok() && qmp.is_running().is_ok_and(|runs| runs))
}

fn resumed(qmp: &mut Qmp, clock: &Clock) -> Result<f64, MigrationError> {
    let end = Instant::now() + RESUME_DEADLINE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match qmp.next_event(left).map_err(at("target"))? {
            Some(event) if event.name == "RESUME" => return Ok(clock.seconds(event.time)),
            Some(_) => {}
            None if qmp.is_running().map_err(at("target"))? => return Ok(clock.start.elapsed().as_secs_f64()),
            None => return Err(MigrationError::NotResumed),
        }
    }
}

/// Records the moment of an event. Returns whether the migration is over.
pub(crate) fn note(phases: &mut Phases, event: &QmpEvent, clock: &Clock) -> bool {
    let at = Some(clock.seconds(event.time));
    let status = event.data["status"].as_str();
    match (event.name.as_str(), status) {
        ("STOP", _) => phases.stop_s = phases.stop_s.or(at),
        ("MIGRATION", Some("active")) => phases.active_s = phases.active_s.or(at),
        ("MIGRATION", Some("completed")) => phases.completed_s = phases.completed_s.or(at),
        _ => {}
    }
    event.name == "MIGRATION" && matches!(status, Some("completed" | "failed" | "cancelled"))
}

/// Converts times of day, which QEMU's events have. Both QEMUs and this program share one clock.
pub(crate) struct Clock {
    start: Instant,
    at_start: SystemTime,
}

impl Clock {
    pub(crate) fn now(start: Instant) -> Self {
        Self { start, at_start: SystemTime::now() - start.elapsed() }
    }

    /// Returns the seconds from the start to a time since the epoch.
    pub(crate) fn seconds(&self, since_epoch: Duration) -> f64 {
        match (SystemTime::UNIX_EPOCH + since_epoch).duration_since(self.at_start) {
            Ok(after) => after.as_secs_f64(),
            Err(before) => -before.duration().as_secs_f64(),
        }
    }

    /// Returns the seconds from the start to a time of RFC 3339, or `None` if the text is not one.
    pub(crate) fn seconds_of(&self, time: &str) -> Option<f64> {
        let time: jiff::Timestamp = time.parse().ok()?;
        Some(self.seconds(time.duration_since(jiff::Timestamp::UNIX_EPOCH).unsigned_abs()))
    }
}

fn at(end: &'static str) -> impl FnOnce(QmpError) -> MigrationError {
    move |source| MigrationError::Qmp { end, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_phases() {
        let start = Instant::now();
        let clock = Clock::now(start);
        let zero = clock.at_start.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let mut phases = Phases::default();
        let mut event = |name: &str, status: &str, ms: u64| {
            let data = if status.is_empty() { serde_json::Value::Null } else { json!({ "status": status }) };
            note(&mut phases, &QmpEvent { name: name.into(), data, time: zero + Duration::from_millis(ms) }, &clock)
        };
        assert!(!event("MIGRATION", "setup", 1));
        assert!(!event("MIGRATION", "active", 20));
        assert!(!event("STOP", "", 4000));
        assert!(!event("MIGRATION", "device", 4001));
        assert!(event("MIGRATION", "completed", 4100));
        let near = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e-6;
        assert!(near(phases.active_s, 0.02) && near(phases.stop_s, 4.0) && near(phases.completed_s, 4.1));
        assert_eq!(phases.resume_s, None);
        assert!(clock.seconds(zero - Duration::from_millis(5)) < 0.0);
    }
}
