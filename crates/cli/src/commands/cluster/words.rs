//! The words for what a controller says.

use std::collections::BTreeSet;

use skein_api::UpdateHow;
use skein_api::cluster::{
    Contact, HostMode, Move, MoveState, Operation, OperationKind, OperationState, UnixMs, VmRunState,
};
use skein_units::duration;

use crate::commands::text::{clean_line, count};

/// Returns the word for whether a host's agent reports.
pub fn contact(contact: Contact) -> &'static str {
    match contact {
        Contact::Joined => "joined",
        Contact::Online => "online",
        Contact::Lost => "LOST",
        Contact::Off => "off",
        Contact::Asleep => "asleep",
    }
}

/// Returns the word for whether a host takes guests.
pub fn mode(mode: HostMode) -> &'static str {
    match mode {
        HostMode::Active => "active",
        HostMode::Draining => "draining",
        HostMode::Maintenance => "maintenance",
    }
}

/// Returns the word for whether a guest runs.
pub fn run_state(state: VmRunState) -> &'static str {
    match state {
        VmRunState::Running => "running",
        VmRunState::Paused => "paused",
        VmRunState::Starting => "starting",
        VmRunState::Handover => "handover",
        VmRunState::InDoubt => "IN DOUBT",
        VmRunState::Stopped => "stopped",
        VmRunState::Unresponsive => "unresponsive",
        VmRunState::Lost => "LOST",
        VmRunState::Failed => "ENDED",
    }
}

/// Returns the word for how far an operation is.
pub fn operation_state(state: OperationState) -> &'static str {
    match state {
        OperationState::Planning => "planning",
        OperationState::Running => "running",
        OperationState::Cancelling => "cancelling",
        OperationState::Done => "done",
        OperationState::Failed => "FAILED",
        OperationState::Cancelled => "cancelled",
    }
}

/// Returns the word for how far a move is.
pub fn move_state(kind: &OperationKind, of: &Move) -> &'static str {
    let starts = starts(kind);
    let is_failover = matches!(kind, OperationKind::Failover { .. });
    let was_called_off = ["somebody called it off", "it was not begun any more"].contains(&of.detail.as_str());
    match of.state {
        MoveState::Failed | MoveState::Left if was_called_off => "called off",
        _ if of.to.is_none() && starts => "cannot start",
        _ if of.to.is_none() => "stays",
        MoveState::Waiting => "waiting",
        MoveState::Begun if starts => "starting",
        MoveState::Done if is_failover => "started elsewhere",
        MoveState::Done if starts => "started",
        MoveState::Begun => "moving",
        MoveState::Done => "moved",
        MoveState::Failed => "FAILED",
        MoveState::Left if starts => "not started",
        MoveState::Left => "not moved",
    }
}

/// Returns what an operation does, as `drain of hosta`.
pub fn kind(kind: &OperationKind) -> String {
    match kind {
        OperationKind::Migrate { vm, to: None, .. } => format!("migration of {}", clean_line(vm)),
        OperationKind::Migrate { vm, to: Some(to), .. } => {
            format!("migration of {} to {}", clean_line(vm), clean_line(to))
        }
        OperationKind::Drain { host, evacuate: false, .. } => format!("drain of {}", clean_line(host)),
        OperationKind::Drain { host, evacuate: true, .. } => format!("evacuation of {}", clean_line(host)),
        OperationKind::Optimize { .. } => "optimisation".to_owned(),
        OperationKind::Fence { host, .. } => format!("fencing of {}", clean_line(host)),
        OperationKind::Sleep { host, .. } => format!("sleep of {}", clean_line(host)),
        OperationKind::Update { how: UpdateHow::Reboot, .. } => "reboot of hosts".to_owned(),
        OperationKind::Update { .. } => "update of hosts".to_owned(),
        OperationKind::Wake { host, .. } => format!("waking of {}", clean_line(host)),
        OperationKind::Failover { host } => format!("failover of {}", clean_line(host)),
        OperationKind::Start { vm, on: None, .. } => format!("start of {}", clean_line(vm)),
        OperationKind::Start { vm, on: Some(on), .. } => format!("start of {} on {}", clean_line(vm), clean_line(on)),
        OperationKind::Stop { vm, .. } => format!("stop of {}", clean_line(vm)),
        OperationKind::Delete { vm } => format!("deletion of {}", clean_line(vm)),
        OperationKind::Autostart { host, .. } => format!("start after the boot of {}", clean_line(host)),
        OperationKind::Resume { host, .. } => format!("homecoming to {}", clean_line(host)),
    }
}

