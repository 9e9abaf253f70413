//! Starts a VM for a person, if nothing stands against it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{Refusal, StartOptions, VmOrigin};
use skein_inventory::definition::Definition;
use skein_inventory::facts::{GuestFiles, Presence};
use skein_inventory::{NoRoom, RoomNeed};

use super::hosts::LIST_ASKED_MAX;
use super::refusal::Answered;
use super::request_server::{AskedBy, RequestServer};
use crate::controllers::{ByHand, Turn};
use crate::read_facts;
use crate::room::Overcommit;
use crate::vms::Vm;

/// Bounds the time in which other hosts say whether they have a VM of that name. A host that starts a QEMU first, to
/// know what that QEMU can do, may take longer.
const OTHERS_TIME: Duration = Duration::from_secs(2);

impl RequestServer {
    /// Starts a VM from its file, or a stopped one by its name.
    pub(super) fn start_vm(&self, from: VmOrigin, options: StartOptions, by: AskedBy) -> Answered<Arc<Vm>> {
        let mut planned = match from {
            VmOrigin::Definition { file, text } => {
                let definition = Definition::parse(&text, &file).map_err(|error| {
                    Box::new(Refusal { message: error.to_string(), cure: "mend it and start it again".into() })
                })?;
                self.vms.plan(definition, options.as_defined)?
            }
            VmOrigin::Name(name) => self.vms.plan_again(&name, options.as_defined)?,
        };
        planned.settle_cpu(options.cpu_model)?;
        if !options.new_state && self.vms.has_new_state(&planned) {
            self.refuse_new_state(&planned.name)?;
        }
        // The cluster knows where its own starts are.
        let _turn = match by {
            AskedBy::Person => self.allow_start(&planned.name, options.without_controller)?,
            AskedBy::Controller => None,
        };
        let locks_ram = read_facts::locks_ram(&planned.launch);
        let (name, need) = (planned.name.clone(), planned.need.map(|need| RoomNeed { locks_ram, ..need }));
        let overcommit = if options.overcommit { Overcommit::Allowed } else { Overcommit::Refused };
        let started = self.vms.boot(
            planned,
            || self.rooms.admit_start(&name, need, overcommit).map_err(|lack| self.or_all_the_same(lack)),
            |reservation, vm, running| {
                reservation.confirm_start(vm, running, need).map_err(|lack| self.or_all_the_same(lack))
            },
        );
        Ok(started?)
    }
}

impl RequestServer {
    /// Adds that a VM may be started without room, unless this host takes no guest, whatever room there is.
    fn or_all_the_same(&self, lack: NoRoom) -> NoRoom {
        if self.rooms.closed().is_some() {
            return lack;
        }
        let cure = format!(
            "{}; or start it all the same with --overcommit: the kernel may kill it for that, or another guest",
            lack.cure
        );
        NoRoom { cure, ..lack }
    }

    /// Asks the cluster whether a person may start a VM here. Until the returned turn is over nobody has the VM
    /// forgotten. `None`: this host has no controllers.
    fn allow_start(&self, name: &str, is_without: bool) -> Answered<Option<Turn>> {
        if !self.leader_questions.has_controllers() {
            return Ok(None);
        }
        let turn = self.leader_questions.take_turn(name)?;
        let here = self.vms.get(name).ok();
        if let Some(why) = here.as_ref().and_then(|vm| vm.busy_error()) {
            return Err(why.into());
        }
        let start = ByHand::Start { vm: name.to_owned(), is_here: here.is_some() };
        self.leader_questions.allow(start, is_without)?;
        Ok(Some(turn))
    }

    /// Refuses a VM that would begin with new UEFI variables and a new TPM here, if another host keeps those that it
    /// had. A host that does not answer keeps nobody from starting the VM.
    fn refuse_new_state(&self, name: &str) -> Answered<()> {
        let others = self.known_hosts()?.into_iter().filter(|host| !host.is_local).take(LIST_ASKED_MAX);
        let others: Vec<String> = others.map(|host| host.name).collect();
        let (end, peers) = (Instant::now() + OTHERS_TIME, self.migrations.peers());
        let find = |host: &str| {
            let facts = peers.ask_facts(host, None, GuestFiles::default(), end).ok()?;
            let presence = facts.vms.into_iter().find(|vm| vm.name == name)?.presence;
            match presence {
                Presence::Stopped => Some(format!("{host} has a VM of that name, stopped,")),
                Presence::Guest => Some(format!("{host} runs a VM of that name,")),
                Presence::Leftover { .. } => None,
            }
        };
        let found = thread::scope(|scope| {
            let ask = |host: &String| {
                let host = host.clone();
                thread::Builder::new().name("hosts".into()).spawn_scoped(scope, move || find(&host)).ok()
            };
            let asked: Vec<_> = others.iter().filter_map(ask).collect();
            asked.into_iter().filter_map(|asked| asked.join().ok()?).next()
        });
        let Some(found) = found else { return Ok(()) };
        Err(Box::new(Refusal {
            message: format!(
                "{found} and '{name}' would begin here with new UEFI variables and a new TPM, as this host keeps none \
                 of it"
            ),
            cure: "start it there, and move it (`skein migrate`), or copy own/NAME of that agent's state directory \
                   here; or say \
                   --new-state, if what it had is not wanted"
                .into(),
        }))
    }
}
