//! The attempts of one request, as a pure machine: time is an argument, what to do comes out as a value.
//!
//! ```text
//!             ┌──────────── due ────────────┐
//!             ▼                             │
//!  new ─▶ Beginning ── begun ─▶ Running ─▶ Waiting ── cancel ─▶ Over
//!             │                    │         ▲
//!             ├─── refused, may be tried again
//!             └─── blocked, refused for the last time, cancelled ─▶ Over ◀── moved, ended, cancelled, no tries left
//! ```

use std::mem;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use skein_api::{
    CheckResult, FailureReason, HoldOptions, MigrateOptions, Outcome, Problem, ProblemKind, Refusal, Severity,
};
use skein_handover::MigrationId;

/// Holds the pause before a migration is begun again. Tests do something in the pause, and a busy machine takes longer.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(if cfg!(test) { 8 } else { 2 });

/// A requested migration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AskedMigration {
    pub(crate) vm: String,
    /// The target host.
    pub(crate) to: String,
    pub(crate) options: MigrateOptions,
    /// How the guest is held; `None`: it is not.
    #[serde(default)]
    pub(crate) hold: Option<HoldOptions>,
    /// Whether the controller that leads has asked; else a person has.
    #[serde(default)]
    pub(crate) by_controller: bool,
}

/// What a person changes of a migration that is under way: its next attempt begins so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangedOptions {
    /// How the guest is held; `None`: as it was asked for.
    #[serde(default)]
    pub(crate) hold: Option<HoldOptions>,
    /// The per cent by which the guest may be throttled; `None`: as it was asked for.
    #[serde(default)]
    pub(crate) allow_throttle: Option<u8>,
    /// The bits that the migration may send a second, which somebody has set meanwhile; `None`: as it was asked for.
    #[serde(default)]
    pub(crate) rate_bits_per_s: Option<u64>,
}

impl ChangedOptions {
    /// Adds changes; of two for the same option the later holds.
    fn add(&mut self, later: &ChangedOptions) {
        self.hold = later.hold.clone().or(self.hold.take());
        self.allow_throttle = later.allow_throttle.or(self.allow_throttle);
        self.rate_bits_per_s = later.rate_bits_per_s.or(self.rate_bits_per_s);
    }

    /// Returns the changes in words.
    pub(super) fn words(&self) -> String {
        let hold = self.hold.iter().map(|_| "its guest is held before it switches".to_owned());
        let throttle = self.allow_throttle.iter().map(|percent| format!("its guest may be throttled by {percent} %"));
        hold.chain(throttle).collect::<Vec<_>>().join("; ")
    }
}

/// Whether an attempt has shown that the guest's pages have to go through the target's QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlacementLoss {
    /// The attempt showed nothing new.
    None,
    /// The attempt placed pages directly, and the next attempt will not.
    Direct,
}

/// The end of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MigrationEnd {
    pub(crate) outcome: Outcome,
    /// The reason why the migration was called off.
    pub(crate) why: Option<FailureReason>,
}

/// An attempt that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BegunAttempt {
    /// The number, from 1 on; attempts that were refused count.
    pub(crate) number: u32,
    pub(crate) migration: MigrationId,
}

/// The reason why an attempt was not begun.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NotBegun {
    /// The check found something that blocks the migration.
    Blocked(Box<CheckResult>),
    /// The check could not be made, or the migration could not be begun.
    Refused(Refusal),
    /// The guest that was to be moved is not there any more; a VM of its name may have another guest.
    GuestGone(Refusal),
}

impl NotBegun {
    /// Returns the reason in words.
    pub(super) fn words(&self) -> String {
        match self {
            NotBegun::Blocked(check) => blocking(check).map(|problem| &problem.what[..]).collect::<Vec<_>>().join("; "),
            NotBegun::Refused(refusal) | NotBegun::GuestGone(refusal) => refusal.message.clone(),
        }
    }

    /// Returns whether the reason may be gone a while later: a host that does not answer may do so soon, what a
    /// migration has left is cleared up, and room is given back.
    fn may_pass(&self) -> bool {
        match self {
            NotBegun::Blocked(check) => blocking(check).all(|problem| passes_by_itself(problem.kind)),
            NotBegun::Refused(_) => true,
            NotBegun::GuestGone(_) => false,
        }
    }
}

fn blocking(check: &CheckResult) -> impl Iterator<Item = &Problem> {
    check.problems.iter().filter(|problem| problem.severity == Severity::Blocks)
}

