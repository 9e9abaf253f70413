//! Is what checks a migration and begins it: the agent, or a fake.

use skein_api::{CheckResult, Refusal};
use skein_handover::MigrationId;
use skein_hypervisor::ProcessId;

use super::machine::{AskedMigration, MigrationEnd, NotBegun};
use crate::events::AgentEvent;

/// The way of a guest's pages into the target's RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The target's agent writes the pages.
    Direct,
    /// The target's QEMU writes the pages.
    ThroughQemu,
}

/// The place of a migration among the attempts of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptNumber {
    /// The number, from 1 on.
    pub(crate) number: u32,
    /// The number of attempts that are allowed.
    pub(crate) of: u32,
    /// The migration before this one.
    pub(crate) before: Option<MigrationId>,
}

/// Checks migrations, begins them, and knows how they end.
pub(crate) trait Starter: Send + Sync + 'static {
    /// The results of a check that are needed to begin.
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
    /// The migration is not begun.
    fn begin(
        &self,
        asked: &AskedMigration,
        checked: Self::Checked,
        id: MigrationId,
        attempt: AttemptNumber,
    ) -> Result<Placement, Refusal>;

    /// Calls a migration off, if that is still possible.
    fn call_off(&self, id: MigrationId);

    /// Returns how a migration has ended; `None`: it has not.
    fn end(&self, id: MigrationId) -> Option<MigrationEnd>;

    /// Returns whether a migration was ever begun.
    fn knows(&self, id: MigrationId) -> bool;

    /// Tells an event of a migration of this VM.
    fn tell(&self, id: MigrationId, vm: &str, event: &AgentEvent);

    /// Returns the process of the guest of this name: another process is another guest. `None`: the guest does not run
    /// here.
    fn guest(&self, vm: &str) -> Option<ProcessId>;

    /// Returns how the VM's pages would be placed in a migration that began now.
    fn placement(&self, vm: &str) -> Placement;
}

impl From<Refusal> for NotBegun {
    fn from(refusal: Refusal) -> NotBegun {
        NotBegun::Refused(refusal)
    }
}
