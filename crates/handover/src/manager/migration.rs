//! One migration of an agent: its half of the handover, what was last asked for, and what was announced.

use std::collections::VecDeque;
use std::time::Duration;

use super::action::{Action, HoldLimits, Order};
use super::repeated::RepeatedWant;
use crate::event::{MigrationEvent, MigrationPhase, MigrationSummary};
use crate::message::Message;
use crate::record::{MigrationId, Record, Role};
use crate::source::{Outcome, SourceGuest, SourceHandover, SourceInput, SourceOrder, SourcePhase, SourceRecord};
use crate::target::{TargetGuest, TargetHandover, TargetInput, TargetOrder, TargetPhase, TargetRecord};
use crate::words::{FailureReason, Intent, Report, Wait};

#[derive(Clone, Debug)]
pub(super) enum MigrationHalf {
    Queued,
    Source(SourceHandover),
    Target(TargetHandover),
}

/// The fixed facts of a migration, known when it begins.
#[derive(Clone, Debug)]
pub(super) struct Begin<O> {
    pub(super) role: Role,
    pub(super) vm: String,
    /// The host at the other end.
    pub(super) peer: String,
    /// Priority: greater goes first.
    pub(super) priority: u8,
    /// What the target's QEMU is started from. `None`: not known, or not any more.
    pub(super) offer: Option<O>,
    /// How long the copy may take until the guest is stopped. `None`: the default.
    pub(super) deadline: Option<Duration>,
    /// Whether the migration was begun as a hold.
    pub(super) is_hold: bool,
    /// How long the guest may be held. `None`: the guest is not held, or not any more.
    pub(super) hold: Option<HoldLimits>,
}

