//! Orders on their way to the QEMUs. Until an order is carried out, its agent learns nothing about QEMU that speaks
//! against the order.

use skein_handover::{SourceGuest, SourceInput, SourceOrder, TargetGuest, TargetInput, TargetOrder};

use super::state::{SourceQemu, TargetQemu, World};

impl World {
    pub(super) fn order_source(&mut self, order: SourceOrder) -> Option<()> {
        self.source_orders.is_none().then_some(())?;
        self.source_orders = Some(order);
        if order == SourceOrder::Migrate {
            self.tell_source(SourceInput::Guest(SourceGuest::Unknown))?;
        }
        Some(())
    }

    pub(super) fn order_target(&mut self, order: TargetOrder) -> Option<()> {
        self.target_orders.is_none().then_some(())?;
        self.target_orders = Some(order);
        if order == TargetOrder::Start {
            self.tell_target(TargetInput::Guest(TargetGuest::Unknown))?;
        }
        Some(())
    }

    pub(super) fn carry_out_source(&mut self, order: SourceOrder) -> Option<()> {
        self.source_orders = None;
        if order == SourceOrder::Migrate {
            self.tell_source(SourceInput::Guest(SourceGuest::Unknown))?;
        }
        self.obey_source(order);
        Some(())
    }

    pub(super) fn carry_out_target(&mut self, order: TargetOrder) -> Option<()> {
        self.target_orders = None;
        if order == TargetOrder::Start {
            self.tell_target(TargetInput::Guest(TargetGuest::Unknown))?;
        }
        self.obey_target(order)
    }

    /// Tells the source the state of its QEMU.
    pub(super) fn ask_source_guest(&mut self) -> Option<()> {
        (self.source_orders != Some(SourceOrder::Migrate)).then_some(())?;
        self.tell_source(SourceInput::Guest(self.source_guest()))
    }

    /// Tells the target the state of its QEMU.
    pub(super) fn ask_target_guest(&mut self, guest: TargetGuest) -> Option<()> {
        (self.target_orders != Some(TargetOrder::Start)).then_some(())?;
        self.tell_target(TargetInput::Guest(guest))?;
        // QEMU was seen alive, and the guest not running: if QEMU ends now, the guest never ran.
        self.watched |= matches!(self.target_qemu, TargetQemu::Waiting | TargetQemu::Loaded | TargetQemu::Failed);
        Some(())
    }

    /// Tells the source that the migration is over, if that is so.
    pub(super) fn tell_migration_failed(&mut self) -> Option<()> {
        let is_over = [SourceQemu::Resumed, SourceQemu::Stopped, SourceQemu::Halted];
        is_over.contains(&self.source_qemu).then_some(())?;
        self.tell_source(SourceInput::MigrationFailed)
    }
}
