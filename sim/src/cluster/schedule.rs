//! What happens at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use skein_handover::{MigrationId, Order};

use super::index::{HostIx, QemuIx};
use super::offer::Input;
use crate::world::Time;

/// What happens at a time.
#[derive(Debug)]
pub enum Do {
    /// To an agent, if it is still the process with that number.
    Agent(HostIx, u32, ForAgent),
    Restart(HostIx),
    QemuStep(QemuIx),
    QemuLoaded(QemuIx),
    /// A source's migration fails, if the QEMU is still in the migration with that number.
    QemuFails(QemuIx, u32),
    Fault(usize),
    Heal(usize),
    Disarm(HostIx),
    Wish(usize),
    /// A person has the guest of this wish switch.
    Switch(usize),
    Operator,
}

/// What happens to an agent's process.
#[derive(Debug)]
pub enum ForAgent {
    Timeout,
    Look,
    Written,
    Order(MigrationId, Order),
    /// A QEMU's report, unless a later order makes the report old: so many orders of the migration had been given then.
    Tell(Input, MigrationId, u32),
    /// The time to ask the migration's QEMU for its state.
    Query(MigrationId),
    CloseStreams(QemuIx, u32),
}

/// All that is still to happen. What is scheduled for one time happens in the order in which it was scheduled.
#[derive(Default)]
pub struct Schedule {
    count: u64,
    heap: BinaryHeap<Reverse<Scheduled>>,
}

impl Schedule {
    pub fn add(&mut self, at: Time, action: Do) {
        self.count += 1;
        self.heap.push(Reverse(Scheduled(at, self.count, action)));
    }

    /// Returns when the next thing happens.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(next)| next.0)
    }

    /// Takes out what happens next.
    pub fn pop(&mut self) -> Option<Do> {
        self.heap.pop().map(|Reverse(Scheduled(_, _, action))| action)
    }
}

/// An action with its time and its place in the order of scheduling.
struct Scheduled(Time, u64, Do);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}
