//! Answers requests about VMs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skein_api::{Reply, StartOptions, VmOrigin};

use super::refusal::{Answered, is_socket, unadopted};
use super::request_server::RequestServer;
use crate::vms::Vm;

fn shown(vm: &Arc<Vm>) -> Reply {
    Reply::Vm(Box::new(vm.show()))
}

impl RequestServer {
    pub(super) fn vm_start(&self, from: VmOrigin, options: StartOptions) -> Answered<Reply> {
        Ok(shown(&self.start_vm(from, options)?))
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

    pub(super) fn vm_forget(&self, name: &str) -> Answered<Reply> {
        self.vms.forget(name)?;
        Ok(Reply::Done)
    }
}