fn passes_by_itself(kind: ProblemKind) -> bool {
    use ProblemKind as Kind;
    matches!(
        kind,
        Kind::MigrationUnderWay
            | Kind::Leftover
            | Kind::NoPath
            | Kind::Ram
            | Kind::Hugepages
            | Kind::Tasks
            | Kind::SourceRam
            | Kind::RoomUnknown
    )
}

/// The way in which all attempts ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AttemptsEnd {
    /// The attempts ended as the last migration did.
    Migration,
    /// The last attempt was not begun; the check says why.
    Blocked(CheckResult),
    /// The last attempt was not begun.
    Refused(Refusal),
}

/// The state of the attempts.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttemptState {
    /// The next attempt is checked and begun.
    Beginning,
    /// The newest migration is under way.
    Running,
    /// The next attempt is begun at this time.
    Waiting { due: Instant },
    /// There will be no further attempt.
    Over(AttemptsEnd),
}

/// The step that follows after attempts were cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelStep {
    /// Call this migration off.
    CallOff(MigrationId),
    /// Do nothing: no attempt is under way, and none will be.
    Nothing,
    /// The attempts were over before.
    TooLate,
}

/// The step that follows after a person has changed the options of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartStep {
    /// Call this migration off; another attempt follows.
    CallOff(MigrationId),
    /// Do nothing: the next attempt follows in any case.
    Nothing,
    /// An attempt is just being begun, with the options from before. Nothing is changed.
    Beginning,
    /// The attempts were over before, or are called off. Nothing is changed.
    TooLate,
}

/// All attempts of one request.
#[derive(Clone, Debug)]
pub(super) struct Attempts {
    asked: AskedMigration,
    changed: ChangedOptions,
    /// The attempts that were begun, the oldest first.
    begun: Vec<BegunAttempt>,
    /// The number of attempts that were made, also those that were refused. An attempt that is being begun counts.
    made: u32,
    allowed: u32,
    is_cancelled: bool,
    /// Whether the attempt under way is called off only to begin again with other options.
    restarts: bool,
    state: AttemptState,
}

impl Attempts {
    /// Returns the attempts of a new request, whose first attempt is to be begun now.
    pub(super) fn new(asked: AskedMigration) -> Attempts {
        let allowed = asked.options.retries.saturating_add(1);
        let (state, changed) = (AttemptState::Beginning, ChangedOptions::default());
        Attempts { asked, changed, begun: Vec::new(), made: 1, allowed, is_cancelled: false, restarts: false, state }
    }

    /// Returns attempts as an earlier agent left them. `begun` has at least one attempt. If there is no `end`, the
    /// newest is taken to be under way until its end is told.
    pub(super) fn recovered(
        asked: AskedMigration,
        changed: ChangedOptions,
        begun: Vec<BegunAttempt>,
        count: AttemptCount,
        end: Option<AttemptsEnd>,
    ) -> Attempts {
        let AttemptCount { made, allowed, is_cancelled, restarts } = count;
        let state = end.map_or(AttemptState::Running, AttemptState::Over);
        Attempts { asked, changed, begun, made, allowed, is_cancelled, restarts, state }
    }

    /// Returns what was asked for at first.
    pub(super) fn asked(&self) -> &AskedMigration {
        &self.asked
    }

    /// Returns what a person has changed since.
    pub(super) fn changed(&self) -> &ChangedOptions {
        &self.changed
    }

    /// Returns what the next attempt is begun with.
    pub(super) fn asked_now(&self) -> AskedMigration {
        let mut asked = self.asked.clone();
        asked.hold = self.changed.hold.clone().or(asked.hold);
        asked.options.allow_throttle = self.changed.allow_throttle.or(asked.options.allow_throttle);
        asked.options.rate_bits_per_s = self.changed.rate_bits_per_s.or(asked.options.rate_bits_per_s);
        asked
    }

    pub(super) fn begun(&self) -> &[BegunAttempt] {
        &self.begun
    }

    /// Returns the newest migration; `None` before the first has begun.
    pub(super) fn newest(&self) -> Option<MigrationId> {
        self.begun.last().map(|attempt| attempt.migration)
    }

    pub(super) fn count(&self) -> AttemptCount {
        let Attempts { made, allowed, is_cancelled, restarts, .. } = *self;
        AttemptCount { made, allowed, is_cancelled, restarts }
    }

    pub(super) fn state(&self) -> &AttemptState {
        &self.state
    }

