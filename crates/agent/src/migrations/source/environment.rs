//! Declares what a source's worker needs of its agent and its host.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use skein_api::CopyProgress;
use skein_dataplane::source::SourcePages;
use skein_hypervisor::Guest;
use skein_inventory::Composition;
use skein_pages::PageCounts;

use super::hold::Freshness;
use super::links::PathSample;
use crate::migrations::input::Input;
use crate::own_socket::SocketError;
use crate::vms::VmError;

/// Gives a source's worker what it needs of its agent and its host, for one migration.
pub(super) trait SourceEnvironment: Send {
    // The VM.

    /// Returns the guest, if its hypervisor answers.
    fn guest(&self) -> Option<Arc<dyn Guest>>;

    /// Returns whether a process runs the guest, also a process that does not answer.
    fn has_process(&self) -> bool;

    /// Returns the composition that the target was told; `None`: the target was told nothing.
    fn promised_composition(&self) -> Option<Composition>;

    /// Returns the last words of the process that ran the guest, once the process has ended.
    fn last_words(&self) -> Option<String>;

    /// Keeps why the guest's process ended, for those who ask for the VM later.
    fn explain_end(&self, why: &str);

    /// Has the pages of the VM's next migrations go through the target's QEMU, for this reason.
    fn set_indirect(&self, why: String);

    // What the copy takes.

    /// Reserves room on this host for the copy.
    ///
    /// # Errors
    /// There is no room. The error says which limit is in the way, and what to do.
    fn reserve(&mut self) -> Result<(), String>;

    /// Writes down that the guest leaves, and listens for the hypervisor's channels. Returns the path of the socket.
    ///
    /// # Errors
    /// The VM or the offer is gone, or nothing can be written or listened to.
    fn open_channels(&mut self, guest: &dyn Guest) -> Result<PathBuf, OpenChannelsError>;

    /// Closes the main channel, so that a hypervisor that does not hear gives up. The other channels are read to their
    /// end.
    fn give_up_channels(&self);

    /// Leaves the channels to the keeper, because the agent ends.
    fn leave_channels(&mut self);

    /// Returns why a channel is not carried; `None`: all are.
    fn channels_failure(&self) -> Option<String>;

    /// Returns what becomes of the guest's pages; `None`: the channels were never opened.
    fn pages(&self) -> Option<Arc<dyn CopiedPages>>;

    /// Removes what this host has of the VM: the process has ended, and the guest is the other host's. Keeps the
    /// guest's RAM if that was agreed on. Returns a line for the event log.
    fn release(&mut self) -> Option<String>;

    /// Has this thread run before others, because a guest stands still.
    fn raise_priority(&self);

    /// Gives the hypervisor a word on its main channel, as if from the target. Nothing but whole words of the target
    /// may have been written there so far.
    ///
    /// # Errors
    /// The channel is gone.
    fn give_word(&self, word: &[u8]) -> io::Result<()>;

    // The paths to the target.

    /// Returns the paths as they are now.
    fn paths(&self) -> Vec<PathSample>;

    /// Returns the bits a second that the paths carry together while there is more than enough to send; 0: not known.
    fn carried_bits_per_s(&self) -> u64;

    /// Returns how many guests are copied from here to the target now, this guest included.
    fn copies_to_target(&self) -> u32;

    /// Returns the bits a second that these NICs say they can carry together; `None`: not all of them say.
    fn nics_bits_per_s(&self, nics: &BTreeSet<String>) -> Option<f64>;

    // Telling others.

    /// Tells the owner of the migrations.
    fn tell(&self, inputs: Vec<Input>);

    /// Adds a line to the migration's event log.
    fn note(&self, text: String);

    /// Notes that the guest stands still for its migration from now on.
    fn note_standstill(&self);

    /// Shows how far the copy is.
    fn show_progress(&self, copy: CopyProgress);

    /// Shows how fresh the target of a held guest is; `None`: the guest is not held any more.
    fn show_freshness(&self, freshness: Option<Freshness>);

    /// Shows how far the copy is, and adds that to the event log.
    fn log_progress(&self, copy: CopyProgress);
}

/// The reason why a hypervisor's channels cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenChannelsError {
    #[error("it was begun by an agent that is gone")]
    NoOffer,
    #[error("it is gone")]
    NoVm,
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Tells what becomes of a guest's pages: see [`SourcePages`].
pub(super) trait CopiedPages: Send + Sync {
    fn counts(&self) -> PageCounts;
    fn is_direct(&self) -> Option<bool>;
    fn why_not_direct(&self) -> String;
    fn not_compared(&self) -> String;
    /// Returns what is to be told of rails, once.
    fn take_rail_words(&self) -> Vec<String>;
    fn builds_on_kept(&self) -> bool;
    fn direct_placement_failure(&self) -> Option<String>;
    /// Returns the bytes a second that the migration may hand over; `None`: nothing limits it but the links.
    fn rate_limit(&self) -> Option<f64>;
    /// Returns about how many bytes the last bytes of the RAM take on the wire, in the first round; `None`: not known.
    fn remaining_wire_bytes(&self, remaining_bytes: u64) -> Option<u64>;
    fn set_held_bytes_max(&self, bytes: u64);
    fn held_bytes(&self) -> u64;
    fn held_back_bytes(&self) -> u64;
    fn failed(&self) -> Option<String>;
    fn failed_here(&self) -> Option<String>;
}

impl CopiedPages for SourcePages {
    fn counts(&self) -> PageCounts {
        SourcePages::counts(self)
    }

    fn is_direct(&self) -> Option<bool> {
        SourcePages::is_direct(self)
    }

    fn why_not_direct(&self) -> String {
        SourcePages::why_not_direct(self)
    }

    fn not_compared(&self) -> String {
        SourcePages::not_compared(self)
    }

    fn take_rail_words(&self) -> Vec<String> {
        SourcePages::take_rail_words(self)
    }

    fn builds_on_kept(&self) -> bool {
        SourcePages::builds_on_kept(self)
    }

    fn direct_placement_failure(&self) -> Option<String> {
        SourcePages::direct_placement_failure(self)
    }

    fn rate_limit(&self) -> Option<f64> {
        SourcePages::rate_limit(self)
    }

    fn remaining_wire_bytes(&self, remaining_bytes: u64) -> Option<u64> {
        SourcePages::remaining_wire_bytes(self, remaining_bytes)
    }

    fn set_held_bytes_max(&self, bytes: u64) {
        SourcePages::set_held_bytes_max(self, bytes);
    }

    fn held_bytes(&self) -> u64 {
        SourcePages::held_bytes(self)
    }

    fn held_back_bytes(&self) -> u64 {
        SourcePages::held_back_bytes(self)
    }

    fn failed(&self) -> Option<String> {
        SourcePages::failed(self)
    }

    fn failed_here(&self) -> Option<String> {
        SourcePages::failed_here(self)
    }
}
