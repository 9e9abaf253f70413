//! Answers what is asked of VMs' serial consoles.

use skein_api::{ConsoleRequest, ConsoleStep, Reply};

use super::refusal::{Answered, refusal};
use super::request_server::RequestServer;
use crate::error_chain;
use crate::vms::VmError;

impl RequestServer {
    pub(super) fn vm_console(&self, asked: &ConsoleRequest) -> Answered<Reply> {
        let vm = self.vms.get(&asked.name);
        let socket = match asked.step {
            ConsoleStep::Begin | ConsoleStep::TakeOver => vm.and_then(|vm| vm.open_console())?,
            // A session that goes on has the console already, and learns that the VM's end closed.
            ConsoleStep::GoOn | ConsoleStep::End => match vm {
                Ok(vm) => vm.console(),
                Err(VmError::Unknown(_)) => Default::default(),
                Err(error) => return Err(error.into()),
            },
        };
        let view = self.consoles.ask(asked, &socket);
        let view = view.map_err(|error| Box::new(refusal(error_chain(&error), error.cure())))?;
        Ok(Reply::Console(Box::new(view)))
    }
}
