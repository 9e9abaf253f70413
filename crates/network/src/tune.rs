//! Decides which cores the interrupts of NICs go to: those of the NIC's NUMA node, each queue to the next of them.
//!
//! What was before is in a [`TuneRecord`], which is written before anything is changed. An interrupt belongs to the
//! record while it goes where it was sent; an interrupt that goes elsewhere is another program's, and is left alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::carriers::{cores_of_node, nodes};
use crate::core_list::CoreList;
use crate::interface::Interface;
use crate::source::{Ask, Source};

/// A NIC's interrupts as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicInterrupts {
    /// The NIC.
    pub nic: String,
    /// The cores that its interrupts are to go to, or why that is not known.
    pub near: Result<CoreList, String>,
    /// The interrupts, in their order.
    pub interrupts: Vec<InterruptNow>,
}

/// An interrupt as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptNow {
    /// Its number.
    pub number: u32,
    /// What its driver calls it.
    pub name: String,
    /// The cores that it may go to (`smp_affinity_list`).
    pub cores: CoreList,
}

/// An interrupt that was sent to other cores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedInterrupt {
    /// The NIC.
    pub nic: String,
    /// The interrupt's number.
    pub number: u32,
    /// What its driver calls it: a number may be another device's after a driver was loaded again.
    pub name: String,
    /// The cores that it might go to before, as a list.
    pub before: String,
    /// The cores that it was sent to, as a list.
    pub set: String,
}

/// What was changed, so that it can be undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneRecord {
    /// The interrupts, by number.
    pub pinned: Vec<PinnedInterrupt>,
}

/// What becomes of an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TuneStep {
    /// The NIC.
    pub nic: String,
    /// The interrupt's number.
    pub number: u32,
    /// What its driver calls it.
    pub name: String,
    /// The cores that it may go to now, as a list; empty: it is no more.
    pub now: String,
    /// What to do.
    #[serde(flatten)]
    pub action: TuneAction,
}

/// What is done with an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum TuneAction {
    /// It is sent to these cores.
    Send {
        /// The cores, as a list.
        to: String,
    },
    /// It is where it is to be.
    Keep,
    /// It is left alone.
    LeaveAlone {
        /// The reason, in words.
        why: String,
    },
}

/// What is to be done, and what to keep of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunePlan {
    /// The steps, by NIC and interrupt.
    pub steps: Vec<TuneStep>,
    /// NICs of which nothing is changed, with the reason.
    pub left_out: Vec<(String, String)>,
    /// The record from now on; to be written before the first step.
    pub record: TuneRecord,
}

/// Reads the interrupts of NICs.
pub fn nic_interrupts(source: &dyn Source, interfaces: &[&Interface]) -> Vec<NicInterrupts> {
    let of_nic = |of: &&Interface| {
        let interrupts = of.device.iter().flat_map(|device| &device.interrupts);
        NicInterrupts {
            nic: of.nic.name.clone(),
            near: cores_for(source, of),
            interrupts: interrupts.filter_map(|of| interrupt_now(source, of.number, &of.name)).collect(),
        }
    };
    interfaces.iter().map(of_nic).collect()
}

/// Reads where the interrupts of a record go; those that are no more are left out.
pub fn recorded_interrupts(source: &dyn Source, record: &TuneRecord) -> Vec<InterruptNow> {
    let names = crate::device::interrupts(source);
    let of = |pinned: &PinnedInterrupt| interrupt_now(source, pinned.number, &names.get(&pinned.number)?.0);
    record.pinned.iter().filter_map(of).collect()
}

fn interrupt_now(source: &dyn Source, number: u32, name: &str) -> Option<InterruptNow> {
    let text = source.ask(&Ask::File(format!("/proc/irq/{number}/smp_affinity_list"))).text()?;
    Some(InterruptNow { number, name: name.to_owned(), cores: text.parse().ok()? })
}

