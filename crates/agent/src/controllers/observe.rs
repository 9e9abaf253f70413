//! Looks at the host for all connections to controllers: in every period, and at once when something changed. What the
//! host is is read by another thread, as QEMUs are started for that.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_api::HostFacts;
use tracing::warn;

use super::host::ControlledHost;
use super::loads::LoadSample;
use super::report::HostSnapshot;
use crate::samples::HostMeter;
use crate::waker::Waker;

/// Says how often it is looked for changes, and so how many reports there are in a second at most: five.
pub(crate) const CHANGE_PERIOD: Duration = Duration::from_millis(200);
/// Says how often the load is measured as long as no controller asked for it more often.
const PERIOD_DEFAULT: Duration = Duration::from_secs(1);
/// Says how often facts are read: what changes of them is told by other fields of a report, or changes when a person
/// changes the host.
const FACTS_PERIOD: Duration = Duration::from_secs(10);
/// Says how long the first snapshot waits for facts. A slow host, or one whose QEMU does not answer, is heard of
/// without them, or else it would be taken for lost when its agent is started again, or be reset by its watchdog. Tests
/// run on busy machines, where a thread may begin late.
const FIRST_FACTS_PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 1 });

/// The latest snapshot of the host, and who wants to know of a newer one.
pub(crate) struct Observer {
    host: Arc<dyn ControlledHost>,
    state: Mutex<Observed>,
    /// Notified when there is a newer snapshot.
    changed: Condvar,
    /// Notified when facts were read, and at the end.
    read: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Observed {
    /// What the host is, as last read.
    facts: Option<Arc<HostFacts>>,
    /// Counts the snapshots; 0: there is none yet.
    version: u64,
    snapshot: Arc<HostSnapshot>,
    next_subscription: u64,
    subscriptions: BTreeMap<u64, (Duration, Weak<Waker>)>,
}

/// Somebody who is woken at each newer snapshot, as long as this exists.
pub(crate) struct Subscription {
    observer: Arc<Observer>,
    number: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.observer.state.lock().subscriptions.remove(&self.number);
    }
}

impl Observer {
    pub(crate) fn new(host: Arc<dyn ControlledHost>) -> Arc<Observer> {
        let (changed, read) = (Condvar::new(), Condvar::new());
        Arc::new(Observer { host, state: Mutex::default(), changed, read, stopping: AtomicBool::new(false) })
    }

    /// Returns the latest snapshot, with its number; 0: there is none yet.
    pub(crate) fn latest(&self) -> (u64, Arc<HostSnapshot>) {
        let state = self.state.lock();
        (state.version, state.snapshot.clone())
    }

