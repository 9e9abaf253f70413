//! Two agents, their disks, their QEMUs and the network between them.

use std::fmt;

use skein_handover::{
    Intent, Outcome, Report, SourceGuest, SourceHandover, SourceInput, SourceOrder, SourcePhase, SourceRecord,
    TargetGuest, TargetHandover, TargetInput, TargetOrder, TargetPhase, TargetRecord, Wait,
};

/// How often something may still go wrong. In pairs: at the source, at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// An agent ends and starts again.
    pub crashes: [u8; 2],
    /// A record is not written, or the disk says that it is not.
    pub writes: [u8; 2],
    /// A QEMU ends.
    pub kills: [u8; 2],
    /// The migration fails, at the source or at the target; the target's QEMU cannot run the guest.
    pub failures: [u8; 2],
    /// A host goes off.
    pub offs: [u8; 2],
    /// Contact comes and goes, and waits end in doubt: see [`World::steps`].
    pub doubt: bool,
    /// Steps are taken in every detail: see [`World::steps`].
    pub fine: bool,
}

impl Budget {
    pub const NONE: Budget = Budget {
        crashes: [0, 0],
        writes: [0, 0],
        kills: [0, 0],
        failures: [0, 0],
        offs: [0, 0],
        doubt: false,
        fine: false,
    };
}

/// A planted error, of the kind that the check has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// The grant is sent before it is on the source's disk.
    GrantUnwritten,
    /// A source in doubt resumes the guest while it waits for the report that the guest runs at the target.
    SourceImpatient,
    /// The target runs the guest as soon as it has the whole guest.
    CompletedIsPermission,
    /// The target runs the guest before that is on its disk.
    RunUnwritten,
    /// The target's disk is lost with a crash.
    TargetForgets,
}

/// One end of the migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Source,
    Target,
}
use End::{Source as S, Target as T};

/// What happens to a record that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    Done,
    FailedButThere,
    Failed,
}

/// The state of an agent, as far as this migration goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Agent<M> {
    /// The agent does not run.
    Down,
    /// The agent runs and does not know the migration.
    Idle,
    Busy(M),
}

