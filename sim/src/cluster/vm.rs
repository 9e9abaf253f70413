//! A guest, as it truly is.

use super::index::QemuIx;
use crate::world::Time;

/// A guest, as it truly is: what no agent knows, and every check compares with.
pub struct Vm {
    /// The version of each page at the moment when the guest last ran.
    pub image: Vec<u32>,
    /// The last version that the guest wrote to any page.
    pub version: u32,
    /// The QEMU in which the guest runs or ran last.
    pub holder: QemuIx,
    /// The QEMU that held the guest was killed.
    pub lost: bool,
    /// A person vouched for a host that is off: the guest may go on from the state that the other end has.
    pub vouched: bool,
    /// When the guest was stopped, if it does not run now.
    pub stopped_at: Option<Time>,
    /// How many rounds a migration has before the guest is stopped.
    pub rounds: u32,
    /// How many pages the guest changes in each round.
    pub dirty: u64,
}
