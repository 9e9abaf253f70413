//! Migrations by hand: the agent of a host asks before a person moves a guest from there, as the host may lose contact
//! meanwhile, and be proven to be off.
//!
//! Where the guest may go is in the store before a yes is said. Should its host be proven off, the guest is started
//! elsewhere only once the target has reported that it does not have the guest, or is off, too. That is kept until the
//! guest's host says that the guest has stayed, or another host has it.

use skein_api::MigrationId;
use skein_api::cluster::HostMode;

use super::start_by_hand::{Against, refused_by_hand};
use crate::answer::Answer;
use crate::records::{MoveByHandRecord, VmRecord};
use crate::state::{Controller, Planted};
use crate::words::not_active_words;

impl Controller {
    /// Answers whether a guest may be moved from a host whose agent asks.
    pub(crate) fn move_by_hand(&mut self, host: &str, vm: &str, to: &str, migration: Option<MigrationId>) -> Answer {
        if self.has(Planted::AnyMoveByHand) {
            return Answer::Done;
        }
        match self.movable_by_hand(host, vm, to) {
            Ok(found) => {
                if let Some(migration) = migration {
                    let move_by_hand = Some(MoveByHandRecord { to: to.to_owned(), migration });
                    self.tables.put(vm, VmRecord { move_by_hand, ..found });
                }
                Answer::Done
            }
            Err(against) => refused_by_hand(against),
        }
    }

    /// Returns what is known of a guest that may be moved.
    fn movable_by_hand(&self, host: &str, vm: &str, to: &str) -> Result<VmRecord, Against> {
        if let Some(against) = self.unheard_or_claimed(host, vm) {
            return Err(against);
        }
        let Some(record) = self.tables.vms.get(vm).map(|found| &found.value) else {
            return Err((true, format!("'{host}' has not reported '{vm}' yet"), "ask again in a moment".into()));
        };
        match record.host.as_deref() {
            Some(home) if home == host => {}
            Some(home) => return Err(self.of_another(home, vm, host)),
            None => return Err((true, format!("no host has '{vm}' yet"), "ask again in a moment".into())),
        }
        if self.tables.removed.contains_key(to) && !self.tables.hosts.contains_key(to) {
            let message = format!("'{to}' was removed from the cluster, which would not know of '{vm}' there");
            return Err((false, message, format!("choose another host, or have '{to}' join again: skein join")));
        }
        let mode = self.tables.hosts.get(to).map(|found| found.value.mode);
        if mode.is_some_and(|mode| mode != HostMode::Active) {
            let (message, cure) = not_active_words(to);
            return Err((false, message, cure));
        }
        if mode.is_some() && self.reporting(to).is_none() {
            let message = format!("'{to}' does not report to the controllers: it may be switched off, with its guests");
            return Err((true, message, format!("see that '{to}' reports (skein host list), or choose another host")));
        }
        Ok(record.clone())
    }
}