impl<M> Agent<M> {
    fn machine(&self) -> Option<&M> {
        match self {
            Agent::Busy(machine) => Some(machine),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SourceQemu {
    Running,
    Migrating,
    PreSwitchover,
    Device,
    Completed,
    /// A migration failed or was cancelled, and the guest runs again.
    Resumed,
    /// A migration was cancelled, and the guest stays stopped.
    Stopped,
    /// Somebody stopped the guest, while it was copied and while it was not.
    HaltedMigrating,
    Halted,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TargetQemu {
    Absent,
    Waiting,
    Loaded,
    Running,
    Failed,
    Gone,
}

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    budget: Budget,
    error: Option<Error>,

    source: Agent<SourceHandover>,
    source_on: bool,
    source_disk: Option<SourceRecord>,
    /// The record on its way to the source's disk.
    source_writes: Option<SourceRecord>,
    /// The order on its way to the source's QEMU.
    source_orders: Option<SourceOrder>,
    source_qemu: SourceQemu,

    target: Agent<TargetHandover>,
    target_on: bool,
    target_disk: Option<TargetRecord>,
    target_writes: Option<TargetRecord>,
    target_orders: Option<TargetOrder>,
    target_qemu: TargetQemu,
    /// Whether the target's agent knows that its QEMU never ran the guest, if the QEMU ends now or when it ended.
    watched: bool,
    /// Whether the target has forgotten a migration whose guest runs there.
    moved_in: bool,
    /// Whether the target has settled and forgotten the migration: a message that comes now comes late.
    came_late: bool,
    /// Whether another migration of the guest was begun, as this one was over. The source's QEMU belongs to that one
    /// then.
    followed: bool,

    /// The intents and reports that were ever sent: bit `n` for number `n`.
    intents: u8,
    reports: u16,

    /// Whether the last byte is on its way to the target, or there.
    all_sent: bool,
    /// Whether the source's end of the migration stream is closed.
    stream_broken: bool,
    /// Whether the source ran after `all_sent`: what the target has is stale then.
    image_stale: bool,
    target_ran: bool,
    rolled_back: bool,
    /// Whether a person vouched for the other host, to the source and to the target.
    proved: [bool; 2],
    said_moved: bool,
    said_kept: bool,
    broke_word: bool,
    changed_its_mind: bool,
    /// Whether a QEMU that held the guest was killed.
    killed: bool,
    /// Whether something went wrong, or was called off.
    disturbed: bool,
}

/// A step that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The intent reaches the target.
    Intent(Intent),
    /// The report reaches the source.
    Report(Report),
    Contact(End, bool),
    /// An agent asks its QEMU for its state.
    SourceGuest,
    TargetGuest(TargetGuest),
    MigrationFailed,
    Elapsed(End, Wait),
    Cancel(End),
    /// A proof is given to this end.
    Proof(End),
    SourceWrites(SourceRecord),
    SourceWritten(SourceRecord, Write),
    TargetWrites(TargetRecord),
    TargetWritten(TargetRecord, Write),
    /// An order is given. Until it is carried out, the agent learns nothing about QEMU that speaks against the order.
    SourceOrders(SourceOrder),
    TargetOrders(TargetOrder),
    /// The order is carried out.
    SourceOrder(SourceOrder),
    /// `migrate_cancel`, after which the guest stays stopped.
    CancelStops,
    TargetOrder(TargetOrder),
    /// QEMU refuses `cont`.
    CannotRun,
    /// A person stops the guest, or the guest stops by itself.
    Halts,
    /// The source's agent has seen that the guest changed.
    GuestChanged,
    /// QEMU goes on with the migration: to pre-switchover, or to completed.
    MigrationGoesOn,
    MigrationFails,
    /// The last byte arrives at the target.
    Loaded,
    IncomingFails,
    QemuEnds(End),
    /// The guest that was kept is migrated again, and the whole of it is copied.
    NextMigration,
    Crash(End),
    /// A crash when the first of the records of a refusal is on disk. (If it is refused before it began, the beginning
    /// is the first record.)
    CrashWhileRefusing,
    /// A crash right after the record reached the disk.
    CrashAfterWriting(End),
    Restart(End),
    HostOff(End),
    HostOn(End),
    /// The planted error happens.
    Err,
}

const INTENTS: [Intent; 4] = [Intent::Prepare, Intent::Abort, Intent::Grant, Intent::Settle];
const REPORTS: [Report; 7] = [
    Report::Ready,
    Report::Completed,
    Report::Run,
    Report::Refusing,
    Report::Running,
    Report::Refused,
    Report::Settled,
];

impl World {
    pub fn new(budget: Budget, error: Option<Error>) -> World {
        let mut source = SourceHandover::new();
        source.handle(SourceInput::Guest(SourceGuest::Running));
        World {
            budget,
            error,
            source: Agent::Busy(source),
            source_on: true,
            source_disk: None,
            source_writes: None,
            source_orders: None,
            source_qemu: SourceQemu::Running,
            target: Agent::Idle,
            target_on: true,
            target_disk: None,
            target_writes: None,
            target_orders: None,
            target_qemu: TargetQemu::Absent,
            watched: true,
            moved_in: false,
            came_late: false,
            followed: false,
            intents: 0,
            reports: 0,
            all_sent: false,
            stream_broken: false,
            image_stale: false,
            target_ran: false,
            rolled_back: false,
            proved: [false, false],
            said_moved: false,
            said_kept: false,
            broke_word: false,
            changed_its_mind: false,
            killed: false,
            disturbed: false,
        }
    }

    /// Returns whether another migration of the guest was begun.
    pub fn is_followed(&self) -> bool {
        self.followed
    }

    /// Returns at how many ends the guest runs.
    pub fn running(&self) -> usize {
        let at_target = self.target_qemu == TargetQemu::Running || self.moved_in;
        usize::from(self.source_runs()) + usize::from(at_target)
    }

    pub fn rolled_back(&self) -> bool {
        self.rolled_back
    }

    pub fn keeps_its_word(&self) -> bool {
        !self.broke_word
    }

    pub fn is_of_one_mind(&self) -> bool {
        !self.changed_its_mind
    }

    /// Returns whether a QEMU did something that its agent does not know yet, and so cannot take into account.
    pub fn doubts_with_reason(&self) -> bool {
        let source_ok = self
            .source
            .machine()
            .filter(|source| source.is_in_doubt())
            .is_none_or(|source| !self.source_runs() && !matches!(source.wants().order, Some(SourceOrder::Resume)));
        let target_ok = self
            .target
            .machine()
            .filter(|target| target.is_in_doubt())
            .is_none_or(|target| matches!(target.phase(), TargetPhase::Completed | TargetPhase::Run));
        source_ok && target_ok
    }

    pub fn hosts_are_on(&self) -> bool {
        self.source_on && self.target_on
    }

    pub fn was_killed(&self) -> bool {
        self.killed
    }

    /// Returns whether the source's agent does not know the migration, and so has no session for it.
    pub fn source_is_over(&self) -> bool {
        self.source == Agent::Idle
    }

    /// Returns whether the guest stands still at the source for another reason than a migration.
    pub fn is_halted(&self) -> bool {
        self.source_qemu == SourceQemu::Halted
    }

    pub fn was_disturbed(&self) -> bool {
        self.disturbed
    }

    pub fn target_runs(&self) -> bool {
        self.target_qemu == TargetQemu::Running || self.moved_in
    }

    /// Returns why something is left to do. `None`: the world is at rest.
    pub fn unrest(&self) -> Option<String> {
        let late = |target: &TargetHandover| {
            self.came_late && self.source == Agent::Idle && target.outcome() == Some(Outcome::CalledOff)
        };
        match (&self.source, &self.target) {
            (Agent::Down, _) | (_, Agent::Down) => Some("an agent is down".into()),
            (Agent::Busy(source), _) => Some(format!("the source still wants {:?}", source.wants())),
            (_, Agent::Busy(target)) if !late(target) => Some(format!("the target still wants {:?}", target.wants())),
            _ if !matches!(self.target_qemu, TargetQemu::Absent | TargetQemu::Gone) => {
                Some("a QEMU is left at the target".into())
            }
            _ => None,
        }
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.source.machine().and_then(SourceHandover::outcome)
    }

    pub fn source_wait(&self) -> Option<Wait> {
        self.source.machine().and_then(|source| source.wants().wait)
    }

    pub fn target_wait(&self) -> Option<Wait> {
        self.target.machine().and_then(|target| target.wants().wait)
    }

    pub fn intent(&self) -> Option<Intent> {
        self.source.machine().and_then(|source| source.wants().intent)
    }

    pub fn report(&self) -> Option<Report> {
        let settled = Some(Report::Settled).filter(|report| self.reports & (1 << *report as u16) != 0);
        match &self.target {
            Agent::Down => None,
            Agent::Idle => settled,
            Agent::Busy(target) => target.wants().report,
        }
    }

    /// Returns the order that the source has to give, if none is under way.
    pub fn source_order(&self) -> Option<SourceOrder> {
        self.source.machine().and_then(|source| source.wants().order)
    }

    pub fn target_order(&self) -> Option<TargetOrder> {
        self.target.machine().and_then(|target| target.wants().order)
    }

    /// Returns the source's order that is under way.
    pub fn source_ordered(&self) -> Option<SourceOrder> {
        self.source_orders
    }

    pub fn target_ordered(&self) -> Option<TargetOrder> {
        self.target_orders
    }

    /// Returns what the source has to write now.
    pub fn source_write(&self) -> Option<SourceRecord> {
        self.source_writes.or(self.source.machine().and_then(|source| source.wants().write))
    }

    pub fn target_write(&self) -> Option<TargetRecord> {
        self.target_writes.or(self.target.machine().and_then(|target| target.wants().write))
    }

    /// Returns whether both ends of the migration stream are there.
    pub fn stream_is_whole(&self) -> bool {
        !self.stream_broken && matches!(self.target_qemu, TargetQemu::Waiting | TargetQemu::Loaded)
    }

    fn source_runs(&self) -> bool {
        use SourceQemu as Qemu;
        matches!(self.source_qemu, Qemu::Running | Qemu::Migrating | Qemu::Resumed)
    }

    fn is_migrating(&self) -> bool {
        use SourceQemu as Qemu;
        matches!(self.source_qemu, Qemu::Migrating | Qemu::HaltedMigrating | Qemu::PreSwitchover | Qemu::Device)
    }

    fn source_guest(&self) -> SourceGuest {
        match self.source_qemu {
            SourceQemu::Running | SourceQemu::Resumed => SourceGuest::Running,
            SourceQemu::Migrating | SourceQemu::HaltedMigrating => SourceGuest::Migrating,
            SourceQemu::Halted => SourceGuest::Halted,
            SourceQemu::PreSwitchover => SourceGuest::PreSwitchover,
            SourceQemu::Device => SourceGuest::Device,
            SourceQemu::Completed => SourceGuest::Completed,
            SourceQemu::Stopped => SourceGuest::Stopped,
            SourceQemu::Gone => SourceGuest::Gone,
        }
    }

    /// Returns what the target's agent may find out about its QEMU. An agent that has watched the QEMU may know more.
    pub fn target_guest(&self) -> (TargetGuest, Option<TargetGuest>) {
        match self.target_qemu {
            TargetQemu::Absent if self.watched => (TargetGuest::Absent, None),
            TargetQemu::Absent => (TargetGuest::Gone, None),
            TargetQemu::Waiting => (TargetGuest::Waiting, None),
            TargetQemu::Loaded => (TargetGuest::Loaded, None),
            TargetQemu::Running => (TargetGuest::Running, None),
            TargetQemu::Failed => (TargetGuest::Failed, None),
            TargetQemu::Gone if self.watched && !self.target_ran => (TargetGuest::Gone, Some(TargetGuest::GoneUnrun)),
            TargetQemu::Gone => (TargetGuest::Gone, None),
        }
    }

    /// Adds all steps that may happen next.
    ///
    /// Unless in every detail (`Budget::fine`), steps that lead to no new case are left out:
    /// - A source that loses contact or is cancelled acts as a source whose wait is over; a target whose wait is over
    ///   acts as a target that is cancelled. One of each is enough.
    /// - Whether an end is in doubt changes only what it tells people. This is checked where the budget has `doubt`.
    /// - An order is carried out, and a record reaches the disk, in the step in which they are asked for.
    pub fn steps(&self, steps: &mut Vec<Step>) {
        let budget = &self.budget;
        let fine = budget.fine;
        let doubt = budget.doubt || fine;
        if self.target != Agent::Down {
            let sent = INTENTS.into_iter().filter(|intent| self.intents & (1 << *intent as u8) != 0);
            steps.extend(sent.map(Step::Intent));
        }
        if let Agent::Busy(source) = &self.source {
            let wants = source.wants();
            let sent = REPORTS.into_iter().filter(|report| self.reports & (1 << *report as u16) != 0);
            steps.extend(sent.map(Step::Report));
            steps.extend([Step::SourceGuest, Step::MigrationFailed, Step::GuestChanged]);
            if doubt {
                steps.extend([Step::Contact(S, true), Step::Contact(S, false)]);
            }
            if fine || source.phase() == SourcePhase::Begin {
                steps.push(Step::Cancel(S));
            }
            steps.extend(wants.wait.filter(|wait| doubt || *wait != Wait::Doubt).map(|wait| Step::Elapsed(S, wait)));
            steps.extend((!self.target_on).then_some(Step::Proof(S)));
            steps.extend(wants.order.filter(|_| fine).map(Step::SourceOrders));
            let order = if fine { self.source_orders } else { wants.order };
            steps.extend(order.map(Step::SourceOrder));
            steps.extend((order == Some(SourceOrder::CancelMigration)).then_some(Step::CancelStops));
            if let Some(record) = self.source_write() {
                steps.push(Step::SourceWritten(record, Write::Done));
                if budget.writes[0] > 0 {
                    steps.push(Step::SourceWritten(record, Write::Failed));
                    steps.push(Step::SourceWritten(record, Write::FailedButThere));
                }
                steps.extend(fine.then_some(Step::SourceWrites(record)));
                steps.extend((budget.crashes[0] > 0).then_some(Step::CrashAfterWriting(S)));
            }
            steps.extend((budget.crashes[0] > 0).then_some(Step::Crash(S)));
        }
        if let Agent::Busy(target) = &self.target {
            let wants = target.wants();
            let (guest, better) = self.target_guest();
            steps.push(Step::TargetGuest(guest));
            steps.extend(better.map(Step::TargetGuest));
            steps.push(Step::Cancel(T));
            if doubt {
                steps.extend([Step::Contact(T, true), Step::Contact(T, false)]);
                steps.extend(wants.wait.map(|wait| Step::Elapsed(T, wait)));
            }
            steps.extend((!self.source_on).then_some(Step::Proof(T)));
            steps.extend(wants.order.filter(|_| fine).map(Step::TargetOrders));
            let order = if fine { self.target_orders } else { wants.order };
            steps.extend(order.map(Step::TargetOrder));
            let may_refuse = order == Some(TargetOrder::Continue) && budget.failures[1] > 0;
            steps.extend(may_refuse.then_some(Step::CannotRun));
            if let Some(record) = self.target_write() {
                steps.push(Step::TargetWritten(record, Write::Done));
                if budget.writes[1] > 0 {
                    steps.push(Step::TargetWritten(record, Write::Failed));
                    steps.push(Step::TargetWritten(record, Write::FailedButThere));
                }
                steps.extend(fine.then_some(Step::TargetWrites(record)));
                if budget.crashes[1] > 0 {
                    steps.extend([Step::CrashAfterWriting(T), Step::CrashWhileRefusing]);
                }
            }
            steps.extend((budget.crashes[1] > 0).then_some(Step::Crash(T)));
        }
        steps.push(Step::NextMigration);
        steps.extend((budget.failures[0] > 0).then_some(Step::Halts));
        steps.extend([Step::MigrationGoesOn, Step::MigrationFails, Step::Loaded, Step::IncomingFails]);
        for (end, on) in [(S, self.source_on), (T, self.target_on)] {
            let i = end as usize;
            steps.push(Step::Restart(end));
            steps.extend((budget.kills[i] > 0).then_some(Step::QemuEnds(end)));
            steps.extend((on && budget.offs[i] > 0).then_some(Step::HostOff(end)));
            steps.extend((!on).then_some(Step::HostOn(end)));
        }
        steps.extend(self.error.map(|_| Step::Err));
    }

    /// Returns the world after a step. `None`: the step makes no difference.
    pub fn after(&self, step: Step) -> Option<World> {
        let mut next = self.clone();
        next.take(step)?;
        next.note();
        (next != *self).then_some(next)
    }

    /// Takes a step, if the step is possible.
    pub fn go(&mut self, step: Step) {
        if let Some(next) = self.after(step) {
            *self = next;
        }
    }

    fn take(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Intent(intent) => self.heed(intent)?,
            Step::Report(report) => self.tell_source(SourceInput::Report(report))?,
            Step::Contact(end, contact) => {
                match end {
                    S => self.tell_source(SourceInput::Contact(contact))?,
                    T => self.tell_target(TargetInput::Contact(contact))?,
                }
                self.disturbed |= !contact;
            }
            Step::SourceGuest => {
                (self.source_orders != Some(SourceOrder::Migrate)).then_some(())?;
                self.tell_source(SourceInput::Guest(self.source_guest()))?;
            }
            Step::TargetGuest(guest) => {
                (self.target_orders != Some(TargetOrder::Start)).then_some(())?;
                self.tell_target(TargetInput::Guest(guest))?;
                // QEMU was seen alive, and the guest not running: if QEMU ends now, the guest never ran.
                self.watched |=
                    matches!(self.target_qemu, TargetQemu::Waiting | TargetQemu::Loaded | TargetQemu::Failed);
            }
            Step::MigrationFailed => {
                let is_over = [SourceQemu::Resumed, SourceQemu::Stopped, SourceQemu::Halted];
                is_over.contains(&self.source_qemu).then_some(())?;
                self.tell_source(SourceInput::MigrationFailed)?;
            }
            Step::Elapsed(end, wait) => {
                match end {
                    S => self.tell_source(SourceInput::Elapsed(wait))?,
                    T => self.tell_target(TargetInput::Elapsed(wait))?,
                }
                self.disturbed = true;
            }
            Step::Cancel(end) => {
                match end {
                    S => self.tell_source(SourceInput::Cancel)?,
                    T => self.tell_target(TargetInput::Cancel)?,
                }
                self.disturbed = true;
            }
            Step::Proof(end) => {
                self.proved[end as usize] = true;
                match end {
                    S => self.tell_source(SourceInput::Proof)?,
                    T => self.tell_target(TargetInput::Proof)?,
                }
            }
            Step::SourceWrites(record) => {
                self.source_writes.is_none().then_some(())?;
                self.source_writes = Some(record);
            }
            Step::TargetWrites(record) => {
                self.target_writes.is_none().then_some(())?;
                self.target_writes = Some(record);
            }
            Step::SourceWritten(record, write) => {
                self.source_writes = None;
                let input = match write {
                    Write::Done => SourceInput::Written(record),
                    _ => SourceInput::WriteFailed(record),
                };
                if write != Write::Failed {
                    self.source_disk = self.source_disk.max(Some(record));
                }
                if write != Write::Done {
                    self.spend(|budget| &mut budget.writes[0])?;
                }
                self.tell_source(input)?;
            }
            Step::TargetWritten(record, write) => {
                self.target_writes = None;
                let input = match write {
                    Write::Done => TargetInput::Written(record),
                    _ => TargetInput::WriteFailed(record),
                };
                if write != Write::Failed {
                    self.target_disk = self.target_disk.max(Some(record));
                }
                if write != Write::Done {
                    self.spend(|budget| &mut budget.writes[1])?;
                }
                self.tell_target(input)?;
            }
            Step::SourceOrders(order) => {
                self.source_orders.is_none().then_some(())?;
                self.source_orders = Some(order);
                if order == SourceOrder::Migrate {
                    self.tell_source(SourceInput::Guest(SourceGuest::Unknown))?;
                }
            }
            Step::TargetOrders(order) => {
                self.target_orders.is_none().then_some(())?;
                self.target_orders = Some(order);
                if order == TargetOrder::Start {
                    self.tell_target(TargetInput::Guest(TargetGuest::Unknown))?;
                }
            }
            Step::SourceOrder(order) => {
                self.source_orders = None;
                if order == SourceOrder::Migrate {
                    self.tell_source(SourceInput::Guest(SourceGuest::Unknown))?;
                }
                self.obey_source(order);
            }
            Step::CancelStops => {
                self.source_orders = None;
                if self.is_migrating() {
                    self.source_qemu = self.after_migration(SourceQemu::Stopped);
                    self.stream_broken = true;
                }
            }
            Step::TargetOrder(order) => {
                self.target_orders = None;
                if order == TargetOrder::Start {
                    self.tell_target(TargetInput::Guest(TargetGuest::Unknown))?;
                }
                self.obey_target(order)?;
            }
            Step::CannotRun => {
                self.spend(|budget| &mut budget.failures[1])?;
                (self.target_qemu == TargetQemu::Loaded).then_some(())?;
                self.target_orders = None;
                self.tell_target(TargetInput::Continuing)?;
                self.tell_target(TargetInput::CannotRun)?;
            }
            Step::Halts => {
                let halted = match self.source_qemu {
                    SourceQemu::Running | SourceQemu::Resumed => SourceQemu::Halted,
                    SourceQemu::Migrating => SourceQemu::HaltedMigrating,
                    _ => return None,
                };
                self.spend(|budget| &mut budget.failures[0])?;
                self.source_qemu = halted;
            }
            Step::GuestChanged => {
                matches!(self.source_qemu, SourceQemu::Halted | SourceQemu::HaltedMigrating).then_some(())?;
                self.tell_source(SourceInput::GuestChanged)?;
            }
            Step::MigrationGoesOn => match self.source_qemu {
                SourceQemu::Migrating | SourceQemu::HaltedMigrating if !self.stream_broken => {
                    self.source_qemu = SourceQemu::PreSwitchover
                }
                SourceQemu::Device => self.source_qemu = SourceQemu::Completed,
                _ => return None,
            },
            Step::MigrationFails => {
                self.is_migrating().then_some(())?;
                if self.stream_is_whole() {
                    self.spend(|budget| &mut budget.failures[0])?;
                }
                self.source_qemu = self.after_migration(SourceQemu::Resumed);
                self.stream_broken = true;
                self.source_resumed();
            }
            Step::Loaded => {
                (self.all_sent && self.target_qemu == TargetQemu::Waiting).then_some(())?;
                self.target_qemu = TargetQemu::Loaded;
            }
            Step::IncomingFails => {
                (self.target_qemu == TargetQemu::Waiting).then_some(())?;
                if !self.stream_broken {
                    self.spend(|budget| &mut budget.failures[1])?;
                }
                self.target_qemu = TargetQemu::Failed;
            }
            Step::NextMigration => {
                let kept = self.source.machine().is_some_and(|source| source.outcome() == Some(Outcome::CalledOff));
                (kept && self.source_runs() && self.source_orders.is_none()).then_some(())?;
                self.source_qemu = SourceQemu::Completed;
                self.followed = true;
            }
            Step::QemuEnds(end) => {
                self.spend(|budget| &mut budget.kills[end as usize])?;
                self.end_qemu(end)?;
            }
            Step::Crash(end) => {
                self.spend(|budget| &mut budget.crashes[end as usize])?;
                self.crash(end);
            }
            Step::CrashAfterWriting(end) => {
                self.spend(|budget| &mut budget.crashes[end as usize])?;
                match end {
                    S => self.source_disk = self.source_disk.max(self.source_write()),
                    T => self.target_disk = self.target_disk.max(self.target_write()),
                }
                self.crash(end);
            }
            Step::CrashWhileRefusing => {
                let refuses = self.target_write() == Some(TargetRecord::Refused) && self.target_disk.is_none();
                refuses.then_some(())?;
                self.spend(|budget| &mut budget.crashes[1])?;
                self.target_disk = Some(TargetRecord::Begin);
                self.crash(T);
            }
            Step::Restart(S) => {
                (self.source_on && self.source == Agent::Down).then_some(())?;
                let last = self.source_disk.filter(|last| *last != SourceRecord::Settled);
                let recover = if self.followed { SourceHandover::recover_followed } else { SourceHandover::recover };
                self.source = last.map_or(Agent::Idle, |last| Agent::Busy(recover(last)));
                let _ = self.tell_source(SourceInput::Contact(false));
            }
            Step::Restart(T) => {
                (self.target_on && self.target == Agent::Down).then_some(())?;
                let last = self.target_disk.filter(|last| *last != TargetRecord::Settled);
                self.target = last.map_or(Agent::Idle, |last| Agent::Busy(TargetHandover::recover(last)));
                let _ = self.tell_target(TargetInput::Contact(false));
            }
            Step::HostOff(end) => {
                self.spend(|budget| &mut budget.offs[end as usize])?;
                self.crash(end);
                let _ = self.end_qemu(end);
                match end {
                    S => self.source_on = false,
                    T => self.target_on = false,
                }
            }
            Step::HostOn(S) => self.source_on = true,
            Step::HostOn(T) => self.target_on = true,
            Step::Err => self.err()?,
        }
        Some(())
    }

    fn heed(&mut self, intent: Intent) -> Option<()> {
        match &mut self.target {
            Agent::Down => return None,
            Agent::Busy(target) => target.handle(TargetInput::Intent(intent)),
            // The migration was settled before.
            Agent::Idle if intent == Intent::Settle => self.reports |= 1 << Report::Settled as u16,
            Agent::Idle => {
                let mut target = TargetHandover::new();
                target.handle(TargetInput::Intent(intent));
                self.watched = true;
                self.target = Agent::Busy(target);
            }
        }
        Some(())
    }

    fn obey_source(&mut self, order: SourceOrder) {
        use SourceQemu as Qemu;
        self.broke_word |= self.followed;
        match (order, self.source_qemu) {
            (SourceOrder::Migrate, Qemu::Running | Qemu::Resumed) => self.source_qemu = Qemu::Migrating,
            (SourceOrder::Continue, Qemu::PreSwitchover) => {
                self.source_qemu = Qemu::Device;
                self.all_sent = true;
            }
            (SourceOrder::CancelMigration, _) if self.is_migrating() => {
                self.source_qemu = self.after_migration(Qemu::Resumed);
                self.stream_broken = true;
                self.source_resumed();
            }
            (SourceOrder::Resume, Qemu::Completed | Qemu::Stopped) => {
                self.source_qemu = Qemu::Running;
                self.source_resumed();
            }
            (SourceOrder::Quit, _) => self.source_qemu = Qemu::Gone,
            // QEMU answers that it is not in such a state.
            _ => {}
        }
    }

    /// Returns the state after a migration. A guest that stood still before its migration was stopped stays so.
    fn after_migration(&self, otherwise: SourceQemu) -> SourceQemu {
        if self.source_qemu == SourceQemu::HaltedMigrating { SourceQemu::Halted } else { otherwise }
    }

    fn source_resumed(&mut self) {
        if self.source_qemu == SourceQemu::Halted {
            return;
        }
        self.image_stale |= self.all_sent;
        self.rolled_back |= self.target_ran && !self.proved[0];
        self.broke_word |= self.said_moved && !self.proved[0];
    }

    fn obey_target(&mut self, order: TargetOrder) -> Option<()> {
        match order {
            TargetOrder::Start => {
                // A VM that is there already is not started.
                self.target_qemu = match self.target_qemu {
                    TargetQemu::Absent if !self.moved_in => TargetQemu::Waiting,
                    TargetQemu::Absent => TargetQemu::Gone,
                    there => there,
                };
            }
            TargetOrder::Continue => {
                self.tell_target(TargetInput::Continuing)?;
                self.target_continues();
            }
            TargetOrder::Kill => {
                if self.target_qemu != TargetQemu::Absent {
                    self.target_qemu = TargetQemu::Gone;
                }
            }
        }
        Some(())
    }

    fn target_continues(&mut self) {
        if self.target_qemu == TargetQemu::Loaded {
            self.target_qemu = TargetQemu::Running;
            self.target_ran = true;
            self.rolled_back |= self.image_stale && !self.proved[1];
            self.broke_word |= self.said_kept && !self.proved[1];
        }
    }

    fn end_qemu(&mut self, end: End) -> Option<()> {
        match end {
            S if self.source_qemu == SourceQemu::Gone => None,
            S => {
                self.source_qemu = SourceQemu::Gone;
                self.killed = true;
                Some(())
            }
            T if matches!(self.target_qemu, TargetQemu::Absent | TargetQemu::Gone) => None,
            T => {
                self.killed |= matches!(self.target_qemu, TargetQemu::Loaded | TargetQemu::Running);
                self.target_qemu = TargetQemu::Gone;
                Some(())
            }
        }
    }

    fn crash(&mut self, end: End) {
        match end {
            S => {
                self.source = Agent::Down;
                self.source_writes = None;
                self.source_orders = None;
            }
            T => {
                self.target = Agent::Down;
                self.target_writes = None;
                self.target_orders = None;
                self.watched = false;
                if self.error == Some(Error::TargetForgets) {
                    self.target_disk = None;
                }
            }
        }
    }

    fn spend(&mut self, of: impl Fn(&mut Budget) -> &mut u8) -> Option<()> {
        let left = of(&mut self.budget);
        *left = left.checked_sub(1)?;
        self.disturbed = true;
        Some(())
    }

    fn tell_source(&mut self, input: SourceInput) -> Option<()> {
        match &mut self.source {
            Agent::Busy(source) => source.handle(input),
            _ => return None,
        }
        Some(())
    }

    fn tell_target(&mut self, input: TargetInput) -> Option<()> {
        match &mut self.target {
            Agent::Busy(target) => target.handle(input),
            _ => return None,
        }
        Some(())
    }

    /// Does what follows by itself: messages count as sent, outcomes as announced, and what is settled is forgotten, on
    /// disk, too.
    fn note(&mut self) {
        if let Some(source) = self.source.machine() {
            let outcome = source.outcome();
            self.intents |= source.wants().intent.map_or(0, |intent| 1 << intent as u8);
            // After a crash a source may also announce that the guest has ended since. A proof may reverse the outcome
            // either way.
            self.changed_its_mind |= self.said_moved && outcome == Some(Outcome::CalledOff) && !self.proved[0];
            self.changed_its_mind |= self.said_kept && outcome == Some(Outcome::Moved) && self.proved == [false; 2];
            self.changed_its_mind |= outcome == Some(Outcome::Ended) && self.running() > 0;
            self.said_moved |= outcome == Some(Outcome::Moved);
            self.said_kept |= outcome == Some(Outcome::CalledOff);
            if source.phase() == SourcePhase::Done {
                self.source = Agent::Idle;
            }
        }
        if let Some(target) = self.target.machine() {
            // Reports below `Ready` have no effect on the source.
            let report = target.wants().report.filter(|report| *report >= Report::Ready);
            self.reports |= report.map_or(0, |report| 1 << report as u16);
            if target.phase() == TargetPhase::Done {
                self.target = Agent::Idle;
            }
        }
        if self.source_disk == Some(SourceRecord::Settled) && self.source == Agent::Idle {
            self.source_disk = None;
        }
        if self.target_disk == Some(TargetRecord::Settled) && self.target == Agent::Idle {
            self.target_disk = None;
            self.moved_in |= self.target_qemu == TargetQemu::Running;
            if self.target_qemu != TargetQemu::Waiting && self.target_qemu != TargetQemu::Loaded {
                self.target_qemu = TargetQemu::Absent;
            }
            self.came_late = true;
            // What was sent was sent to the QEMU that was there.
            self.all_sent = false;
        }
    }

    fn err(&mut self) -> Option<()> {
        match self.error? {
            Error::GrantUnwritten => {
                let granting = self.source.machine().is_some_and(|source| source.phase() == SourcePhase::Grant);
                granting.then(|| self.intents |= 1 << Intent::Grant as u8)
            }
            Error::SourceImpatient => {
                let waits = self.source.machine().is_some_and(|source| source.wants().intent == Some(Intent::Grant));
                waits.then(|| self.obey_source(SourceOrder::Resume))
            }
            Error::CompletedIsPermission => {
                let has_all = self.target.machine().is_some_and(|target| target.phase() == TargetPhase::Completed);
                has_all.then(|| self.tell_target(TargetInput::Intent(Intent::Grant)))?
            }
            Error::RunUnwritten => {
                let unwritten = self.target_write() == Some(TargetRecord::Run);
                unwritten.then(|| self.tell_target(TargetInput::Written(TargetRecord::Run)))?
            }
            // This error acts at the crash.
            Error::TargetForgets => None,
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let off = |on: bool| if on { "" } else { "(off) " };
        let source = match &self.source {
            Agent::Busy(source) => format!("{:?}{}", source.phase(), if source.is_in_doubt() { "?" } else { "" }),
            agent => format!("{agent:?}"),
        };
        let target = match &self.target {
            Agent::Busy(target) => format!("{:?}{}", target.phase(), if target.is_in_doubt() { "?" } else { "" }),
            agent => format!("{agent:?}"),
        };
        let disk = |record: Option<String>| record.unwrap_or_else(|| "-".into());
        write!(
            f,
            "{}{source} [{}] QEMU {:?} | {}{target} [{}] QEMU {:?}{}",
            off(self.source_on),
            disk(self.source_disk.map(|last| format!("{last:?}"))),
            self.source_qemu,
            off(self.target_on),
            disk(self.target_disk.map(|last| format!("{last:?}"))),
            self.target_qemu,
            if self.moved_in { " (moved in)" } else { "" },
        )
    }
}
