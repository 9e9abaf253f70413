//! How faults are injected, and how they end.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_api::Request;
use skein_lab_cluster::Start;

use super::asks::Ask;
use super::state::{NICS, World};
use crate::plan::{Fault, Kind, Moment, Side};

/// A migration that has not reached a step by then never will.
const STEP_TIME: Duration = Duration::from_secs(30);

/// What ends a fault.
pub(super) enum Undo {
    Heal(Vec<(String, usize)>),
    Start(Vec<String>),
    Continue(Vec<String>),
    ContinueQemus(Vec<u32>),
    /// The agents were asked to end.
    Replace(Vec<String>),
    Nothing,
}

/// How far a fault is.
pub(super) enum Doing {
    Waiting(Fault),
    /// The moment has come, and the time after it passes now.
    Due(Fault, Instant),
    Active(Instant, Undo),
    Over,
}

impl World {
    /// Begins or ends a fault if its time has come. Returns the fault if it was injected now. `begin` is when the round
    /// asked for its migrations.
    pub(super) fn step(&mut self, doing: &mut Doing, asks: &[Ask], begin: Instant) -> Option<Kind> {
        let now = Instant::now();
        match doing {
            Doing::Waiting(fault) => match fault.moment {
                Moment::Asked(after) => *doing = Doing::Due(*fault, begin + after),
                Moment::Step(stage, after) => {
                    let first = &asks[0];
                    if self.has_come(first, stage) {
                        *doing = Doing::Due(*fault, now + after);
                    } else if first.refused.is_some() || self.is_over(first) || begin.elapsed() > STEP_TIME {
                        let what = format!("never came: {}", fault.moment);
                        *doing = Doing::Over;
                        self.note(what);
                    }
                }
            },
            Doing::Due(fault, at) if *at <= now => {
                let fault = *fault;
                match self.begin_fault(&fault, &asks[0]) {
                    Some(undo) => {
                        self.note(format!("fault: {}, {}", fault.kind, fault.moment));
                        *doing = Doing::Active(Instant::now() + fault.lasts, undo);
                        return Some(fault.kind);
                    }
                    None => {
                        self.note(format!("nobody there: {}, {}", fault.kind, fault.moment));
                        *doing = Doing::Over;
                    }
                }
            }
            Doing::Active(at, undo) if *at <= now => {
                if self.end_fault(undo) {
                    *doing = Doing::Over;
                }
            }
            Doing::Due(..) | Doing::Active(..) | Doing::Over => {}
        }
        None
    }

    /// Injects a fault, and returns what ends it. `None`: there is no victim.
    fn begin_fault(&mut self, fault: &Fault, first: &Ask) -> Option<Undo> {
        let hosts = |side| match side {
            Side::Source => vec![first.from.clone()],
            Side::Target => vec![first.to.clone()],
            Side::Both => vec![first.from.clone(), first.to.clone()],
        };
        let mut agents = |side| {
            let up: Vec<String> = hosts(side).into_iter().filter(|host| self.cluster.is_up(host)).collect();
            Some(up).filter(|up| !up.is_empty())
        };
        Some(match fault.kind {
            Kind::Nothing => Undo::Nothing,
            Kind::Link(cut, all) => {
                let host = if fault.of_target { &first.to } else { &first.from };
                let nics = if all { (0..NICS).collect() } else { vec![fault.nic] };
                let links: Vec<(String, usize)> = nics.into_iter().map(|nic| (host.clone(), nic)).collect();
                links.iter().for_each(|(host, nic)| self.cluster.lab().cut(host, *nic, cut).expect("it can be cut"));
                Undo::Heal(links)
            }
            Kind::AgentKilled(side) => {
                let up = agents(side)?;
                up.iter().for_each(|host| self.cluster.kill(host));
                Undo::Start(up)
            }
            Kind::AgentStopped(side) => {
                let up = agents(side)?;
                up.iter().for_each(|host| self.cluster.signal(host, Signal::SIGSTOP));
                Undo::Continue(up)
            }
            Kind::AgentReplaced(side) => {
                let up = agents(side)?;
                up.iter().for_each(|host| self.cluster.signal(host, Signal::SIGTERM));
                Undo::Replace(up)
            }
            Kind::QemuKilled(side) | Kind::QemuStopped(side) => {
                let pids: Vec<u32> = hosts(side).iter().flat_map(|host| self.qemus(&first.vm, host)).collect();
                let killed = matches!(fault.kind, Kind::QemuKilled(_));
                let signal = if killed { Signal::SIGKILL } else { Signal::SIGSTOP };
                let hit: Vec<u32> = pids.into_iter().filter(|pid| send(*pid, signal)).collect();
                if hit.is_empty() {
                    return None;
                }
                if killed {
                    self.killed.extend(hit);
                    Undo::Nothing
                } else {
                    Undo::ContinueQemus(hit)
                }
            }
            Kind::Cancelled => {
                let (id, client) = (first.id?, self.cluster.client(&first.from));
                thread::spawn(move || client.call(&Request::MigrationCancel { id: id.to_string() }, STEP_TIME));
                Undo::Nothing
            }
        })
    }

    /// Ends a fault. Returns `false` if that takes longer.
    fn end_fault(&mut self, undo: &Undo) -> bool {
        match undo {
            Undo::Nothing => {}
            Undo::Heal(links) => {
                links.iter().for_each(|(host, nic)| self.cluster.lab().heal(host, *nic).expect("it can be healed"));
                self.note(format!("healed: {links:?}"));
            }
            Undo::Start(hosts) => {
                hosts.iter().for_each(|host| self.cluster.begin_start(host, &Start::default()));
                self.note(format!("agents started: {hosts:?}"));
            }
            Undo::Continue(hosts) => {
                for host in hosts {
                    // The agent may have been killed meanwhile.
                    if self.cluster.is_up(host) {
                        self.cluster.signal(host, Signal::SIGCONT);
                    }
                }
                self.note(format!("agents go on: {hosts:?}"));
            }
            Undo::ContinueQemus(pids) => {
                for pid in pids {
                    // The QEMU may have been killed meanwhile.
                    let _ = send(*pid, Signal::SIGCONT);
                }
                self.note(format!("QEMUs go on: {pids:?}"));
            }
            Undo::Replace(hosts) => {
                if hosts.iter().any(|host| self.cluster.is_up(host)) {
                    return false;
                }
                for host in hosts {
                    self.cluster.kill(host);
                    self.cluster.begin_start(host, &Start::default());
                }
                self.note(format!("agents replaced: {hosts:?}"));
            }
        }
        true
    }
}

/// Sends a signal. Returns whether the process was there.
fn send(pid: u32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid as i32), signal).is_ok()
}
