//! What people want.

use skein_handover::MigrationId;

use super::index::{HostIx, VmIx};
use crate::world::Time;

/// A person's wish that a VM is moved.
#[derive(Clone, Debug)]
pub struct Wish {
    pub at: Time,
    pub vm: VmIx,
    pub to: HostIx,
    pub priority: u8,
    /// How long after the start of the migration the person cancels it.
    pub cancel_after: Option<Time>,
    /// Whether the guest is to be held. If it is, how long after the start of the migration a person has it switch,
    /// each time.
    pub switch_after: Option<Vec<Time>>,
    /// Whether a person had the guest switch.
    pub switched: bool,
    /// How often a wish that is not possible is tried again.
    pub tries: u32,
    pub done: bool,
    /// The migration that came of the wish.
    pub id: Option<MigrationId>,
    /// The host that the migration began on.
    pub from: Option<HostIx>,
}

impl Wish {
    pub fn new(at: Time, vm: VmIx, to: HostIx) -> Wish {
        Wish {
            at,
            vm,
            to,
            priority: 0,
            cancel_after: None,
            switch_after: None,
            switched: false,
            tries: 100,
            done: false,
            id: None,
            from: None,
        }
    }
}