impl<O> Begin<O> {
    /// Returns the facts of a migration of which no more is known.
    pub(super) fn new(role: Role, vm: String, peer: String) -> Begin<O> {
        Begin { role, vm, peer, priority: 0, offer: None, deadline: None, is_hold: false, hold: None }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ManagedMigration<O> {
    pub(super) begin: Begin<O>,
    /// The order in which migrations began: a smaller number began earlier.
    pub(super) number: u64,
    pub(super) detail: String,
    /// Whether [`Self::detail`] is the target's reason, which the source received.
    pub(super) has_targets_reason: bool,
    pub(super) last_words: String,
    pub(super) half: MigrationHalf,
    /// What was last asked for, and when that is asked for again.
    pub(super) write: RepeatedWant<Vec<Record>>,
    pub(super) order: RepeatedWant<Order>,
    pub(super) send: RepeatedWant<Message<O>>,
    pub(super) wait: Option<(Wait, Duration)>,
    /// What was announced of the migration.
    pub(super) announced: Announced,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Announced {
    pub(super) stage: Option<MigrationPhase>,
    pub(super) in_doubt: bool,
    pub(super) why: Option<FailureReason>,
    pub(super) report: Option<Report>,
    pub(super) outcome: Option<Outcome>,
}

/// What a migration wants now.
pub(super) struct MigrationWants<O> {
    pub(super) write: Option<Vec<Record>>,
    pub(super) order: Option<Order>,
    pub(super) message: Option<Message<O>>,
    pub(super) wait: Option<Wait>,
}

impl MigrationHalf {
    pub(super) fn set_contact(&mut self, contact: bool) {
        match self {
            MigrationHalf::Source(source) => source.handle(SourceInput::Contact(contact)),
            MigrationHalf::Target(target) => target.handle(TargetInput::Contact(contact)),
            MigrationHalf::Queued => {}
        }
    }

    pub(super) fn not_understood(&mut self) {
        match self {
            MigrationHalf::Source(source) => source.handle(SourceInput::NotUnderstood),
            MigrationHalf::Target(target) => target.handle(TargetInput::NotUnderstood),
            MigrationHalf::Queued => {}
        }
    }

    pub(super) fn elapsed(&mut self, wait: Wait) {
        match self {
            MigrationHalf::Source(source) => source.handle(SourceInput::Elapsed(wait)),
            MigrationHalf::Target(target) => target.handle(TargetInput::Elapsed(wait)),
            MigrationHalf::Queued => {}
        }
    }

    /// Notes that an order has been given. Until the edge has answered, QEMU's state is not known: QEMU may start to
    /// migrate, or be started, even if the migration is called off now.
    pub(super) fn ordered(&mut self, order: Order) {
        match (self, order) {
            (MigrationHalf::Source(source), Order::Source(SourceOrder::Migrate)) => {
                source.handle(SourceInput::Guest(SourceGuest::Unknown));
            }
            (MigrationHalf::Target(target), Order::Target(TargetOrder::Start)) => {
                target.handle(TargetInput::Guest(TargetGuest::Unknown));
            }
            _ => {}
        }
    }
}

impl<O: Clone + PartialEq> ManagedMigration<O> {
    pub(super) fn new(begin: Begin<O>, number: u64, half: MigrationHalf) -> ManagedMigration<O> {
        ManagedMigration {
            begin,
            number,
            detail: String::new(),
            has_targets_reason: false,
            last_words: String::new(),
            half,
            write: RepeatedWant::default(),
            order: RepeatedWant::default(),
            send: RepeatedWant::default(),
            wait: None,
            announced: Announced::default(),
        }
    }

    pub(super) fn wants(&self, id: MigrationId) -> MigrationWants<O> {
        let Begin { role, vm, peer, priority, offer, .. } = &self.begin;
        let begin = || Record::Begin { id, role: *role, peer: peer.clone(), vm: vm.clone() };
        match &self.half {
            MigrationHalf::Queued => {
                let message = (*role == Role::Target).then(|| self.report(id, Report::Queued, None));
                MigrationWants { write: None, order: None, message, wait: None }
            }
            MigrationHalf::Source(source) => {
                let wants = source.wants();
                let write = wants.write.map(|record| match record {
                    SourceRecord::Begin => vec![begin()],
                    record => vec![Record::Source(id, record)],
                });
                let message = wants.intent.map(|intent| Message::Intent {
                    id,
                    intent,
                    vm: vm.clone(),
                    priority: *priority,
                    offer: offer.clone().filter(|_| intent == Intent::Prepare),
                    detail: if intent == Intent::Abort { self.reason() } else { String::new() },
                });
                MigrationWants { write, order: wants.order.map(Order::Source), message, wait: wants.wait }
            }
            MigrationHalf::Target(target) => {
                let wants = target.wants();
                let write = wants.write.map(|record| match record {
                    TargetRecord::Begin => vec![begin()],
                    // A migration that is refused before it began has no beginning on disk.
                    TargetRecord::Refused => vec![begin(), Record::Target(id, record)],
                    record => vec![Record::Target(id, record)],
                });
                let message = wants.report.map(|report| self.report(id, report, target.why()));
                MigrationWants { write, order: wants.order.map(Order::Target), message, wait: wants.wait }
            }
        }
    }

    /// Returns whether this end called the migration off for a reason of its own. What the other end says after that
    /// only follows from this reason.
    pub(super) fn has_own_reason(&self) -> bool {
        let is_source = matches!(self.half, MigrationHalf::Source(_));
        let knows = match self.why() {
            Some(
                FailureReason::Cancelled
                | FailureReason::Deadline
                | FailureReason::GuestChanged
                | FailureReason::NotUnderstood,
            ) => true,
            Some(FailureReason::QemuEnded) => !self.detail.is_empty(),
            _ => false,
        };
        is_source && knows
    }

    /// Returns whether the other end, or a person, called the migration off and said why.
    pub(super) fn is_ended_by_word(&self) -> bool {
        match self.half {
            MigrationHalf::Target(_) => {
                matches!(self.why(), Some(FailureReason::Cancelled | FailureReason::Aborted))
            }
            MigrationHalf::Source(_) => self.has_targets_reason && self.why() == Some(FailureReason::TargetRefused),
            MigrationHalf::Queued => false,
        }
    }

    pub(super) fn why(&self) -> Option<FailureReason> {
        match &self.half {
            MigrationHalf::Source(source) => source.why(),
            MigrationHalf::Target(target) => target.why(),
            MigrationHalf::Queued => None,
        }
    }

    /// Returns why a source called the migration off, for its target. Empty if the target did.
    fn reason(&self) -> String {
        match (self.why(), self.detail.as_str()) {
            (None | Some(FailureReason::TargetRefused), _) => String::new(),
            (Some(why), "") => why.words().to_owned(),
            (Some(why), detail) => format!("{}: {detail}", why.words()),
        }
    }

    /// Takes over the source's reason for calling off, unless this target has called off itself.
    pub(super) fn take_reason(&mut self, intent: Intent, detail: String) {
        let is_new = matches!(self.half, MigrationHalf::Target(_)) && self.why().is_none();
        if intent == Intent::Abort && is_new && !detail.is_empty() {
            self.detail = detail;
        }
    }

    pub(super) fn report(&self, id: MigrationId, report: Report, why: Option<FailureReason>) -> Message<O> {
        let (detail, last_words) = match why {
            None => Default::default(),
            // The source gave this reason itself.
            Some(FailureReason::Aborted) => (String::new(), self.last_words.clone()),
            Some(FailureReason::Cancelled) if self.detail.is_empty() => {
                ("somebody called it off there".into(), self.last_words.clone())
            }
            Some(_) => (self.detail.clone(), self.last_words.clone()),
        };
        Message::Report { id, report, why, detail, last_words }
    }

    /// Adds events for what has changed since the last call.
    pub(super) fn announce(&mut self, id: MigrationId, actions: &mut VecDeque<Action<O>>) {
        let summary = self.summary(id);
        let mut event = |event| actions.push_back(Action::Event(id, event));
        if self.announced.stage != Some(summary.stage) {
            event(match summary.stage {
                MigrationPhase::Queued => MigrationEvent::Queued,
                stage => MigrationEvent::Phase { stage },
            });
        }
        if let Some(why) = summary.why.filter(|why| self.announced.why != Some(*why)) {
            event(MigrationEvent::CalledOff { why, detail: summary.detail });
        }
        if summary.in_doubt && !self.announced.in_doubt {
            event(MigrationEvent::InDoubt);
        }
        // Only once: if the guest ends later, that does not concern this migration.
        if let Some(outcome) = summary.outcome.filter(|_| self.announced.outcome.is_none()) {
            event(MigrationEvent::Over { outcome });
        }
        self.announced = Announced {
            stage: Some(summary.stage),
            in_doubt: summary.in_doubt,
            why: summary.why,
            report: self.announced.report,
            outcome: self.announced.outcome.or(summary.outcome),
        };
    }

    pub(super) fn summary(&self, id: MigrationId) -> MigrationSummary {
        let (stage, in_doubt) = match &self.half {
            MigrationHalf::Queued => (MigrationPhase::Queued, false),
            MigrationHalf::Source(source) => (MigrationPhase::Source(source.phase()), source.is_in_doubt()),
            MigrationHalf::Target(target) => (MigrationPhase::Target(target.phase()), target.is_in_doubt()),
        };
        MigrationSummary {
            id,
            role: self.begin.role,
            vm: self.begin.vm.clone(),
            peer: self.begin.peer.clone(),
            stage,
            priority: self.begin.priority,
            is_hold: self.begin.is_hold,
            is_to_be_held: self.begin.hold.is_some(),
            why: self.why(),
            detail: match self.why() {
                // What a QEMU says that a person had ended is no reason.
                Some(FailureReason::Cancelled) => self.detail.clone(),
                _ if self.detail.is_empty() => self.last_words.clone(),
                _ => self.detail.clone(),
            },
            in_doubt,
            outcome: self.outcome(),
        }
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        match &self.half {
            MigrationHalf::Queued => None,
            MigrationHalf::Source(source) => source.outcome(),
            MigrationHalf::Target(target) => target.outcome(),
        }
    }

    /// Returns whether the migration counts against the limit of migrations at once.
    pub(super) fn takes_slot(&self) -> bool {
        !matches!(self.half, MigrationHalf::Queued) && self.outcome().is_none()
    }

    pub(super) fn is_done(&self) -> bool {
        match &self.half {
            MigrationHalf::Queued => false,
            MigrationHalf::Source(source) => source.phase() == SourcePhase::Done,
            MigrationHalf::Target(target) => target.phase() == TargetPhase::Done,
        }
    }
}
