//! Watches what happens to a guest while the guest is copied.
//!
//! | seen | by | what follows |
//! |---|---|---|
//! | paused, disk error, no space, panicked, stopped by its watchdog, shut down and kept (`-no-shutdown`) | run state; events say why | called off; the guest stays as it is |
//! | a device, medium, block job, vCPU, memory device... came or went | its composition | called off; the guest runs on |
//! | its QEMU ended: shut down, killed | events, the process | the migration ends with the guest |
//! | reset | event | goes on |
//! | suspended | run state | goes on from QEMU 9.0 on, asleep; called off before |
//!
//! The guest's composition is compared with the composition that the target was told. The target has compared its own
//! QEMU with that one. Reading the whole composition takes milliseconds. The drives change without an event, to the
//! last moment. So the drives are read once more when QEMU has let go of the guest, while the target loads the guest's
//! state. While a migration runs, QEMU plugs and unplugs no device ("device_add not allowed while migrating",
//! softmmu/qdev-monitor.c). QEMU has an event for each device that the guest lets go of.

use std::time::Duration;

use skein_hypervisor::{Guest, GuestEvent, Quirks, RunState, StopCause};
use skein_inventory::check::standstill;
use skein_inventory::composition::{Composition, Part, differences};
use skein_inventory::shortened;
use tracing::info;

/// Sets how often the composition is read: a change is told within a second.
const COMPOSITION_CHECK_PERIOD: Duration = Duration::from_millis(400);
/// Bounds the differences that are told, so that the reason stays short.
pub(super) const DIFFERENCES_TOLD_MAX: usize = 4;

/// Watches a guest from the beginning of its copy on.
pub(super) struct GuestWatch {
    /// The composition that the target was told.
    promised: Composition,
    /// When the whole composition was read last.
    looked_at: Duration,
    /// Whether the last attempt to read the whole composition failed.
    is_unknown: bool,
    /// Why the guest stands still or its QEMU ends, by the last event that said so.
    reason: Option<StopCause>,
}

impl GuestWatch {
    /// Begins to watch. `told` is the composition that the target was told.
    ///
    /// # Errors
    /// The target was told nothing, or the guest's composition is another one now. The error is the reason, in words.
    pub(super) fn begin(now: Duration, guest: &dyn Guest, told: Option<Composition>) -> Result<GuestWatch, String> {
        let told =
            told.ok_or("the target has not asked what the guest is composed of: is its agent older than this one?")?;
        let told = Composition { files: Vec::new(), boot_id: None, ..told };
        let mut watch = GuestWatch { promised: told, looked_at: now, is_unknown: false, reason: None };
        match watch.compare(guest) {
            Some(why) => Err(why),
            None => Ok(watch),
        }
    }

    /// Takes an event in. Returns a line for the log if the event is worth one. An event that stops the guest or ends
    /// its QEMU is remembered.
    pub(super) fn hear(&mut self, event: &GuestEvent) -> Option<&'static str> {
        match event {
            GuestEvent::Reset => return Some("the guest was reset; the copy goes on"),
            GuestEvent::Asleep => return Some("the guest went to sleep"),
            GuestEvent::Awake => return Some("the guest woke up"),
            GuestEvent::Stopping(cause) => self.reason = Some(cause.clone()),
            GuestEvent::Migration(_)
            | GuestEvent::Stopped
            | GuestEvent::Resumed
            | GuestEvent::Recomposed
            | GuestEvent::Closed => {}
        }
        None
    }

    /// Returns why a guest in this run state must not go on being copied; `None`: the guest may. `program` is the name
    /// of the guest's hypervisor.
    pub(super) fn stopped(&self, state: &RunState, program: &str, quirks: Quirks) -> Option<String> {
        match state {
            RunState::Running | RunState::FinishMigrate | RunState::PostMigrate => None,
            RunState::Suspended if quirks.moves_asleep => None,
            RunState::Suspended => Some(format!("it went to sleep, and {program} could wake it at both ends")),
            _ => {
                let word = state.word();
                let why = standstill(&word).map_or("somebody or something stopped it", |(why, _)| why);
                let known = self.reason.as_ref().map(ToString::to_string);
                Some(known.unwrap_or_else(|| format!("{why} (QEMU's run state is {word})")))
            }
        }
    }

    /// Returns why the guest's QEMU ended; `None`: no event said so.
    pub(super) fn ended(&self) -> Option<String> {
        self.reason.as_ref().map(ToString::to_string)
    }

    /// Returns what changed of the guest. Checks no more often than every [`COMPOSITION_CHECK_PERIOD`].
    pub(super) fn check_if_due(&mut self, now: Duration, guest: &dyn Guest) -> Option<String> {
        let is_due = now.saturating_sub(self.looked_at) >= COMPOSITION_CHECK_PERIOD;
        is_due.then(|| self.check_now(now, guest)).flatten()
    }

    /// Checks at once. Returns what changed of the guest.
    pub(super) fn check_now(&mut self, now: Duration, guest: &dyn Guest) -> Option<String> {
        self.looked_at = now;
        self.compare(guest)
    }

    fn compare(&mut self, guest: &dyn Guest) -> Option<String> {
        let now = guest.composition();
        self.is_unknown = now.is_err();
        match now {
            Ok(now) => changes(&self.promised, &now),
            // The composition is read again soon. At standstill, no answer is an error.
            Err(error) => {
                info!("what the guest is composed of is not known now: {error}");
                None
            }
        }
    }

    /// Checks that the guest, which stands still, is still as the target was told. Compares the drives alone, or the
    /// whole composition if events of other changes were missed.
    ///
    /// # Errors
    /// The guest changed, or its composition is not known. The error says what, in words.
    pub(super) fn compare_at_standstill(&self, guest: &dyn Guest, missed_events: bool) -> Result<(), String> {
        let now = match missed_events || self.is_unknown {
            true => guest.composition(),
            false => guest.drives().map(|drives| Composition { drives, ..self.promised.clone() }),
        };
        let now =
            now.map_err(|error| format!("what it is composed of is not known: {}", crate::error_chain(&error)))?;
        changes(&self.promised, &now).map_or(Ok(()), Err)
    }
}

