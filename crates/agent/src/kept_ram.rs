//! Keeps what this host keeps of guests for their way back: the RAM of guests that left, the marks of guests that came.
//!
//! All is in memory only: an agent that ends has forgotten it. Nothing rests on it: whatever is taken from there is
//! verified, page by page. So it is thrown away on any doubt.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_dataplane::{KeptMarks, KeptRam};
use skein_hypervisor::ProcessId;
use skein_inventory::KeptRamPolicy;

/// The kept RAM and marks of this host.
#[derive(Default)]
pub(crate) struct KeptRamStore {
    rams: Mutex<Shelf<KeptRam>>,
    /// The marks, each with the QEMU that the guest came to: in another QEMU it is another guest.
    marks: Mutex<Shelf<(KeptMarks, ProcessId)>>,
}

impl KeptRamStore {
    /// Keeps the RAM of a guest that left for `peer`, if there is room for it.
    pub(crate) fn put_ram(&self, vm: &str, peer: &str, ram: KeptRam, keeping: KeptRamPolicy) -> bool {
        let bytes = ram.bytes();
        self.rams.lock().put(vm, peer, ram, bytes, keeping, Instant::now())
    }

    /// Lets go of the RAM of all guests.
    pub(crate) fn let_go_of_rams(&self) {
        self.rams.lock().retain(|_| false);
    }

    /// Keeps the marks of a guest that came from `peer` into this QEMU, if that host keeps the guest's RAM.
    pub(crate) fn put_marks(&self, vm: &str, peer: &str, marks: KeptMarks, qemu: ProcessId, keeping: KeptRamPolicy) {
        if marks.ram_bytes() <= keeping.ram_bytes {
            self.marks.lock().put(vm, peer, (marks, qemu), 0, keeping, Instant::now());
        }
    }

    /// Takes the RAM of a guest that comes back from `peer`. A guest that comes from elsewhere needs its RAM no more.
    pub(crate) fn take_ram(&self, vm: &str, peer: &str) -> Option<KeptRam> {
        self.rams.lock().take(vm, peer, Instant::now())
    }

    /// Takes the marks of a guest that goes back to `peer` from this QEMU. For a guest that goes elsewhere they are of
    /// no use.
    pub(crate) fn take_marks(&self, vm: &str, peer: &str, qemu: ProcessId) -> Option<KeptMarks> {
        let (marks, came_to) = self.marks.lock().take(vm, peer, Instant::now())?;
        (came_to == qemu).then_some(marks)
    }

    /// Lets go of what is too old, of the RAM of guests that run here, and of the marks of guests that do not.
    pub(crate) fn tidy(&self, runs: impl Fn(&str) -> bool) {
        let now = Instant::now();
        self.rams.lock().retain(|kept| kept.until > now && !runs(&kept.vm));
        self.marks.lock().retain(|kept| kept.until > now && runs(&kept.vm));
    }

    /// Frees kept RAM for a guest that has to have it: the RAM of the guest that left first, `vm`'s own last of all.
    /// Returns when the RAM is free. Returns false if nothing is kept.
    pub(crate) fn make_room(&self, vm: &str) -> bool {
        let item = self.rams.lock().take_first(vm);
        item.is_some()
    }

    /// Returns the bytes of kept RAM.
    pub(crate) fn ram_bytes(&self) -> u64 {
        self.rams.lock().bytes()
    }
}

/// What is kept of one guest.
struct StoredItem<T> {
    vm: String,
    peer: String,
    bytes: u64,
    until: Instant,
    what: T,
}

/// The kept items, the oldest first.
struct Shelf<T>(Vec<StoredItem<T>>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Shelf(Vec::new())
    }
}

