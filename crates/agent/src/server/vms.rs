//! Answers requests about VMs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skein_api::{Reply, StartOptions, VmOrigin};
use skein_inventory::definition::Definition;

use super::refusal::{Answered, is_socket, unadopted};
use super::request_server::{AskedBy, RequestServer};
use crate::named_starts::StartOutcome;
use crate::vms::Vm;

/// Bounds the wait for the same start that another thread is at. Whoever asked asks again.
pub(super) const START_WAIT_TIME: Duration = Duration::from_secs(60);

/// Bounds the VMs that a person had this host forget, as controllers are told. Of others a controller takes note in a
/// minute.
const FORGOTTEN_MAX: usize = 1024;

pub(super) fn shown(vm: &Arc<Vm>) -> Reply {
    Reply::Vm(Box::new(vm.show()))
}

impl RequestServer {
    pub(super) fn vm_start(
        &self,
        from: VmOrigin,
        options: StartOptions,
        by: AskedBy,
        id: Option<&str>,
    ) -> Answered<Reply> {
        let Some(id) = id else { return Ok(shown(&self.start_vm(from, options, by)?)) };
        let name = match &from {
            VmOrigin::Name(name) => Some(name.clone()),
            VmOrigin::Definition { file, text } => Definition::parse(text, file).ok().map(|defined| defined.name),
        };
        let vm = || self.vms.get(name.as_deref()?).ok();
        let runs = || vm().is_some_and(|vm| vm.any_process().is_some());
        let start = || self.start_vm(from.clone(), options.clone(), by).map(drop).map_err(|refusal| *refusal);
        match self.named_starts.once(id, START_WAIT_TIME, runs, start)? {
            // The guest may have ended since.
            StartOutcome::Started => Ok(vm().map_or(Reply::Done, |vm| shown(&vm))),
            StartOutcome::NotStarted(why) => Ok(Reply::NotStarted(why)),
        }
    }

    pub(super) fn vm_adopt(&self, qmp: &Path, name: Option<String>) -> Answered<Reply> {
        is_socket(qmp)?;
        Ok(shown(&self.vms.adopt(qmp, name).map_err(|error| unadopted(qmp, error))?))
    }

    pub(super) fn vm_list(&self) -> Reply {
        Reply::Vms { vms: self.vms.all().iter().map(|vm| vm.show()).collect() }
    }

    pub(super) fn vm_show(&self, name: &str) -> Answered<Reply> {
        let vm = self.vms.get(name)?;
        self.vms.look(&vm);
        Ok(shown(&vm))
    }

    pub(super) fn vm_stop(&self, name: &str, timeout_s: u64, force: bool) -> Answered<Reply> {
        Ok(shown(&self.vms.stop(name, Duration::from_secs(timeout_s), force)?))
    }

    pub(super) fn vm_resume(&self, name: &str) -> Answered<Reply> {
        Ok(shown(&self.vms.resume(name)?))
    }

    pub(super) fn vm_forget(&self, name: &str, by: AskedBy) -> Answered<Reply> {
        let _turn = self.leader_questions.take_turn(name)?;
        self.vms.forget(name)?;
        // A controller knows why it asks.
        if by == AskedBy::Person {
            let mut forgotten = self.forgotten.lock();
            if forgotten.len() >= FORGOTTEN_MAX {
                forgotten.pop_first();
            }
            forgotten.insert(name.to_owned());
        }
        Ok(Reply::Done)
    }
}
