//! What the two ends want, and what of it is under way.

use skein_handover::{Intent, Report, SourceOrder, SourceRecord, TargetOrder, TargetRecord, Wait};

use super::state::{Agent, TargetQemu, World};

impl World {
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
}
