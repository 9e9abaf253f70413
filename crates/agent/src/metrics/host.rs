//! The agent itself, its VMs and packers.

use std::time::SystemTime;

use skein_api::VmState;
use skein_dataplane::source::PackerFigures;
use skein_host::own_process_time;
use skein_metrics::{Samples, agent};

use crate::server::RequestServer;

pub(super) fn now_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

pub(super) fn collect_agent(samples: &mut Samples, started_s: f64) {
    samples.set(&agent::BUILD, &[env!("CARGO_PKG_VERSION")], true);
    samples.set(&agent::START_TIME, &[], started_s);
    samples.set(&agent::CPU, &[], own_process_time().as_secs_f64());
}

pub(super) fn collect_packers(samples: &mut Samples, figures: &PackerFigures) {
    let PackerFigures { done, gone, displaced, failed, waiting } = *figures;
    for (result, count) in [("done", done), ("gone", gone), ("displaced", displaced), ("failed", failed)] {
        samples.set(&agent::PACKER_BATCHES, &[result], count);
    }
    samples.set(&agent::PACKER_QUEUE, &[], waiting);
}

pub(super) fn collect_vms(samples: &mut Samples, server: &RequestServer) {
    for state in agent::VM_STATES {
        samples.set(&agent::VMS, &[state], 0_u64);
    }
    for vm in server.vms.all() {
        samples.add(&agent::VMS, &[state_word(vm.unasked_state())], 1_u64);
    }
    if server.leader_questions.has_controllers() {
        samples.set(&agent::LEADER_HEARD, &[], server.acknowledged.has_leader());
    }
}

/// Returns a state as the label has it. Whether a guest runs or is paused only its QEMU knows.
fn state_word(state: Option<VmState>) -> &'static str {
    match state {
        None | Some(VmState::Running | VmState::Paused | VmState::Handover) => "on",
        Some(VmState::Starting) => "starting",
        Some(VmState::Incoming) => "incoming",
        Some(VmState::Moved) => "moved",
        Some(VmState::InDoubt) => "in_doubt",
        Some(VmState::Stopped) => "off",
        Some(VmState::Unresponsive) => "unresponsive",
    }
}
