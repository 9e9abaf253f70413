//! Requests whose attempts begin, fail and end as a test wants.

use std::collections::BTreeMap;

use skein_api::{FailureReason, MigrateOptions, Outcome, Problem, ProblemKind, Severity};

use super::super::machine::MigrationEnd;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A starter that begins migrations that end as the test wants.
#[derive(Default)]
struct FakeStarter {
    state: Mutex<FakeState>,
}

#[derive(Default)]
struct FakeState {
    /// The end of each migration, if it has ended.
    migrations: BTreeMap<MigrationId, Option<MigrationEnd>>,
    newest: Option<MigrationId>,
    numbers: Vec<(u32, u32)>,
    checks: usize,
    refuses: bool,
    places: Option<Placement>,
    called_off: Vec<MigrationId>,
    /// The migrations after which an attempt follows, and which attempt.
    told: Vec<(MigrationId, u32, u32)>,
    /// The attempts that were not begun, and whether another attempt follows.
    not_begun: Vec<(MigrationId, u32, bool)>,
    /// The migrations that were to begin again with other options.
    restarted: Vec<(MigrationId, String)>,
    /// What each migration was begun with.
    asked: Vec<AskedMigration>,
    /// The problems that the check finds.
    problems: Vec<Problem>,
    guest: Option<ProcessId>,
    /// The time that a check takes.
    check_time: Duration,
    /// Whether checks that have begun go on.
    holds_checks: bool,
}

impl Starter for FakeStarter {
    type Checked = ();

    fn check(&self, asked: &AskedMigration) -> Result<(CheckResult, ()), Refusal> {
        let time = {
            let mut state = self.state.lock();
            state.checks += 1;
            if state.refuses {
                return Err(Refusal { message: "the target does not answer".into(), cure: String::new() });
            }
            state.check_time
        };
        thread::sleep(time);
        while self.state.lock().holds_checks {
            thread::sleep(SECOND / 200);
        }
        if self.state.lock().refuses {
            return Err(Refusal { message: "the agent stops".into(), cure: String::new() });
        }
        let (vm, to) = (asked.vm.clone(), asked.to.clone());
        Ok((CheckResult { vm, to, problems: self.state.lock().problems.clone(), forecast: None }, ()))
    }

    fn begin(
        &self,
        asked: &AskedMigration,
        (): (),
        id: MigrationId,
        attempt: AttemptNumber,
    ) -> Result<Placement, Refusal> {
        let mut state = self.state.lock();
        state.asked.push(asked.clone());
        state.migrations.insert(id, None);
        state.newest = Some(id);
        state.numbers.push((attempt.number, attempt.of));
        Ok(state.places.unwrap_or(Placement::Direct))
    }

    fn call_off(&self, id: MigrationId) {
        self.state.lock().called_off.push(id);
    }

    fn end(&self, id: MigrationId) -> Option<MigrationEnd> {
        self.state.lock().migrations.get(&id).copied().flatten()
    }

    fn knows(&self, id: MigrationId) -> bool {
        self.state.lock().migrations.contains_key(&id)
    }

    fn tell(&self, id: MigrationId, _: &str, event: &AgentEvent) {
        let mut state = self.state.lock();
        match event {
            AgentEvent::AttemptFollows { number, of } => state.told.push((id, *number, *of)),
            AgentEvent::AttemptNotBegun { number, follows, .. } => state.not_begun.push((id, *number, *follows)),
            AgentEvent::Restarts { how } => state.restarted.push((id, how.clone())),
            event => panic!("{event:?}"),
        }
    }

    fn guest(&self, _: &str) -> Option<ProcessId> {
        self.state.lock().guest
    }

    fn placement(&self, _: &str) -> Placement {
        self.state.lock().places.unwrap_or(Placement::Direct)
    }
}

struct World {
    dir: tempfile::TempDir,
    starter: Arc<FakeStarter>,
    table: AttemptTable<FakeStarter>,
}

impl World {
    fn new() -> World {
        let (dir, starter) = (tempfile::tempdir().unwrap(), Arc::<FakeStarter>::default());
        let table = AttemptTable::start(starter.clone(), RequestStore::new(dir.path().to_owned())).unwrap();
        World { dir, starter, table }
    }

    /// Starts the agent again; what QEMUs and the journal tell stays.
    fn restart(&mut self) {
        self.table.stop();
        let store = RequestStore::new(self.dir.path().to_owned());
        self.table = AttemptTable::start(self.starter.clone(), store).unwrap();
    }