/// Returns whether an operation starts VMs, and moves none.
fn starts(kind: &OperationKind) -> bool {
    matches!(kind, OperationKind::Failover { .. } | OperationKind::Start { .. } | OperationKind::Autostart { .. })
}

/// Returns whether an operation has no moves, and says itself how far it is.
pub fn is_moveless(kind: &OperationKind) -> bool {
    matches!(
        kind,
        OperationKind::Fence { .. }
            | OperationKind::Sleep { .. }
            | OperationKind::Wake { .. }
            | OperationKind::Update { .. }
            | OperationKind::Stop { .. }
            | OperationKind::Delete { .. }
    )
}

/// Returns a move, as `web1: hosta -> hostb`; a start where no other host had the VM, as `web1: hostb`.
pub fn way(of: &Move) -> String {
    if let Some(to) = of.to.as_deref().filter(|to| of.from.is_empty() || of.from == **to) {
        return format!("{}: {}", clean_line(&of.vm), clean_line(to));
    }
    let to = of.to.as_deref().map(|to| format!(" -> {}", clean_line(to))).unwrap_or_default();
    format!("{}: {}{to}", clean_line(&of.vm), clean_line(&of.from))
}

/// Counts what is done, and all: of starts VMs, as one that was tried on several hosts is one; else moves.
fn counted(operation: &Operation) -> (usize, usize) {
    if !starts(&operation.kind) {
        return (operation.progress.moves_done as usize, operation.progress.moves as usize);
    }
    let vms = |is_counted: fn(&Move) -> bool| {
        let counted = operation.moves.iter().filter(|of| is_counted(of));
        counted.map(|of| of.vm.as_str()).collect::<BTreeSet<_>>().len()
    };
    (vms(|of| of.state == MoveState::Done), vms(|_| true))
}

/// Returns `2 of 3 moves made`.
pub fn made(operation: &Operation) -> String {
    let (done, all) = counted(operation);
    match &operation.kind {
        OperationKind::Failover { .. } => format!("{done} of {} started elsewhere", count(all, "VM")),
        kind if starts(kind) => format!("{done} of {} started", count(all, "VM")),
        _ => format!("{done} of {} made", count(all, "move")),
    }
}

/// Returns `3 of 12 moves done, 4 under way, about 40 s left`.
pub fn progress(operation: &Operation) -> String {
    let of = &operation.progress;
    if operation.state == OperationState::Planning {
        let waits = Some(clean_line(&operation.message)).filter(|message| !message.is_empty());
        return waits.unwrap_or_else(|| "its moves are being planned".to_owned());
    }
    if is_moveless(&operation.kind) {
        // It has no moves, and says itself how far it is.
        return match &operation.kind {
            _ if !operation.message.is_empty() => clean_line(&operation.message),
            OperationKind::Stop { timeout_s, force, .. } if !operation.state.is_over() => {
                let then = if *force { ", and is killed then" } else { "" };
                format!("its guest has {timeout_s} s to shut down{then}")
            }
            _ => "it begins".to_owned(),
        };
    }
    let what = if starts(&operation.kind) { "start" } else { "move" };
    let (done, all) = counted(operation);
    let mut words = vec![format!("{done} of {} done", count(all, what))];
    if of.moves_running > 0 {
        words.push(format!("{} under way", of.moves_running));
    }
    if let Some(left) = of.left_ms.filter(|left| *left > 0 && !operation.state.is_over()) {
        words.push(format!("about {} left", duration(left)));
    }
    if operation.state == OperationState::Running && !operation.message.is_empty() {
        words.push(clean_line(&operation.message));
    }
    words.join(", ")
}

/// Returns a time as `2026-11-26 09:14:42`, in UTC. The beginning of 1970 is no time.
pub fn time(at: UnixMs) -> String {
    let shown = i64::try_from(at.0).ok().filter(|ms| *ms > 0).map(jiff::Timestamp::from_millisecond);
    shown.and_then(Result::ok).map(|at| at.strftime("%F %T").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_utc() {
        assert_eq!(time(UnixMs(1_795_684_482_120)), "2026-11-26 09:14:42");
        assert_eq!((time(UnixMs(0)), time(UnixMs(u64::MAX))), (String::new(), String::new()));
    }
}
