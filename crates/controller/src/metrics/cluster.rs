//! Hosts, VMs and operations, as they are in the controller's tables. Nothing changes meanwhile, so this only counts.

use skein_api::cluster::{Contact, HostMode, MoveState, VmRunState};
use skein_cluster::Tables;
use skein_metrics::{Samples, controller};

use crate::meter::{operation_word, state_word};

pub(super) fn collect(samples: &mut Samples, tables: &Tables) {
    // What there is none of is told, too: a query finds 0, not nothing.
    controller::CONTACTS.iter().for_each(|contact| samples.set(&controller::HOSTS, &[contact], 0_u64));
    controller::VM_STATES.iter().for_each(|state| samples.set(&controller::VMS, &[state], 0_u64));
    ["waiting", "begun"].iter().for_each(|state| samples.set(&controller::MOVES, &[state], 0_u64));
    for host in tables.hosts.values() {
        samples.add(&controller::HOSTS, &[contact_word(host.value.contact)], 1_u64);
        samples.add(&controller::HOST_MODES, &[mode_word(host.value.mode)], 1_u64);
    }
    for vm in tables.vms.values() {
        let host = vm.value.host.as_ref().and_then(|host| tables.hosts.get(host));
        let state = shown(vm.value.state, host.map(|host| host.value.contact));
        samples.add(&controller::VMS, &[vm_word(state)], 1_u64);
    }
    for found in tables.operations.values().filter(|found| !found.value.state.is_over()) {
        let operation = &found.value;
        let labels = [operation_word(&operation.kind), state_word(operation.state)];
        samples.add(&controller::OPERATIONS_OPEN, &labels, 1_u64);
        let moves = |state: MoveState| operation.moves.iter().filter(|of| of.state == state).count();
        samples.add(&controller::MOVES, &["waiting"], moves(MoveState::Waiting));
        samples.add(&controller::MOVES, &["begun"], moves(MoveState::Begun));
    }
}

/// Returns the state of a VM whose host is reached like this: of a host that does not report the last state is old.
fn shown(state: VmRunState, contact: Option<Contact>) -> VmRunState {
    match contact {
        _ if state == VmRunState::Stopped => state,
        Some(Contact::Lost) => VmRunState::Lost,
        Some(contact) if contact.is_off() => VmRunState::Failed,
        _ => state,
    }
}

fn contact_word(contact: Contact) -> &'static str {
    match contact {
        Contact::Joined => "joined",
        Contact::Online => "online",
        Contact::Lost => "lost",
        Contact::Off => "off",
        Contact::Asleep => "asleep",
    }
}

fn mode_word(mode: HostMode) -> &'static str {
    match mode {
        HostMode::Active => "active",
        HostMode::Draining => "draining",
        HostMode::Maintenance => "maintenance",
    }
}

fn vm_word(state: VmRunState) -> &'static str {
    match state {
        VmRunState::Running => "running",
        VmRunState::Paused => "paused",
        VmRunState::Starting => "starting",
        VmRunState::Handover => "handover",
        VmRunState::InDoubt => "in-doubt",
        VmRunState::Stopped => "stopped",
        VmRunState::Unresponsive => "unresponsive",
        VmRunState::Lost => "lost",
        VmRunState::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_api() {
        for word in controller::CONTACTS {
            assert_eq!(contact_word(serde_json::from_value((*word).into()).unwrap()), *word);
        }
        for word in controller::VM_STATES {
            assert_eq!(vm_word(serde_json::from_value((*word).into()).unwrap()), *word);
        }
        for mode in [HostMode::Active, HostMode::Draining, HostMode::Maintenance] {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode_word(mode));
        }
    }

    #[test]
    fn a_guest_is_as_lost_as_its_host() {
        let running = VmRunState::Running;
        assert_eq!(shown(running, Some(Contact::Lost)), VmRunState::Lost);
        assert_eq!(shown(running, Some(Contact::Asleep)), VmRunState::Failed);
        assert_eq!(shown(VmRunState::Stopped, Some(Contact::Lost)), VmRunState::Stopped);
        assert_eq!(shown(running, None), running);
    }
}