    fn begin(&self, retries: u32, request_id: Option<&str>) -> Begun {
        self.table.begin(asked(retries), request_id).unwrap()
    }

    /// Ends the migration, and tells its end as the migration's owner does.
    fn end(&self, id: MigrationId, outcome: Outcome, why: Option<FailureReason>) {
        self.starter.state.lock().migrations.insert(id, Some(MigrationEnd { outcome, why }));
        self.table.on_end()();
    }

    fn fail(&self, id: MigrationId) {
        self.end(id, Outcome::CalledOff, Some(FailureReason::TargetRefused));
    }

    #[track_caller]
    fn wait(&self, what: &str, is: impl Fn() -> bool) {
        let end = Instant::now() + 90 * SECOND;
        while !is() {
            assert!(Instant::now() < end, "not in time: {what}");
            thread::sleep(SECOND / 200);
        }
    }

    /// Returns the migration that is begun after `before` ended.
    #[track_caller]
    fn next(&self, before: MigrationId) -> MigrationId {
        self.wait("another attempt", || self.starter.state.lock().newest != Some(before));
        self.starter.state.lock().newest.unwrap()
    }

    fn begun(&self) -> usize {
        self.starter.state.lock().migrations.len()
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.dir.path()).unwrap().count()
    }
}

fn asked(retries: u32) -> AskedMigration {
    let options = MigrateOptions { retries, ..MigrateOptions::default() };
    AskedMigration { vm: "web1".into(), to: "hostb".into(), options, hold: None, by_controller: false }
}

#[test]
fn a_migration_that_nobody_watches_is_begun_again() {
    let world = World::new();
    let first = world.begin(2, None);
    let begin = Instant::now();
    world.fail(first.migration);
    let second = world.next(first.migration);
    assert!(begin.elapsed() >= super::super::machine::RETRY_PAUSE);
    world.wait("it is known", || world.table.standing(first.key) == Some(Standing::Running(second)));
    let attempt = |number, not_begun| skein_api::Attempt { number, of: 3, not_begun, next_in_ms: None };
    assert_eq!(world.table.attempt(first.migration), Some(attempt(1, None)));
    assert_eq!(world.table.attempt(second), Some(attempt(2, None)));
    // A host that does not answer is tried again, too.
    world.starter.state.lock().refuses = true;
    world.fail(second);
    let over = |standing| matches!(standing, Some(Standing::Over(id, AttemptsEnd::Refused(_))) if id == second);
    world.wait("the end", || over(world.table.standing(first.key)));
    let state = world.starter.state.lock();
    assert_eq!((&state.numbers[..], state.checks), (&[(1, 3), (2, 3)][..], 3));
    assert_eq!(state.told, [(first.migration, 2, 3), (second, 3, 3)]);
    assert_eq!(state.not_begun, [(second, 3, false)]);
    drop(state);
    assert_eq!(world.table.attempt(second), Some(attempt(2, Some(3))));
}

fn problem(kind: ProblemKind) -> Problem {
    Problem { kind, severity: Severity::Blocks, what: "what is left".into(), cure: String::new() }
}

#[test]
fn what_blocks_is_tried_again_if_it_passes_by_itself() {
    let world = World::new();
    let first = world.begin(3, None);
    world.starter.state.lock().problems = vec![problem(ProblemKind::Leftover)];
    world.fail(first.migration);
    world.wait("a refused attempt", || !world.starter.state.lock().not_begun.is_empty());
    assert_eq!(world.starter.state.lock().not_begun, [(first.migration, 2, true)]);
    world.starter.state.lock().problems.clear();
    let second = world.next(first.migration);
    world.starter.state.lock().problems = vec![problem(ProblemKind::Leftover), problem(ProblemKind::CpuModel)];
    world.fail(second);
    let over = |standing| matches!(standing, Some(Standing::Over(id, AttemptsEnd::Blocked(_))) if id == second);
    world.wait("the end", || over(world.table.standing(first.key)));
    assert_eq!(world.starter.state.lock().not_begun[1..], [(second, 4, false)]);
}

