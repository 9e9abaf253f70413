//! What the two QEMUs do: as they are ordered, and by themselves.

use skein_handover::{Outcome, SourceGuest, SourceOrder, TargetGuest, TargetInput, TargetOrder};

use super::faults::Error;
use super::state::{Rails, SourceQemu, TargetQemu, World};
use super::step::End::{self, Source as S, Target as T};

impl World {
    pub(super) fn source_runs(&self) -> bool {
        use SourceQemu as Qemu;
        matches!(self.source_qemu, Qemu::Running | Qemu::Migrating | Qemu::Resumed)
    }

    pub(super) fn is_migrating(&self) -> bool {
        use SourceQemu as Qemu;
        matches!(self.source_qemu, Qemu::Migrating | Qemu::HaltedMigrating | Qemu::PreSwitchover | Qemu::Device)
    }

    pub(super) fn source_guest(&self) -> SourceGuest {
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

    pub(super) fn obey_source(&mut self, order: SourceOrder) {
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

    /// Returns the state after a migration. A guest that stood still already when its migration was stopped stays so.
    pub(super) fn after_migration(&self, otherwise: SourceQemu) -> SourceQemu {
        if self.source_qemu == SourceQemu::HaltedMigrating { SourceQemu::Halted } else { otherwise }
    }

    pub(super) fn source_resumed(&mut self) {
        if self.source_qemu == SourceQemu::Halted {
            return;
        }
        self.image_stale |= self.all_sent;
        self.rolled_back |= self.target_ran && !self.proved[0];
        self.broke_word |= self.said_moved && !self.proved[0];
    }

    pub(super) fn obey_target(&mut self, order: TargetOrder) -> Option<()> {
        match order {
            TargetOrder::Start => {
                // A VM that is there already is not started.
                let begins = self.target_qemu == TargetQemu::Absent && !self.moved_in;
                if begins && self.budget.rails {
                    self.rails = Rails::Open;
                }
                self.target_qemu = match self.target_qemu {
                    TargetQemu::Absent if begins => TargetQemu::Waiting,
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

    /// Closes the rails, before the last byte reaches QEMU. `None`: what receives pages is gone, and the rest of the
    /// stream with that.
    pub(super) fn fence(&mut self) -> Option<()> {
        match self.rails {
            Rails::Left | Rails::Ended if self.error != Some(Error::ReceiverForgotten) => return None,
            Rails::Open if self.error != Some(Error::RailsOpen) => self.rails = Rails::Closed,
            _ => {}
        }
        Some(())
    }

    pub(super) fn target_continues(&mut self) {
        if self.target_qemu == TargetQemu::Loaded {
            self.target_qemu = TargetQemu::Running;
            self.target_ran = true;
            self.rolled_back |= self.image_stale && !self.proved[1];
            self.broke_word |= self.said_kept && !self.proved[1];
        }
    }

    /// Cancels the migration, after which the guest stays stopped.
    pub(super) fn cancel_stops(&mut self) {
        self.source_orders = None;
        if self.is_migrating() {
            self.source_qemu = self.after_migration(SourceQemu::Stopped);
            self.stream_broken = true;
        }
    }

    /// Refuses `cont`.
    pub(super) fn refuse_continue(&mut self) -> Option<()> {
        self.spend(|budget| &mut budget.failures[1])?;
        (self.target_qemu == TargetQemu::Loaded).then_some(())?;
        self.target_orders = None;
        self.tell_target(TargetInput::Continuing)?;
        self.tell_target(TargetInput::CannotRun)
    }

    /// Stops the guest at the source, as a person or the guest itself does.
    pub(super) fn halt(&mut self) -> Option<()> {
        let halted = match self.source_qemu {
            SourceQemu::Running | SourceQemu::Resumed => SourceQemu::Halted,
            SourceQemu::Migrating => SourceQemu::HaltedMigrating,
            _ => return None,
        };
        self.spend(|budget| &mut budget.failures[0])?;
        self.source_qemu = halted;
        Some(())
    }

    pub(super) fn migration_goes_on(&mut self) -> Option<()> {
        match self.source_qemu {
            SourceQemu::Migrating | SourceQemu::HaltedMigrating if !self.stream_broken => {
                // Some QEMUs do not hold a guest of which nothing is left to copy.
                self.disturbed |= self.is_held();
                self.source_qemu = SourceQemu::PreSwitchover
            }
            SourceQemu::Device => self.source_qemu = SourceQemu::Completed,
            _ => return None,
        }
        Some(())
    }

    pub(super) fn migration_fails(&mut self) -> Option<()> {
        self.is_migrating().then_some(())?;
        if self.stream_is_whole() {
            self.spend(|budget| &mut budget.failures[0])?;
        }
        self.source_qemu = self.after_migration(SourceQemu::Resumed);
        self.stream_broken = true;
        self.source_resumed();
        Some(())
    }

    pub(super) fn incoming_fails(&mut self) -> Option<()> {
        (self.target_qemu == TargetQemu::Waiting).then_some(())?;
        if !self.stream_broken {
            self.spend(|budget| &mut budget.failures[1])?;
        }
        self.target_qemu = TargetQemu::Failed;
        Some(())
    }

    /// Migrates the guest that was kept again, as a whole.
    pub(super) fn migrate_again(&mut self) -> Option<()> {
        let kept = self.source.machine().is_some_and(|source| source.outcome() == Some(Outcome::CalledOff));
        (kept && self.source_runs() && self.source_orders.is_none()).then_some(())?;
        self.source_qemu = SourceQemu::Completed;
        self.followed = true;
        Some(())
    }

    pub(super) fn end_qemu(&mut self, end: End) -> Option<()> {
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
}