    /// Returns how all attempts ended; `None`: they are not over.
    pub(super) fn end(&self) -> Option<&AttemptsEnd> {
        match &self.state {
            AttemptState::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Returns when [`begin_due`](Attempts::begin_due) is to be called.
    pub(super) fn next_due(&self) -> Option<Instant> {
        match self.state {
            AttemptState::Waiting { due } => Some(due),
            _ => None,
        }
    }

    /// Returns whether the next attempt is to be begun now. The caller then says what became of it: by
    /// [`handle_begun`](Attempts::handle_begun) or [`handle_not_begun`](Attempts::handle_not_begun).
    pub(super) fn begin_due(&mut self, now: Instant) -> bool {
        let is_due = self.next_due().is_some_and(|due| due <= now);
        if is_due {
            self.made += 1;
            self.state = AttemptState::Beginning;
        }
        is_due
    }

    /// Notes that the attempt has begun, as this migration. Returns the migration if it is to be called off, because a
    /// person cancelled meanwhile.
    pub(super) fn handle_begun(&mut self, id: MigrationId) -> Option<MigrationId> {
        debug_assert_eq!(self.state, AttemptState::Beginning, "nothing else begins a migration");
        self.begun.push(BegunAttempt { number: self.made, migration: id });
        self.state = AttemptState::Running;
        self.restarts = false;
        self.is_cancelled.then_some(id)
    }

    /// Notes that the attempt was not begun. A first attempt is refused to the caller; a later attempt is tried again,
    /// if the reason may pass.
    pub(super) fn handle_not_begun(&mut self, now: Instant, why: NotBegun) {
        let is_first = self.begun.is_empty();
        self.state = if self.is_cancelled && !is_first {
            AttemptState::Over(AttemptsEnd::Migration)
        } else if why.may_pass() && !is_first && self.made < self.allowed {
            AttemptState::Waiting { due: now + RETRY_PAUSE }
        } else {
            AttemptState::Over(match why {
                NotBegun::Blocked(check) => AttemptsEnd::Blocked(*check),
                NotBegun::Refused(refusal) | NotBegun::GuestGone(refusal) => AttemptsEnd::Refused(refusal),
            })
        };
    }

    /// Notes that the newest migration has ended. Changes nothing if it was not under way.
    pub(super) fn handle_ended(&mut self, now: Instant, end: MigrationEnd, loss: PlacementLoss) {
        if self.state != AttemptState::Running {
            return;
        }
        // Without direct placement the migration is another: that is tried unasked.
        if loss == PlacementLoss::Direct {
            self.allowed = self.allowed.saturating_add(1);
        }
        // What is called off to begin again does so, whatever ended it first. That stays so until the next attempt has
        // begun: an agent that is started again meanwhile comes by here once more.
        let restarts = self.restarts && !self.is_cancelled && end.outcome == Outcome::CalledOff;
        let is_cancelled = self.is_cancelled || (end.why == Some(FailureReason::Cancelled) && !restarts);
        // A hold whose time is over would only begin anew.
        let is_over = end.why == Some(FailureReason::HoldOver) && !restarts;
        let may_pass = end.outcome == Outcome::CalledOff && !is_cancelled && !is_over;
        self.state = if may_pass && self.made < self.allowed {
            AttemptState::Waiting { due: now + RETRY_PAUSE }
        } else {
            AttemptState::Over(AttemptsEnd::Migration)
        };
    }

    /// Changes the options of the next attempt. The attempt under way is called off for that, and another follows.
    pub(super) fn restart(&mut self, changed: &ChangedOptions) -> RestartStep {
        let step = match (&self.state, self.newest()) {
            _ if self.is_cancelled => RestartStep::TooLate,
            (AttemptState::Running, Some(newest)) => {
                // It is one attempt more, however often that is asked for.
                if !mem::replace(&mut self.restarts, true) {
                    self.allowed = self.allowed.saturating_add(1);
                }
                RestartStep::CallOff(newest)
            }
            (AttemptState::Waiting { .. }, _) => RestartStep::Nothing,
            (AttemptState::Beginning | AttemptState::Running, _) => return RestartStep::Beginning,
            (AttemptState::Over(_), _) => RestartStep::TooLate,
        };
        if step != RestartStep::TooLate {
            self.changed.add(changed);
        }
        step
    }

    /// Cancels: no further attempt is begun, and the attempt under way is called off.
    pub(super) fn cancel(&mut self) -> CancelStep {
        match (&self.state, self.newest()) {
            (AttemptState::Over(_), _) => return CancelStep::TooLate,
            (AttemptState::Running, Some(newest)) => {
                self.is_cancelled = true;
                return CancelStep::CallOff(newest);
            }
            (AttemptState::Waiting { .. }, _) => self.state = AttemptState::Over(AttemptsEnd::Migration),
            (AttemptState::Beginning | AttemptState::Running, _) => {}
        }
        self.is_cancelled = true;
        CancelStep::Nothing
    }
}

/// The progress of the attempts, as it is kept over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttemptCount {
    /// The attempts that were made.
    pub(super) made: u32,
    /// The attempts that may be made.
    pub(super) allowed: u32,
    /// Whether a person wants no further attempt.
    pub(super) is_cancelled: bool,
    /// Whether the attempt under way is called off only to begin again with other options.
    #[serde(default)]
    pub(super) restarts: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: MigrationId = MigrationId(1);
    const TWO: MigrationId = MigrationId(2);

    fn asked(retries: u32) -> AskedMigration {
        let options = MigrateOptions { retries, ..MigrateOptions::default() };
        AskedMigration { vm: "web1".into(), to: "hostb".into(), options, hold: None, by_controller: false }
    }

    fn running(retries: u32) -> Attempts {
        let mut attempts = Attempts::new(asked(retries));
        assert_eq!(attempts.handle_begun(ONE), None);
        attempts
    }

    fn end(outcome: Outcome, why: Option<FailureReason>) -> MigrationEnd {
        MigrationEnd { outcome, why }
    }

    fn failed() -> MigrationEnd {
        end(Outcome::CalledOff, Some(FailureReason::TargetRefused))
    }

    fn refused() -> NotBegun {
        NotBegun::Refused(Refusal { message: "no".into(), cure: "wait".into() })
    }

    fn check() -> CheckResult {
        let (what, cure) = ("another CPU".into(), "change it".into());
        let problem = Problem { kind: ProblemKind::CpuModel, severity: Severity::Blocks, what, cure };
        CheckResult { vm: "web1".into(), to: "hostb".into(), problems: vec![problem], forecast: None }
    }

    fn made(attempts: &Attempts) -> (u32, u32) {
        (attempts.count().made, attempts.count().allowed)
    }

    #[test]
    fn what_moves_is_over_however_many_tries_are_left() {
        for outcome in [Outcome::Moved, Outcome::Ended] {
            let mut attempts = running(5);
            attempts.handle_ended(Instant::now(), end(outcome, None), PlacementLoss::None);
            assert_eq!((attempts.end(), attempts.next_due()), (Some(&AttemptsEnd::Migration), None), "{outcome:?}");
        }
    }

    #[test]
    fn what_fails_is_begun_again_after_a_pause_as_often_as_is_allowed() {
        let (mut attempts, mut now) = (running(2), Instant::now());
        for id in [TWO, MigrationId(3)] {
            attempts.handle_ended(now, failed(), PlacementLoss::None);
            assert_eq!(attempts.next_due(), Some(now + RETRY_PAUSE));
            assert!(!attempts.begin_due(now + RETRY_PAUSE - Duration::from_millis(1)), "not before its time");
            now += RETRY_PAUSE;
            assert!(attempts.begin_due(now) && !attempts.begin_due(now), "once");
            assert_eq!(attempts.handle_begun(id), None);
        }
        assert_eq!((made(&attempts), attempts.newest()), ((3, 3), Some(MigrationId(3))));
        attempts.handle_ended(now, failed(), PlacementLoss::None);
        assert_eq!((attempts.end(), attempts.next_due()), (Some(&AttemptsEnd::Migration), None));
        let begun = [(1, ONE), (2, TWO), (3, MigrationId(3))];
        assert_eq!(attempts.begun(), begun.map(|(number, migration)| BegunAttempt { number, migration }));
    }

    #[test]
    fn an_end_is_told_once() {
        let (mut attempts, now) = (running(1), Instant::now());
        attempts.handle_ended(now, failed(), PlacementLoss::None);
        attempts.handle_ended(now + Duration::from_secs(1), failed(), PlacementLoss::None);
        assert_eq!(attempts.next_due(), Some(now + RETRY_PAUSE), "the pause does not begin anew");
        assert!(attempts.begin_due(now + RETRY_PAUSE));
        attempts.handle_ended(now + RETRY_PAUSE, failed(), PlacementLoss::None);
        assert_eq!(*attempts.state(), AttemptState::Beginning, "it is the end of the one before");
    }

    #[test]
    fn what_fails_without_retries_is_over_but_direct_placement_is_left_unasked() {
        let now = Instant::now();
        let mut attempts = running(0);
        attempts.handle_ended(now, failed(), PlacementLoss::None);
        assert_eq!(attempts.end(), Some(&AttemptsEnd::Migration));
        let mut attempts = running(0);
        attempts.handle_ended(now, failed(), PlacementLoss::Direct);
        assert_eq!((made(&attempts), attempts.next_due()), ((1, 2), Some(now + RETRY_PAUSE)));
        assert!(attempts.begin_due(now + RETRY_PAUSE));
        attempts.handle_begun(TWO);
        attempts.handle_ended(now, failed(), PlacementLoss::None);
        assert_eq!(attempts.end(), Some(&AttemptsEnd::Migration), "but once");
    }

    #[test]
    fn what_somebody_calls_off_is_not_begun_again() {
        let now = Instant::now();
        let mut attempts = running(5);
        attempts.handle_ended(now, end(Outcome::CalledOff, Some(FailureReason::Cancelled)), PlacementLoss::None);
        assert_eq!(attempts.end(), Some(&AttemptsEnd::Migration), "at the target, for instance");

        let mut attempts = running(5);
        assert_eq!(attempts.cancel(), CancelStep::CallOff(ONE));
        assert_eq!(attempts.cancel(), CancelStep::CallOff(ONE), "as often as is wanted");
        // Another event was quicker.
        attempts.handle_ended(now, failed(), PlacementLoss::None);
        assert_eq!(attempts.end(), Some(&AttemptsEnd::Migration));
        assert_eq!(attempts.cancel(), CancelStep::TooLate);
    }

    fn throttled(percent: u8) -> ChangedOptions {
        ChangedOptions { allow_throttle: Some(percent), ..ChangedOptions::default() }
    }

    #[test]
    fn what_is_called_off_to_begin_again_is_begun_with_what_was_changed() {
        let now = Instant::now();
        let mut attempts = running(0);
        assert_eq!(attempts.restart(&throttled(60)), RestartStep::CallOff(ONE));
        let held = ChangedOptions { hold: Some(HoldOptions::default()), ..ChangedOptions::default() };
        assert_eq!(attempts.restart(&held), RestartStep::CallOff(ONE), "both may be asked for");
        attempts.handle_ended(now, end(Outcome::CalledOff, Some(FailureReason::Cancelled)), PlacementLoss::None);
        assert_eq!((made(&attempts), attempts.next_due()), ((1, 2), Some(now + RETRY_PAUSE)));
        // An agent that is started again in the pause looks at the same end once more.
        let (changed, begun) = (attempts.changed().clone(), attempts.begun().to_vec());
        let mut after = Attempts::recovered(asked(0), changed, begun, attempts.count(), None);
        after.handle_ended(now, end(Outcome::CalledOff, Some(FailureReason::Cancelled)), PlacementLoss::None);
        assert_eq!((made(&after), after.next_due()), ((1, 2), Some(now + RETRY_PAUSE)));
        // Whoever asks for the same once more asks for what was asked for at first.
        assert_eq!(*attempts.asked(), asked(0));
        let next = attempts.asked_now();
        assert_eq!((next.options.allow_throttle, next.hold), (Some(60), Some(HoldOptions::default())));
        // While it waits, only the next attempt changes.
        assert_eq!(attempts.restart(&throttled(70)), RestartStep::Nothing);
        assert_eq!(attempts.asked_now().options.allow_throttle, Some(70));
        assert!(attempts.begin_due(now + RETRY_PAUSE));
        assert_eq!(attempts.restart(&throttled(80)), RestartStep::Beginning);
        attempts.handle_begun(TWO);
        attempts.handle_ended(now, end(Outcome::CalledOff, Some(FailureReason::Cancelled)), PlacementLoss::None);
        assert_eq!(attempts.end(), Some(&AttemptsEnd::Migration), "it was for one attempt");
        assert_eq!(attempts.restart(&throttled(80)), RestartStep::TooLate);
        assert_eq!(attempts.asked_now().options.allow_throttle, Some(70));
    }

    #[test]
    fn what_moves_or_is_called_off_for_good_does_not_begin_again() {
        let now = Instant::now();
        let mut moved = running(0);
        moved.restart(&throttled(60));
        moved.handle_ended(now, end(Outcome::Moved, None), PlacementLoss::None);
        assert_eq!(moved.end(), Some(&AttemptsEnd::Migration));
        let mut cancelled = running(3);
        cancelled.restart(&throttled(60));
        assert_eq!(cancelled.cancel(), CancelStep::CallOff(ONE));
        assert_eq!(cancelled.restart(&throttled(70)), RestartStep::TooLate);
        cancelled.handle_ended(now, end(Outcome::CalledOff, Some(FailureReason::Cancelled)), PlacementLoss::None);
        assert_eq!(cancelled.end(), Some(&AttemptsEnd::Migration));
        // Another end came first: the hold is over, or the target refuses.
        for why in [FailureReason::HoldOver, FailureReason::TargetRefused] {
            let mut attempts = running(0);
            attempts.restart(&throttled(60));
            attempts.handle_ended(now, end(Outcome::CalledOff, Some(why)), PlacementLoss::None);
            assert!(attempts.next_due().is_some(), "{why:?}");
        }
    }

    #[test]
    fn attempts_are_cancelled_while_none_is_under_way() {
        let now = Instant::now();
        let mut attempts = running(5);
        attempts.handle_ended(now, failed(), PlacementLoss::None);
        assert_eq!(attempts.cancel(), CancelStep::Nothing);
        assert!(!attempts.begin_due(now + RETRY_PAUSE));
        assert_eq!((attempts.end(), attempts.count().is_cancelled), (Some(&AttemptsEnd::Migration), true));

        for begins in [true, false] {
            let mut attempts = running(5);
            attempts.handle_ended(now, failed(), PlacementLoss::None);
            assert!(attempts.begin_due(now + RETRY_PAUSE));
            assert_eq!((attempts.cancel(), attempts.end()), (CancelStep::Nothing, None), "it is being begun");
            if begins {
                assert_eq!(attempts.handle_begun(TWO), Some(TWO), "to be called off");
                attempts.handle_ended(now, failed(), PlacementLoss::None);
            } else {
                attempts.handle_not_begun(now, refused());
            }
            assert_eq!(attempts.end(), Some(&AttemptsEnd::Migration), "{begins}");
        }
    }

    #[test]
    fn the_first_attempt_is_refused_at_once_and_a_later_one_tried_again() {
        let now = Instant::now();
        let mut attempts = Attempts::new(asked(5));
        attempts.handle_not_begun(now, refused());
        assert!(matches!(attempts.end(), Some(AttemptsEnd::Refused(refusal)) if refusal.message == "no"));

        let mut attempts = running(2);
        attempts.handle_ended(now, failed(), PlacementLoss::None);
        assert!(attempts.begin_due(now + RETRY_PAUSE));
        attempts.handle_not_begun(now + RETRY_PAUSE, refused());
        assert_eq!(attempts.next_due(), Some(now + 2 * RETRY_PAUSE));
        assert!(attempts.begin_due(now + 2 * RETRY_PAUSE));
        attempts.handle_not_begun(now, refused());
        assert!(matches!(attempts.end(), Some(AttemptsEnd::Refused(_))), "a refusal is an attempt, too");
        assert_eq!(made(&attempts), (3, 3));
    }

    #[test]
    fn what_blocks_ends_the_attempts() {
        let now = Instant::now();
        for first in [true, false] {
            let mut attempts = if first { Attempts::new(asked(5)) } else { running(5) };
            attempts.handle_ended(now, failed(), PlacementLoss::None);
            assert_eq!(attempts.begin_due(now + RETRY_PAUSE), !first);
            attempts.handle_not_begun(now, NotBegun::Blocked(Box::new(check())));
            assert_eq!(attempts.end(), Some(&AttemptsEnd::Blocked(check())), "{first}");
        }
    }

    #[test]
    fn an_agent_that_is_started_again_counts_on() {
        let now = Instant::now();
        let mut before = running(1);
        before.handle_ended(now, failed(), PlacementLoss::None);
        assert!(before.begin_due(now + RETRY_PAUSE));
        before.handle_begun(TWO);
        let again = |end| {
            let (asked, changed) = (before.asked().clone(), before.changed().clone());
            Attempts::recovered(asked, changed, before.begun().to_vec(), before.count(), end)
        };
        let mut after = again(None);
        assert_eq!((after.state(), after.newest()), (&AttemptState::Running, Some(TWO)));
        after.handle_ended(now, end(Outcome::CalledOff, Some(FailureReason::AgentRestarted)), PlacementLoss::None);
        assert_eq!((made(&after), after.end()), ((2, 2), Some(&AttemptsEnd::Migration)), "no try is left");
        assert_eq!(again(Some(AttemptsEnd::Migration)).cancel(), CancelStep::TooLate);
    }
}