#[test]
fn a_migration_begins_again_with_other_options_whatever_agent_does_that() {
    let mut world = World::new();
    let first = world.begin(0, Some("a name"));
    let changed = ChangedOptions { allow_throttle: Some(60), ..ChangedOptions::default() };
    assert_eq!(world.table.restart(first.migration, &changed), Ok(true));
    let again = world.table.restart(first.migration, &changed).unwrap_err();
    assert!(again.message.contains("by 60 % already"), "a request that is repeated begins nothing: {again:?}");
    let told = (first.migration, "its guest may be throttled by 60 %".to_owned());
    assert_eq!(world.starter.state.lock().restarted, [told]);
    assert_eq!(world.starter.state.lock().called_off, [first.migration]);
    // The agent is started again before the end of what was called off, and once more before the next attempt.
    world.restart();
    world.end(first.migration, Outcome::CalledOff, Some(FailureReason::Cancelled));
    let follows = world.table.attempt(first.migration).unwrap().next_in_ms;
    assert!(follows.is_some(), "the end and what follows are told together");
    world.restart();
    let second = world.next(first.migration);
    let throttles: Vec<_> = world.starter.state.lock().asked.iter().map(|asked| asked.options.allow_throttle).collect();
    assert_eq!(throttles, [None, Some(60)]);
    // Who asks again under the same name is told of what goes on.
    world.wait("it is known", || world.table.begin(asked(0), Some("a name")).unwrap().migration == second);
    world.end(second, Outcome::CalledOff, Some(FailureReason::Cancelled));
    world.wait("the end", || world.table.attempt(second).is_some_and(|of| of.next_in_ms.is_none()));
    assert_eq!(world.table.restart(second, &changed), Ok(false), "it is over");
    assert_eq!(world.table.restart(MigrationId(7), &changed), Ok(false), "nobody knows it");
    assert_eq!(world.begun(), 2);
}

#[test]
fn another_guest_of_the_same_name_is_not_moved() {
    let world = World::new();
    world.starter.state.lock().guest = Some(ProcessId { pid: 7, started: 1 });
    let first = world.begin(5, None);
    world.starter.state.lock().guest = Some(ProcessId { pid: 7, started: 2 });
    world.fail(first.migration);
    let over = |standing| matches!(standing, Some(Standing::Over(_, AttemptsEnd::Refused(_))));
    world.wait("the end", || over(world.table.standing(first.key)));
    assert_eq!((world.begun(), world.starter.state.lock().checks), (1, 1));
}

#[test]
fn nothing_is_begun_under_a_request_id_that_was_withdrawn() {
    let world = World::new();
    assert_eq!(world.table.withdraw("a name"), Ok(None));
    assert!(matches!(world.table.begin(asked(1), Some("a name")), Err(NotBegun::Refused(_))));
    assert_eq!(world.begun(), 0);

    // One that is being checked is called off as soon as it has begun.
    world.starter.state.lock().check_time = Duration::from_millis(200);
    let checked = thread::scope(|scope| {
        let begun = scope.spawn(|| world.table.begin(asked(3), Some("checked")).unwrap().migration);
        world.wait("the check", || world.starter.state.lock().checks == 1);
        let withdrawn = world.table.withdraw("checked").unwrap();
        let begun = begun.join().unwrap();
        assert_eq!(withdrawn, Some(begun));
        begun
    });
    world.wait("the word", || world.starter.state.lock().called_off == [checked]);

    // Between two attempts no other is begun.
    world.starter.state.lock().check_time = Duration::ZERO;
    let paused = world.begin(3, Some("paused"));
    world.fail(paused.migration);
    world.wait("the pause", || world.table.standing(paused.key) == Some(Standing::Between(paused.migration)));
    assert_eq!(world.table.withdraw("paused"), Ok(Some(paused.migration)));
    let over = Standing::Over(paused.migration, AttemptsEnd::Migration);
    assert_eq!(world.table.standing(paused.key), Some(over));
    assert_eq!(world.begun(), 2);
}

#[test]
fn a_request_id_stands_for_one_migration() {
    let world = World::new();
    world.begin(1, Some("a name"));
    let other = AskedMigration { to: "hostc".into(), ..asked(1) };
    let refused = world.table.begin(other, Some("a name"));
    assert!(matches!(&refused, Err(NotBegun::Refused(why)) if why.message.contains("web1 to hostb")), "{refused:?}");
    assert_eq!(world.begun(), 1);
}

