//! What a target's worker needs of its agent and its host.

use std::path::PathBuf;
use std::sync::Arc;

use skein_hypervisor::{DeviceSnapshot, Guest};

use crate::migrations::input::Input;
use crate::migrations::offer::Offer;

/// What a target's worker needs of its agent and its host, for its one migration. What it cannot have it is told in
/// words for people: they become the migration's reason.
pub(super) trait TargetEnvironment: Send {
    // The VM.

    /// Whether this host has a VM for the guest.
    fn has_vm(&self) -> bool;

    /// Returns the guest, if what is to run it answers.
    fn guest(&self) -> Option<Arc<dyn Guest>>;

    /// Returns the process that is to run the guest, also one that does not answer.
    fn process(&self) -> Option<u32>;

    /// Returns the last words of what was to run the guest, once it has ended.
    fn last_words(&self) -> Option<String>;

    // What the guest is let in by.

    /// Reserves room, and starts what is to run the guest, as it is offered.
    fn start(&mut self, offer: &Offer) -> Result<Arc<dyn Guest>, String>;

    /// Compares what the guest's hypervisor here is composed of with the guest, as its source sees it now: the guest
    /// must not run in another. Returns the devices that it had then.
    fn compare(&mut self, guest: &dyn Guest) -> Result<DeviceSnapshot, String>;

    /// Sets aside what this host has in the place of what comes with the guest.
    fn set_aside(&mut self) -> Result<(), String>;

    /// Returns the path where the hypervisor is to listen for the guest. Nothing is there.
    fn incoming_socket(&self) -> PathBuf;

    /// The hypervisor listens: joins what the source sends to it.
    fn open_channels(&mut self, guest: &dyn Guest, offer: &Offer);

    /// Nothing of the guest gets here any more.
    fn close_channels(&self);

    /// Returns why a guest that came whole has lost the state of its TPM on the way; none: it has not.
    fn lost_tpm_state(&self) -> Option<String>;

    /// The process is gone, and the guest never ran here: removes what came of it.
    fn drop_received(&mut self);

    /// Gives back the room.
    fn release_room(&mut self);

    /// Keeps the marks of the guest that is this host's now, if the other one keeps its RAM.
    fn keep_marks(&mut self);

    /// Has this thread run before others: a guest waits for it.
    fn raise_priority(&self);

    // Who is told.

    /// Tells the owner of the migrations.
    fn tell(&self, inputs: Vec<Input>);

    /// Returns this host's name.
    fn host(&self) -> &str;

    /// Adds a line to the migration's event log, here and at the source.
    fn note_at_both_ends(&self, text: String);
}