    /// Waits until there is a snapshot, or `patience` is over. Returns whether there is one.
    pub(crate) fn wait_first(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| state.version == 0, patience);
        state.version > 0
    }

    /// Has `waker` woken at each newer snapshot, of which there is one in each `period`.
    pub(crate) fn subscribe(self: &Arc<Self>, period: Duration, waker: &Arc<Waker>) -> Subscription {
        let mut state = self.state.lock();
        let number = state.next_subscription;
        state.next_subscription += 1;
        state.subscriptions.insert(number, (period, Arc::downgrade(waker)));
        Subscription { observer: self.clone(), number }
    }

    fn period(&self) -> Duration {
        let state = self.state.lock();
        let shortest = state.subscriptions.values().map(|(period, _)| *period).min();
        shortest.unwrap_or(PERIOD_DEFAULT).max(CHANGE_PERIOD)
    }

    /// Ends [`Observer::run`].
    pub(crate) fn stop(&self) {
        let _state = self.state.lock();
        self.stopping.store(true, Ordering::SeqCst);
        self.read.notify_all();
    }

    /// Reads what the host is until the end.
    fn read_facts(&self) {
        while !self.stopping.load(Ordering::SeqCst) {
            let facts = Arc::new(self.host.facts());
            let mut state = self.state.lock();
            state.facts = Some(facts);
            self.read.notify_all();
            let is_on = |_: &mut Observed| !self.stopping.load(Ordering::SeqCst);
            self.read.wait_while_for(&mut state, is_on, FACTS_PERIOD);
        }
    }

    /// Begins to read what the host is, and waits a moment for the first result.
    fn begin_facts(self: &Arc<Self>) -> std::io::Result<()> {
        let reader = self.clone();
        thread::Builder::new().name("facts".into()).spawn(move || reader.read_facts())?;
        let mut state = self.state.lock();
        let is_none = |state: &mut Observed| state.facts.is_none() && !self.stopping.load(Ordering::SeqCst);
        self.read.wait_while_for(&mut state, is_none, FIRST_FACTS_PATIENCE);
        Ok(())
    }

    /// Takes snapshots until the end.
    pub(crate) fn run(self: &Arc<Self>) {
        let mut are_read = false;
        let (mut loads, mut measured): (Option<LoadSample>, Option<Instant>) = (None, None);
        let mut meter = HostMeter::default();
        let mut snapshot = HostSnapshot::default();
        let mut outline = 0;
        while !self.stopping.load(Ordering::SeqCst) {
            if !are_read {
                are_read =
                    self.begin_facts().inspect_err(|error| warn!("what the host is is not told: {error}")).is_ok();
            }
            let begun = Instant::now();
            let due = measured.map(|measured| measured + self.period());
            let is_due = due.is_none_or(|due| begun >= due);
            let (outline_now, contacts) = (self.host.outline(), self.host.contacts());
            if is_due || outline_now != outline || contacts != snapshot.contacts {
                outline = outline_now;
                if is_due {
                    let sample = LoadSample::take(&self.host.guests());
                    let before = loads.as_ref().unwrap_or(&sample);
                    (snapshot.load, snapshot.vm_loads) = (sample.host_load(before), sample.vm_loads(before));
                    snapshot.nics = meter.read().nics;
                    (loads, measured) = (Some(sample), Some(begun));
                }
                self.fill_in(&mut snapshot, contacts);
                let facts = self.state.lock().facts.clone();
                snapshot.facts = facts.map(|facts| with_closed(facts, self.host.closed()));
                self.publish(&snapshot);
            }
            // Changes come in bursts: a burst is one report.
            thread::sleep((begun + CHANGE_PERIOD).saturating_duration_since(Instant::now()));
        }
    }

    fn fill_in(&self, snapshot: &mut HostSnapshot, contacts: BTreeMap<String, bool>) {
        snapshot.contacts = contacts;
        snapshot.forgotten = self.host.forgotten();
        snapshot.vms = self.host.vms().into_iter().map(|vm| (vm.name.clone(), Arc::new(vm))).collect();
        snapshot.vm_loads.retain(|name, _| snapshot.vms.contains_key(name));
        snapshot.migrations =
            self.host.migrations().into_iter().map(|migration| (migration.id, Arc::new(migration))).collect();
    }

    fn publish(&self, snapshot: &HostSnapshot) {
        let mut state = self.state.lock();
        state.version += 1;
        state.snapshot = Arc::new(snapshot.clone());
        state.subscriptions.values().filter_map(|(_, waker)| waker.upgrade()).for_each(|waker| waker.wake());
        self.changed.notify_all();
    }
}

/// Returns facts with what is known now of whether the host takes guests: facts are read seldom, and controllers have
/// guests go home as soon as a host takes them again.
fn with_closed(facts: Arc<HostFacts>, closed: Option<String>) -> Arc<HostFacts> {
    if facts.closed == closed {
        return facts;
    }
    Arc::new(HostFacts { closed, ..HostFacts::clone(&facts) })
}

#[cfg(test)]
mod tests {
    use super::super::test_parts::facts;
    use super::*;

    #[test]
    fn facts_say_at_once_whether_the_host_takes_guests() {
        let (read, why) = (Arc::new(facts()), Some("it is to be booted".to_owned()));
        assert!(Arc::ptr_eq(&with_closed(read.clone(), None), &read));
        let closed = with_closed(read.clone(), why.clone());
        assert_eq!(closed.closed, why);
        assert_eq!(*with_closed(closed, None), *read);
    }
}