/// Returns the cores of a NIC's NUMA node; all, where the host has one node.
fn cores_for(source: &dyn Source, of: &Interface) -> Result<CoreList, String> {
    let device = of.device.as_ref().ok_or("it is no hardware, or hides it")?;
    if nodes(source).0.len() < 2 {
        let online = source.ask(&Ask::File("/sys/devices/system/cpu/online".into())).text();
        return online.and_then(|text| text.parse().ok()).ok_or_else(|| "the host's cores are not known".into());
    }
    let node = device.numa_node.ok_or("the host has several NUMA nodes, and the firmware does not tell the NIC's")?;
    cores_of_node(source, node).ok_or_else(|| format!("its NUMA node {node} has no cores"))
}

/// Decides what to do for these NICs. `record`: what was changed before.
pub fn plan_apply(nics: &[NicInterrupts], record: &TuneRecord) -> TunePlan {
    let mut plan = TunePlan::default();
    let mut pinned: BTreeMap<u32, PinnedInterrupt> =
        record.pinned.iter().map(|pinned| (pinned.number, pinned.clone())).collect();
    // NICs of one node do not begin at the same core.
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for NicInterrupts { nic, near, interrupts } in nics {
        let near = match near {
            Ok(near) if !near.0.is_empty() && !interrupts.is_empty() => near,
            Ok(_) => {
                plan.left_out.push((nic.clone(), "its interrupts are not told".into()));
                continue;
            }
            Err(why) => {
                plan.left_out.push((nic.clone(), why.clone()));
                continue;
            }
        };
        let cores: Vec<u32> = near.0.iter().copied().collect();
        let begin = taken.entry(near.to_string()).or_default();
        for interrupt in interrupts {
            let nth = *begin + queue_of(&interrupt.name).unwrap_or(0) as usize;
            let to = CoreList([cores[nth % cores.len()]].into());
            let before = pinned.get(&interrupt.number).filter(|pinned| pinned.name == interrupt.name);
            let action = apply_action(interrupt, &to, before);
            if let TuneAction::Send { to } = &action {
                let before = before.map_or(interrupt.cores.to_string(), |pinned| pinned.before.clone());
                let (number, name, set) = (interrupt.number, interrupt.name.clone(), to.clone());
                pinned.insert(number, PinnedInterrupt { nic: nic.clone(), number, name, before, set });
            }
            plan.steps.push(step(nic, interrupt, action));
        }
        *begin += interrupts.iter().filter_map(|of| queue_of(&of.name)).max().map_or(1, |last| last as usize + 1);
    }
    plan.record = TuneRecord { pinned: pinned.into_values().collect() };
    plan
}

fn apply_action(interrupt: &InterruptNow, to: &CoreList, before: Option<&PinnedInterrupt>) -> TuneAction {
    match before {
        Some(pinned) if !is_at(interrupt, &pinned.set) && !is_at(interrupt, &pinned.before) => changed_since(pinned),
        _ if interrupt.cores == *to => TuneAction::Keep,
        _ => TuneAction::Send { to: to.to_string() },
    }
}

/// Decides how to undo what was changed. `now`: where the interrupts of the record go. Nothing is recorded afterwards.
pub fn plan_remove(record: &TuneRecord, now: &[InterruptNow]) -> TunePlan {
    let action = |pinned: &PinnedInterrupt| {
        let Some(interrupt) = now.iter().find(|now| now.number == pinned.number) else {
            return TuneAction::LeaveAlone { why: "it is no more".into() };
        };
        match () {
            () if interrupt.name != pinned.name => {
                TuneAction::LeaveAlone { why: format!("its number is {}'s now", interrupt.name) }
            }
            () if is_at(interrupt, &pinned.before) => TuneAction::Keep,
            () if is_at(interrupt, &pinned.set) => TuneAction::Send { to: pinned.before.clone() },
            () => changed_since(pinned),
        }
    };
    let step = |pinned: &PinnedInterrupt| TuneStep {
        nic: pinned.nic.clone(),
        number: pinned.number,
        name: pinned.name.clone(),
        now: now.iter().find(|now| now.number == pinned.number).map(|now| now.cores.to_string()).unwrap_or_default(),
        action: action(pinned),
    };
    TunePlan { steps: record.pinned.iter().map(step).collect(), ..TunePlan::default() }
}

