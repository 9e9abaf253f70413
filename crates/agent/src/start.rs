//! A VM is started on somebody's word, if nothing speaks against it.

use std::sync::Arc;

use skein_api::{Refusal, StartOptions, VmSource};
use skein_machine::definition::Definition;
use skein_machine::{Need, NoRoom};

use crate::facts;
use crate::serve::{Answered, Desk};
use crate::vms::Vm;

impl Desk {
    /// Starts a VM from its file, or a stopped one by its name.
    pub(crate) fn start_vm(&self, from: VmSource, options: StartOptions) -> Answered<Arc<Vm>> {
        let planned = match from {
            VmSource::Definition { file, text } => {
                let definition = Definition::parse(&text, &file).map_err(|error| {
                    Box::new(Refusal { message: error.to_string(), cure: "mend it and start it again".into() })
                })?;
                self.vms.plan(definition, options.as_defined)?
            }
            VmSource::Name(name) => self.vms.plan_again(&name, options.as_defined)?,
        };
        let locks_ram = facts::locks_ram(&planned.launch);
        let (name, need) = (planned.name.clone(), planned.need.map(|need| Need { locks_ram, ..need }));
        let started = self.vms.boot(
            planned,
            || self.rooms.admit_start(&name, need, options.overcommit).map_err(or_all_the_same),
            |reservation, vm, running| reservation.confirm_start(vm, running, need).map_err(or_all_the_same),
        );
        Ok(started?)
    }
}

fn or_all_the_same(lack: NoRoom) -> NoRoom {
    let cure = format!(
        "{}; or start it all the same with --overcommit: the kernel may kill it for that, or another guest",
        lack.cure
    );
    NoRoom { cure, ..lack }
}