#[test]
fn an_attempt_that_was_written_down_and_not_begun_is_made_by_the_next_agent() {
    let mut world = World::new();
    let first = world.begin(1, Some("a name"));
    world.fail(first.migration);
    let second = world.next(first.migration);
    world.wait("it is known", || world.table.request_of(second).is_some());
    world.table.stop();
    // The agent died between the two.
    world.starter.state.lock().migrations.remove(&second);
    world.restart();
    let third = world.next(second);
    world.wait("it is known", || world.table.request_of(third).is_some());
    assert_eq!(world.table.attempt(third).map(|attempt| (attempt.number, attempt.of)), Some((2, 2)));
    assert_eq!(world.table.newest_of(first.migration), Some(third));
}

#[test]
fn an_attempt_that_is_checked_while_the_agent_stops_is_made_by_the_next_one() {
    let mut world = World::new();
    let first = world.begin(1, None);
    world.starter.state.lock().holds_checks = true;
    world.fail(first.migration);
    world.wait("the check", || world.starter.state.lock().checks == 2);
    assert_eq!(world.table.attempt(first.migration).unwrap().next_in_ms, Some(0));
    // The check ends when the agent surely stops.
    world.table.stop();
    {
        let mut state = world.starter.state.lock();
        (state.refuses, state.holds_checks) = (true, false);
    }
    let shared = world.table.shared.clone();
    world.wait("the end of the check", || shared.beginning.load(Ordering::SeqCst) == 0);
    world.starter.state.lock().refuses = false;
    world.restart();
    let second = world.next(first.migration);
    world.wait("it is known", || world.table.request_of(second).is_some());
    assert_eq!(world.table.attempt(second).map(|attempt| (attempt.number, attempt.of)), Some((2, 2)));
}

#[test]
fn who_cancels_is_told_that_the_disk_takes_nothing() {
    let world = World::new();
    let first = world.begin(5, None);
    world.fail(first.migration);
    world.wait("the pause", || world.table.attempt(first.migration).unwrap().next_in_ms.is_some());
    // The file's path is a directory that is not empty, so not even root can write there.
    let path = world.dir.path().join(format!("{}.json", first.migration));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir_all(path.join("x")).unwrap();
    let told = world.table.cancel(first.migration).unwrap_err();
    assert!(told.message.contains("cannot be written down"), "{told:?}");
    assert_eq!(world.table.standing(first.key), Some(Standing::Over(first.migration, AttemptsEnd::Migration)));
    std::fs::remove_dir_all(&path).unwrap();
    world.table.on_end()();
    world.wait("it is written down", || path.is_file());
}

#[test]
fn direct_placement_is_left_once_unasked() {
    let world = World::new();
    let first = world.begin(0, None);
    world.starter.state.lock().places = Some(Placement::ThroughQemu);
    world.fail(first.migration);
    let second = world.next(first.migration);
    world.fail(second);
    let over = Some(Standing::Over(second, AttemptsEnd::Migration));
    world.wait("the end", || world.table.standing(first.key) == over);
    assert_eq!(world.begun(), 2);
}

#[test]
fn whoever_comes_back_finds_the_same_attempts() {
    let world = World::new();
    let first = world.begin(1, Some("a name"));
    assert_eq!(world.begin(1, Some("a name")), Begun { check: None, ..first.clone() });
    world.fail(first.migration);
    let second = world.next(first.migration);
    world.wait("it is known", || world.table.request_of(second).is_some());
    let again = world.begin(1, Some("a name"));
    assert_eq!((again.key, again.migration), (first.key, second));
    assert_eq!((world.table.request_of(second), world.table.request_of(first.migration)), (Some(first.key), None));
    world.end(second, Outcome::Moved, None);
    assert_eq!(world.table.standing(first.key), Some(Standing::Over(second, AttemptsEnd::Migration)));
    assert_eq!((world.begin(1, Some("a name")).migration, world.begun()), (second, 2));
    assert_ne!(world.begin(1, Some("another")).migration, second);
}

#[test]
fn two_clients_with_one_request_begin_one_migration() {
    let world = World::new();
    world.starter.state.lock().check_time = SECOND / 5;
    let begun = thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| world.begin(0, Some("a name")).migration)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(begun.iter().all(|id| *id == begun[0]), "{begun:?}");
    assert_eq!((world.begun(), world.starter.state.lock().checks), (1, 1));
}

#[test]
fn what_is_refused_is_not_remembered() {
    let world = World::new();
    world.starter.state.lock().refuses = true;
    assert!(matches!(world.table.begin(asked(5), Some("a name")), Err(NotBegun::Refused(_))));
    assert_eq!((world.begun(), world.files()), (0, 0));
    world.starter.state.lock().refuses = false;
    assert!(world.begin(5, Some("a name")).check.is_some(), "it is begun");
}