/// Returns, in words, how a composition differs from what the target was told; `None`: it does not, or only in what the
/// target does not need.
fn changes(told: &Composition, now: &Composition) -> Option<String> {
    let differences = differences(told, now);
    let counted = differences.iter().filter(|difference| difference.part != Part::Tuning);
    let all: Vec<String> = counted.map(ToString::to_string).collect();
    (!all.is_empty()).then(|| shortened(&all, DIFFERENCES_TOLD_MAX))
}

#[cfg(test)]
mod tests {
    use skein_hypervisor::ShutdownCause;

    use super::*;

    const NEW: Quirks = Quirks { freezes_throttled_without_network: true, moves_asleep: true };
    const OLD: Quirks = Quirks { freezes_throttled_without_network: false, moves_asleep: false };

    fn watch() -> GuestWatch {
        let told = Composition { machine: "pc-q35-10.0".into(), ..Composition::default() };
        GuestWatch { promised: told, looked_at: Duration::ZERO, is_unknown: false, reason: None }
    }

    #[test]
    fn what_stops_a_guest_is_told_with_its_reason() {
        let mut watch = watch();
        let stopped = |watch: &GuestWatch, state: RunState| watch.stopped(&state, "QEMU 10.0.0", NEW);
        assert_eq!(stopped(&watch, RunState::Running), None);
        assert_eq!(stopped(&watch, RunState::FinishMigrate), None);
        assert!(stopped(&watch, RunState::Paused).unwrap().contains("somebody paused it"));
        assert!(stopped(&watch, RunState::Other("debug".into())).unwrap().contains("run state is debug"));
        assert!(stopped(&watch, RunState::IoError).unwrap().contains("one of its disks fails"));
        watch.hear(&GuestEvent::Stopping(StopCause::DriveFull { drive: "d0".into() }));
        assert_eq!(stopped(&watch, RunState::IoError).unwrap(), "its drive d0 has no space left");
        watch.hear(&GuestEvent::Stopped);
        assert_eq!(
            stopped(&watch, RunState::IoError).unwrap(),
            "its drive d0 has no space left",
            "what says no reason takes none away"
        );
        watch.hear(&GuestEvent::Stopping(StopCause::Panicked));
        assert_eq!(stopped(&watch, RunState::GuestPanicked).unwrap(), "its kernel panicked");
        watch.hear(&GuestEvent::Stopping(StopCause::ShutDown(ShutdownCause::Guest)));
        assert_eq!(watch.ended().unwrap(), "the guest shut down");
    }

    #[test]
    fn what_goes_on_is_a_note() {
        let mut watch = watch();
        assert!(watch.hear(&GuestEvent::Reset).unwrap().contains("goes on"));
        assert!(watch.hear(&GuestEvent::Asleep).is_some());
        assert_eq!(watch.stopped(&RunState::Suspended, "QEMU 9.0.0", NEW), None);
        assert!(watch.stopped(&RunState::Suspended, "QEMU 8.2.0", OLD).unwrap().contains("QEMU 8.2.0 could wake"));
        assert_eq!(watch.ended(), None);
    }

    #[test]
    fn what_changed_is_told_and_not_without_end() {
        let told = watch().promised;
        let mut now = told.clone();
        assert_eq!(changes(&told, &now), None);
        now.activities = (0..9).map(|number| format!("block job {number}")).collect();
        let words = changes(&told, &now).unwrap();
        assert!(words.starts_with("the block job 0 was begun, ") && words.ends_with("and 5 more"), "{words}");
    }
}
