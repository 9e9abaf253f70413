//! Declares what a target's worker needs of its agent and its host.

use std::path::PathBuf;
use std::sync::Arc;

use skein_hypervisor::{DeviceSnapshot, Guest};

use crate::migrations::input::Input;
use crate::migrations::offer::Offer;

/// Gives a target's worker what it needs of its agent and its host, for one migration. An error is in words for people,
/// because it becomes the migration's reason.
pub(super) trait TargetEnvironment: Send {
    // The VM.

    /// Returns whether this host has a VM for the guest.
    fn has_vm(&self) -> bool;

    /// Returns the guest, if its hypervisor answers.
    fn guest(&self) -> Option<Arc<dyn Guest>>;

    /// Returns the process that is to run the guest, also a process that does not answer.
    fn process(&self) -> Option<u32>;

    /// Returns the last words of the process that was to run the guest, once the process has ended.
    fn last_words(&self) -> Option<String>;

    // Letting the guest in.

    /// Reserves room, and starts a hypervisor for the guest, as the offer says.
    ///
    /// # Errors
    /// There is no room, or the hypervisor does not start.
    fn start(&mut self, offer: &Offer) -> Result<Arc<dyn Guest>, String>;

    /// Compares the composition of the guest's hypervisor here with the guest's composition, as its source sees it now:
    /// the guest must not run in another hypervisor than it left. Returns the devices that the hypervisor here had at
    /// that time.
    ///
    /// # Errors
    /// The compositions differ, or one of them is not known.
    fn compare(&mut self, guest: &dyn Guest) -> Result<DeviceSnapshot, String>;

    /// Writes, beside the saved VMs, what is to be remembered of the guest over a boot of this host. Notes the TPM's
    /// state as it is before the guest's own state comes.
    ///
    /// # Errors
    /// The files cannot be written.
    fn set_aside(&mut self) -> Result<(), String>;

    /// Returns the path of the socket where the hypervisor is to listen for the guest. The path is free.
    fn incoming_socket(&self) -> PathBuf;

    /// Joins the source's channels to the hypervisor, which listens.
    fn open_channels(&mut self, guest: &dyn Guest, offer: &Offer);

    /// Closes the channels, so that nothing more of the guest comes here.
    fn close_channels(&self);

    /// Returns why a guest that came whole has lost the state of its TPM on the way; `None`: the state is here.
    fn lost_tpm_state(&self) -> Option<String>;

    /// Has NICs write the guest's RAM no more, for good.
    ///
    /// # Errors
    /// That is not sure.
    fn fence_rails(&self) -> Result<(), String>;

    /// Lets go of the guest's RAM, which runs in its hypervisor or is needed no more. NICs write nothing from then on.
    fn let_go_of_ram(&mut self);

    /// Removes what came of a guest that never ran here, and whose process has ended.
    fn drop_received(&mut self);

    /// Gives the reserved room back.
    fn release_room(&mut self);

    /// Keeps the marks of the guest, which is this host's now, if the source keeps the guest's RAM.
    fn keep_marks(&mut self);

    /// Has this thread run before others, because a guest waits for it.
    fn raise_priority(&self);

    // Telling others.

    /// Tells the owner of the migrations.
    fn tell(&self, inputs: Vec<Input>);

    /// Returns this host's name.
    fn host(&self) -> &str;

    /// Adds a line to the migration's event log, here and at the source.
    fn note_at_both_ends(&self, text: String);
}
