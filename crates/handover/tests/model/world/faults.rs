//! What may go wrong.

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
    /// The migration is held, and people say at any time that the guest may switch.
    pub hold: bool,
    /// NICs of the source's host write the guest's RAM at the target.
    pub rails: bool,
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
        hold: false,
        rails: false,
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
    /// A guest that is held switches though nobody said so.
    SwitchUnasked,
    /// The target hands the last byte to its QEMU before the rails are closed.
    RailsOpen,
    /// What follows the pages reaches the target's QEMU though the agent that received the pages is gone.
    ReceiverForgotten,
}