#[test]
fn attempts_are_called_off_while_one_is_under_way_and_between_two() {
    let world = World::new();
    let first = world.begin(5, None);
    assert_eq!(world.table.cancel(first.migration), Ok(true));
    assert_eq!(world.table.cancel(MigrationId(1)), Ok(false));
    assert_eq!(world.starter.state.lock().called_off, [first.migration]);
    world.fail(first.migration);
    assert_eq!(world.table.standing(first.key), Some(Standing::Over(first.migration, AttemptsEnd::Migration)));
    assert_eq!(world.table.cancel(first.migration), Ok(false), "it is over");

    let second = world.begin(5, None);
    world.fail(second.migration);
    world.wait("the pause", || world.table.attempt(second.migration).unwrap().next_in_ms.is_some());
    assert_eq!(world.table.cancel(second.migration), Ok(true));
    assert_eq!(world.table.standing(second.key), Some(Standing::Over(second.migration, AttemptsEnd::Migration)));
    assert_eq!(world.begun(), 2);
}

#[test]
fn an_agent_that_is_started_again_begins_no_second_migration_and_goes_on() {
    let mut world = World::new();
    let first = world.begin(1, Some("a name"));
    world.restart();
    assert_eq!(world.begin(1, Some("a name")).migration, first.migration, "it is under way");
    world.table.stop();
    // The migration ends while there is no agent, as a migration that was not granted does.
    world.end(first.migration, Outcome::CalledOff, Some(FailureReason::AgentRestarted));
    world.restart();
    let second = world.next(first.migration);
    world.wait("it is known", || world.table.request_of(second).is_some());
    assert_eq!(world.table.attempt(second).map(|attempt| (attempt.number, attempt.of)), Some((2, 2)));
    world.end(second, Outcome::Moved, None);
    world.wait("the end", || world.table.begin(asked(1), Some("a name")).unwrap().migration == second);
    world.restart();
    assert_eq!(world.begin(1, Some("a name")).migration, second, "also when it is over");
    assert_eq!(world.begun(), 2);
}

#[test]
fn what_was_cancelled_stays_so_for_the_next_agent() {
    let mut world = World::new();
    let first = world.begin(5, None);
    world.fail(first.migration);
    world.wait("the pause", || world.table.attempt(first.migration).unwrap().next_in_ms.is_some());
    assert_eq!(world.table.cancel(first.migration), Ok(true));
    world.restart();
    let key = world.table.request_of(first.migration).unwrap();
    assert_eq!(world.table.standing(key), Some(Standing::Over(first.migration, AttemptsEnd::Migration)));
}

#[test]
fn what_was_written_down_and_never_begun_is_begun_by_whoever_repeats_it() {
    let mut world = World::new();
    let first = world.begin(1, Some("a name"));
    // The agent died before the migration was begun: neither journal nor log know it.
    world.starter.state.lock().migrations.clear();
    world.restart();
    assert_eq!(world.files(), 0);
    assert_ne!(world.begin(1, Some("a name")).migration, first.migration);
}

#[test]
fn what_is_over_is_forgotten_after_a_day_and_the_oldest_of_too_many() {
    let mut table = Table::default();
    let now = Timestamp::now();
    let add = |table: &mut Table, ago: SignedDuration, end: Option<AttemptsEnd>| {
        let begun = vec![BegunAttempt { number: 1, migration: MigrationId(1) }];
        let count = Attempts::new(asked(0)).count();
        table.insert(None, now - ago, None, Attempts::recovered(asked(0), ChangedOptions::default(), begun, count, end))
    };
    let day = SignedDuration::from_hours(24);
    let over = Some(AttemptsEnd::Migration);
    add(&mut table, day, over.clone());
    let running = add(&mut table, day * 20, None);
    let young = add(&mut table, day - SignedDuration::from_secs(1), over.clone());
    assert_eq!(table.forget(now).len(), 1);
    assert!(table.get(running).is_some() && table.get(young).is_some());
    while table.entries.len() < KEPT_MAX {
        add(&mut table, SignedDuration::ZERO, over.clone());
    }
    assert_eq!(table.forget(now).len(), 1, "there is room for one more");
    assert!(table.get(running).is_some() && table.get(young).is_none());
}
