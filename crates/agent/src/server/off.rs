//! Answers what controllers ask of a VM that is moved while it is off.

use std::path::PathBuf;

use skein_api::Reply;
use skein_inventory::facts::GuestFiles;

use super::refusal::{Answered, refusal};
use super::request_server::RequestServer;
use super::vms::{START_WAIT_TIME, shown};
use crate::error_chain;
use crate::named_starts::StartOutcome;
use crate::vms::HostFiles;

impl RequestServer {
    pub(super) fn vm_offer(&self, name: &str) -> Answered<Reply> {
        let offered = self.vms.offer(name, |opened| self.host_files(opened))?;
        Ok(Reply::Offer { offer: serde_json::to_string(&offered).expect("plain data always serialises") })
    }

    pub(super) fn vm_reserve(&self, reservation: &str, offer: &str) -> Answered<Reply> {
        let offered = serde_json::from_str(offer).map_err(|error| {
            let message = format!("what the other host keeps of the VM cannot be read: {}", error_chain(&error));
            Box::new(refusal(message, "see that both hosts have the same release of skein"))
        })?;
        Ok(shown(&self.vms.reserve(offered, reservation, |opened| self.host_files(opened))?))
    }

    pub(super) fn vm_release(&self, name: &str, reservation: &str, keep: bool) -> Answered<Reply> {
        let vm = self.vms.release(name, reservation, keep)?;
        Ok(vm.as_ref().map_or(Reply::Done, shown))
    }

    fn host_files(&self, opened: Vec<PathBuf>) -> HostFiles {
        let facts = self.starter.own_facts(None, &GuestFiles { opened, loaded: Vec::new() });
        HostFiles { host: facts.name, boot_id: facts.boot_id, files: facts.files }
    }

    /// Gives a VM up for a move, once or never.
    pub(super) fn vm_leave(&self, name: &str, reservation: &str) -> Answered<Reply> {
        // A VM that is gone, and was not given up here, went another way.
        let has_left = || self.vms.has_left(reservation);
        let leave = || {
            let _turn = self.leader_questions.take_turn(name)?;
            let left = self.vms.leave(name, reservation);
            left.map_err(|error| refusal(error_chain(&error), error.cure()))
        };
        match self.named_starts.once(reservation, START_WAIT_TIME, has_left, leave)? {
            StartOutcome::Started => Ok(Reply::Done),
            StartOutcome::NotStarted(why) => Ok(Reply::NotForgotten(why)),
        }
    }
}