fn step(nic: &str, interrupt: &InterruptNow, action: TuneAction) -> TuneStep {
    let (number, name, now) = (interrupt.number, interrupt.name.clone(), interrupt.cores.to_string());
    TuneStep { nic: nic.to_owned(), number, name, now, action }
}

fn is_at(interrupt: &InterruptNow, list: &str) -> bool {
    list.parse() == Ok(interrupt.cores.clone())
}

fn changed_since(pinned: &PinnedInterrupt) -> TuneAction {
    TuneAction::LeaveAlone { why: format!("somebody changed it since it was sent to {}", pinned.set) }
}

/// Returns the queue's number in an interrupt's name: `eth0-TxRx-3`, `virtio0-input.3`, `mlx5_comp3@pci:0000:3b:00.0`.
fn queue_of(name: &str) -> Option<u32> {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[name.len() - digits..].parse().ok().filter(|queue| *queue < 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(number: u32, name: &str, cores: &str) -> InterruptNow {
        InterruptNow { number, name: name.into(), cores: cores.parse().unwrap() }
    }

    fn nic(name: &str, near: &str, interrupts: &[InterruptNow]) -> NicInterrupts {
        NicInterrupts { nic: name.into(), near: Ok(near.parse().unwrap()), interrupts: interrupts.to_vec() }
    }

    fn sent(plan: &TunePlan) -> Vec<(u32, String)> {
        let to = |step: &TuneStep| if let TuneAction::Send { to } = &step.action { Some(to.clone()) } else { None };
        plan.steps.iter().filter_map(|step| Some((step.number, to(step)?))).collect()
    }

    /// The NIC after the plan.
    fn done(nic: &NicInterrupts, plan: &TunePlan) -> NicInterrupts {
        let sent = sent(plan);
        let moved = |of: &InterruptNow| match sent.iter().find(|(number, _)| *number == of.number) {
            Some((_, to)) => InterruptNow { cores: to.parse().unwrap(), ..of.clone() },
            None => of.clone(),
        };
        NicInterrupts { interrupts: nic.interrupts.iter().map(moved).collect(), ..nic.clone() }
    }

    fn four_queues(first: u32, name: &str) -> Vec<InterruptNow> {
        (0..4).map(|queue| now(first + queue, &format!("{name}-TxRx-{queue}"), "0-7")).collect()
    }

    #[test]
    fn queues_are_spread_over_the_node_of_each_nic() {
        let nics = [nic("eth0", "4-6", &four_queues(20, "eth0")), nic("eth1", "4-6", &four_queues(30, "eth1"))];
        let plan = plan_apply(&nics, &TuneRecord::default());
        let cores: Vec<String> = sent(&plan).into_iter().map(|(_, to)| to).collect();
        assert_eq!(cores, ["4", "5", "6", "4", "5", "6", "4", "5"], "eth1 goes on where eth0 ended");
        assert_eq!(plan.record.pinned.len(), 8);
        assert!(plan.record.pinned.iter().all(|pinned| pinned.before == "0-7"));
        // Both interrupts of a queue go to one core, and those of no queue to the first.
        let rx_tx = [now(1, "eth0-rx-1", "0"), now(2, "eth0-tx-1", "0"), now(3, "virtio0-config", "0")];
        let plan = plan_apply(&[nic("eth0", "8-9", &rx_tx)], &TuneRecord::default());
        assert_eq!(sent(&plan), [(1, "9".into()), (2, "9".into()), (3, "8".into())]);
        assert_eq!(queue_of("mlx5_comp12@pci:0000:3b:00.0"), Some(12));
        assert_eq!((queue_of("mlx5_async@pci:0000:3b:00.0"), queue_of("x99999999999")), (None, None));
    }

    #[test]
    fn a_second_apply_does_not_lose_what_was_before() {
        let before = nic("eth0", "4-5", &four_queues(20, "eth0"));
        let first = plan_apply(std::slice::from_ref(&before), &TuneRecord::default());
        let after = done(&before, &first);
        let second = plan_apply(std::slice::from_ref(&after), &first.record);
        assert_eq!((sent(&second), &second.record), (vec![], &first.record));
        // The node has other cores now: before is still what it was.
        let other = NicInterrupts { near: Ok("6-7".parse().unwrap()), ..after };
        let third = plan_apply(std::slice::from_ref(&other), &second.record);
        assert_eq!(sent(&third).len(), 4);
        let undone = plan_remove(&third.record, &done(&other, &third).interrupts);
        assert_eq!(sent(&undone).iter().map(|(_, to)| to.as_str()).collect::<Vec<_>>(), ["0-7"; 4]);
    }

    #[test]
    fn an_apply_that_was_cut_short_is_undone_as_far_as_it_came() {
        let before = nic("eth0", "4-5", &four_queues(20, "eth0"));
        let plan = plan_apply(std::slice::from_ref(&before), &TuneRecord::default());
        let mut now = before.interrupts.clone();
        now[0].cores = "4".parse().unwrap();
        let undone = plan_remove(&plan.record, &now);
        assert_eq!(sent(&undone), [(20, "0-7".into())]);
        assert!(undone.steps[1..].iter().all(|step| step.action == TuneAction::Keep));
    }

    #[test]
    fn what_somebody_changed_since_is_left_alone_and_told() {
        let before = nic("eth0", "4-5", &four_queues(20, "eth0"));
        let plan = plan_apply(std::slice::from_ref(&before), &TuneRecord::default());
        let mut after = done(&before, &plan);
        after.interrupts[1].cores = "0".parse().unwrap();
        let why = TuneAction::LeaveAlone { why: "somebody changed it since it was sent to 5".into() };
        let again = plan_apply(std::slice::from_ref(&after), &plan.record);
        assert_eq!((&again.steps[1].action, &again.record), (&why, &plan.record));
        // One is no more, one is another device's.
        after.interrupts[2].name = "nvme0q1".into();
        after.interrupts.remove(3);
        let undone = plan_remove(&plan.record, &after.interrupts);
        let actions: Vec<&TuneAction> = undone.steps.iter().map(|step| &step.action).collect();
        let leave = |why: &str| TuneAction::LeaveAlone { why: why.into() };
        let (taken, gone) = (leave("its number is nvme0q1's now"), leave("it is no more"));
        assert_eq!(actions, [&TuneAction::Send { to: "0-7".into() }, &why, &taken, &gone]);
        // With a new driver the numbers are other interrupts' from now on.
        let reloaded = nic("eth0", "4-5", &[now(20, "eth0-rx-0", "1")]);
        let anew = plan_apply(&[reloaded], &plan.record);
        assert_eq!(anew.record.pinned[0].before, "1");
    }

    #[test]
    fn nics_of_which_too_little_is_known_are_left_out() {
        let unknown = NicInterrupts { near: Err("no node".into()), ..nic("eth0", "0", &four_queues(1, "eth0")) };
        let plan =
            plan_apply(&[unknown, nic("eth1", "0", &[]), nic("eth2", "", &four_queues(9, "x"))], &Default::default());
        let names: Vec<&str> = plan.left_out.iter().map(|(nic, _)| nic.as_str()).collect();
        assert_eq!((names, plan.steps.len()), (vec!["eth0", "eth1", "eth2"], 0));
    }
}