impl<T: Send + 'static> Shelf<T> {
    fn bytes(&self) -> u64 {
        self.0.iter().map(|item| item.bytes).sum()
    }

    /// Adds an item. Returns false if the item is more than may be kept at all.
    fn put(&mut self, vm: &str, peer: &str, what: T, bytes: u64, keeping: KeptRamPolicy, now: Instant) -> bool {
        self.retain(|item| item.until > now && item.vm != vm);
        let until = now.checked_add(Duration::from_secs(keeping.time_s));
        let Some(until) = until.filter(|_| bytes <= keeping.ram_bytes) else { return false };
        while self.bytes() + bytes > keeping.ram_bytes {
            let_go(vec![self.0.remove(0)]);
        }
        self.0.push(StoredItem { vm: vm.to_owned(), peer: peer.to_owned(), bytes, until, what });
        true
    }

    fn take(&mut self, vm: &str, peer: &str, now: Instant) -> Option<T> {
        let at = self.0.iter().position(|item| item.vm == vm)?;
        let item = self.0.remove(at);
        if item.peer == peer && item.until > now {
            return Some(item.what);
        }
        let_go(vec![item]);
        None
    }

    /// Takes the item that was added first, of a guest other than `vm` if there is one.
    fn take_first(&mut self, vm: &str) -> Option<StoredItem<T>> {
        let first = self.0.iter().position(|item| item.vm != vm).or_else(|| (!self.0.is_empty()).then_some(0))?;
        Some(self.0.remove(first))
    }

    fn retain(&mut self, is_wanted: impl Fn(&StoredItem<T>) -> bool) {
        let_go(self.0.extract_if(.., |item| !is_wanted(item)).collect());
    }
}

/// Frees items in a thread, because freeing RAM may take a while.
fn let_go<T: Send + 'static>(items: Vec<StoredItem<T>>) {
    if !items.is_empty() {
        let _ = thread::Builder::new().name("free".into()).spawn(move || drop(items));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPING: KeptRamPolicy = KeptRamPolicy { ram_bytes: 10, time_s: 60 };

    fn names(shelf: &Shelf<()>) -> Vec<&str> {
        shelf.0.iter().map(|item| &item.vm[..]).collect()
    }

    #[test]
    fn the_oldest_goes_first_and_what_does_not_fit_is_not_kept() {
        let (mut shelf, now) = (Shelf::default(), Instant::now());
        let mut put = |vm, bytes| {
            let put = shelf.put(vm, "b", (), bytes, KEEPING, now);
            (put, names(&shelf).join(" "), shelf.bytes())
        };
        assert_eq!(put("v1", 4), (true, "v1".into(), 4));
        assert_eq!(put("v2", 4), (true, "v1 v2".into(), 8));
        assert_eq!(put("v3", 11), (false, "v1 v2".into(), 8));
        assert_eq!(put("v3", 6), (true, "v2 v3".into(), 10));
        assert_eq!(put("v2", 2), (true, "v3 v2".into(), 8), "one of each guest");
        assert_eq!(put("v4", 10), (true, "v4".into(), 10));
        assert_eq!(put("v4", 11), (false, String::new(), 0), "that one is of a trip that is no more the last");
    }

    #[test]
    fn room_is_made_by_the_oldest_and_the_guest_that_needs_it_keeps_its_own_longest() {
        let (mut shelf, now) = (Shelf::default(), Instant::now());
        assert!(["v1", "v2", "v3"].iter().all(|vm| shelf.put(vm, "b", (), 1, KEEPING, now)));
        let mut first = || shelf.take_first("v1").map(|item| item.vm);
        assert_eq!(
            [first(), first(), first(), first()],
            ["v2", "v3", "v1", ""].map(|vm| (!vm.is_empty()).then(|| vm.into()))
        );
    }

    #[test]
    fn it_is_for_the_way_back_in_time() {
        let (mut shelf, now) = (Shelf::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        for (peer, at, expect) in [("b", now, Some(())), ("c", now, None), ("b", later, None)] {
            assert!(shelf.put("v", "b", (), 1, KEEPING, now));
            assert_eq!(shelf.take("v", peer, at), expect);
            assert_eq!(shelf.take("v", "b", now), None, "once");
        }
        assert!(shelf.put("v1", "b", (), 1, KEEPING, now) && shelf.put("v2", "b", (), 1, KEEPING, later));
        assert_eq!(names(&shelf), ["v2"]);
    }
}
