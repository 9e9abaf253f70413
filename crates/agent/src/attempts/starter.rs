//! What checks a migration and begins it: the agent, or a fake.

use skein_api::{CheckResult, Refusal};
use skein_handover::MigrationId;
use skein_hypervisor::ProcessId;

use super::machine::{AskedMigration, MigrationEnd, NotBegun};
use crate::events::AgentEvent;

/// How a guest's pages come into the target's RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The target's agent writes them there.
    Direct,
    /// The target's QEMU does.
    ThroughQemu,
}

/// Which attempt a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptNumber {
    /// From 1 on.
    pub(crate) number: u32,
    /// Attempts that are allowed.
    pub(crate) of: u32,
    /// The migration before this one.
    pub(crate) before: Option<MigrationId>,
}

/// Checks migrations, begins them, and knows how they end.
pub(crate) trait Starter: Send + Sync + 'static {
    /// What a check found out that is needed to begin.
    type Checked: Send;

    /// Finds all that stands against the migration. Something that the check found may block it.
    ///
    /// # Errors
    ///
    /// The check cannot be made.
    fn check(&self, asked: &AskedMigration) -> Result<(CheckResult, Self::Checked), Refusal>;

    /// Begins what was checked, or queues it, as the migration `id`.
    ///
    /// # Errors
    ///
    /// It is not begun.
    fn begin(
        &self,
        asked: &AskedMigration,
        checked: Self::Checked,
        id: MigrationId,
        attempt: AttemptNumber,
    ) -> Result<Placement, Refusal>;

    /// Calls a migration off, if that is still possible.
    fn call_off(&self, id: MigrationId);

    /// Returns how a migration has ended; none: it has not.
    fn end(&self, id: MigrationId) -> Option<MigrationEnd>;

    /// Returns whether a migration was ever begun.
    fn knows(&self, id: MigrationId) -> bool;

    /// Tells an event of a migration of this VM.
    fn tell(&self, id: MigrationId, vm: &str, event: &AgentEvent);

    /// Returns the process of the guest of this name: another process is another guest. None: it does not run here.
    fn guest(&self, vm: &str) -> Option<ProcessId>;

    /// Returns how the VM's pages would be placed in a migration that is begun now.
    fn placement(&self, vm: &str) -> Placement;
}

impl From<Refusal> for NotBegun {
    fn from(refusal: Refusal) -> NotBegun {
        NotBegun::Refused(refusal)
    }
}
