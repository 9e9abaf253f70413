//! Is the room that this host has, and the promises of room.
//!
//! Room is *reserved* where a migration is let in, not only found by a check before: two guests that were checked at
//! once may fit one by one and not together. A reservation counts as promised RAM until its guest has arrived (then the
//! guest's own RAM that is not allocated yet counts), or the migration ended otherwise. A guest that is started here is
//! let in by the same book, and has its reservation until its QEMU runs.

mod closing;
pub(crate) mod limits;
mod qemu_memory;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use skein_guest_ram::{RamBlock, is_guest_ram};
use skein_handover::MigrationId;
use skein_host::ControlGroups;
use skein_hypervisor::{Guest, ProcessId};
use skein_inventory::{Accel, CopyRoom, NoRoom, Room, RoomNeed, closed_cure, refusal, refused_copy};
use tracing::{info, warn};

use self::closing::Closing;
use self::limits::{Charged, ChargedGroups, ProcFiles, Promise};
use self::qemu_memory::QemuMemory;
use crate::error_chain;
use crate::kept_ram::KeptRamStore;
use crate::vms::{Running, Vm, Vms};

/// Says how long a QEMU may take to tell its guest's RAM; after that its mappings are read instead.
const ANSWER_TIME: Duration = Duration::from_millis(300);
/// Holds the share of a guest's RAM that hashes of pages take, in per cent; marks take the rest (docs/pages.md).
const DELTA_PER_CENT_MAX: f64 = 3.2;
const MARKS_PER_CENT: f64 = 0.5;

/// The room of this host.
pub(crate) struct HostRoom {
    host: String,
    /// The VMs of this host.
    pub(crate) vms: Arc<Vms>,
    /// The kept RAM and marks of guests that left or came.
    pub(crate) kept: Arc<KeptRamStore>,
    reserved: Mutex<Reservations>,
    /// Whether this host takes guests.
    closing: Closing,
    /// Says why the host may be booted at any moment.
    may_boot: OnceLock<Box<dyn Fn() -> Option<String> + Send + Sync>>,
    /// Where QEMUs have their guests' RAM, as they said when they were first asked.
    ram_at: Mutex<HashMap<ProcessId, Vec<Range<u64>>>>,
}

/// The reservations, by holder.
type Reservations = BTreeMap<ReservedFor, Reserved>;

/// The holder of a reservation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReservedFor {
    Migration(MigrationId),
    /// The holder is a VM of this name that is being started here.
    Start(String),
}

impl ReservedFor {
    /// Returns whether this VM's process is the holder's, or will be.
    fn has(&self, vm: &Vm) -> bool {
        match self {
            ReservedFor::Migration(id) => vm.migration() == Some(*id),
            ReservedFor::Start(name) => vm.name == *name && vm.process().is_none(),
        }
    }
}

/// What the holder was promised.
#[derive(Clone, Debug)]
enum Reserved {
    /// The holder is a guest that comes here, or is started here.
    Incoming { vm: String, need: RoomNeed },
    /// The holder is the copy of a guest that leaves.
    Outgoing { vm: String, agent_bytes: u64 },
}

/// Whether a guest is started without room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overcommit {
    Allowed,
    Refused,
}

/// Room that is its holder's until this is dropped.
pub(crate) struct Reservation {
    rooms: Arc<HostRoom>,
    holder: ReservedFor,
    /// Whether the room is held even if there is none.
    overcommit: Overcommit,
}

impl Reservation {
    /// Checks the room again, when there is a QEMU that is to take the guest. The QEMU may have more RAM than was said,
    /// or be in a control group of its own.
    ///
    /// # Errors
    /// As for [`HostRoom::admit`].
    pub(crate) fn confirm(&self, vm: &Vm, need: RoomNeed) -> Result<(), String> {
        let pid = vm.process().map(|process| process.id().pid);
        let ram_bytes = asked(vm).unwrap_or(0).max(need.ram_bytes);
        let need = RoomNeed { ram_bytes, ..need };
        self.rooms.reserve(&self.holder, &vm.name, need, pid, self.overcommit).map_err(|lack| lack.to_string())
    }

    /// Checks the same for a guest that was started here. `running` is its QEMU, which is not registered yet.
    pub(crate) fn confirm_start(&self, vm: &Vm, running: &Running, need: Option<RoomNeed>) -> Result<(), NoRoom> {
        let said = ram_asked(&*running.guest).unwrap_or(0);
        let need = need.unwrap_or_else(|| RoomNeed::new(0, None, 1, Accel::Auto));
        let need = RoomNeed { ram_bytes: said.max(need.ram_bytes), ..need };
        self.rooms.reserve(&self.holder, &vm.name, need, Some(running.process.id().pid), self.overcommit)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.rooms.reserved.lock().remove(&self.holder);
    }
}

/// Returns the bytes that the agent takes of the source for a copy. `delta_memory` is in per cent of the RAM, as for
/// migrations.
pub(crate) fn agent_bytes(ram_bytes: u64, delta_memory: f64) -> u64 {
    let per_cent = delta_memory.clamp(0.0, DELTA_PER_CENT_MAX) + MARKS_PER_CENT;
    (ram_bytes as f64 * per_cent / 100.0) as u64
}

impl HostRoom {
    pub(crate) fn new(host: String, vms: Arc<Vms>) -> Arc<HostRoom> {
        let closing = Closing::read(vms.closed_file());
        let (kept, reserved, ram_at, may_boot) = Default::default();
        Arc::new(HostRoom { host, vms, kept, reserved, closing, may_boot, ram_at })
    }

    /// Returns what a QEMU that the agent starts gets at most. What was kept of guests that left counts as free.
    pub(crate) fn room(&self) -> Room {
        let reserved = self.reserved.lock().clone();
        self.read(&reserved, None, None, self.kept.ram_bytes())
    }

    /// Takes no guests for a time, if there is none and none is on its way.
    ///
    /// # Errors
    /// Which guest there is, or why that cannot be written down.
    pub(crate) fn close(&self, time: Duration) -> Result<(), String> {
        // Whoever is let in has a reservation until its guest runs.
        let reserved = self.reserved.lock();
        if let Some(Reserved::Incoming { vm, .. } | Reserved::Outgoing { vm, .. }) = reserved.values().next() {
            return Err(format!("{vm} is on its way, or is being started"));
        }
        if let Some(vm) = self.vms.all().into_iter().find(|vm| vm.any_process().is_some()) {
            return Err(format!("{} runs on {}", vm.name, self.host));
        }
        self.closing.close(time).map_err(|error| format!("that cannot be written down: {error}"))
    }

    /// Takes guests again, unless the host may be booted at any moment.
    ///
    /// # Errors
    /// It may.
    pub(crate) fn open(&self) -> Result<(), String> {
        if let Some(why) = self.may_boot() {
            return Err(format!("{} may be booted at any moment: {why}", self.host));
        }
        self.closing.open();
        Ok(())
    }

    /// Has no guest be let in while `may_boot` says why the host may be booted at any moment. The call comes once.
    pub(crate) fn closed_while(&self, may_boot: impl Fn() -> Option<String> + Send + Sync + 'static) {
        let _ = self.may_boot.set(Box::new(may_boot));
    }

    fn may_boot(&self) -> Option<String> {
        self.may_boot.get().and_then(|may_boot| may_boot())
    }

    /// Returns why this host takes no guest. `None`: it takes guests.
    pub(crate) fn closed(&self) -> Option<String> {
        let is_closed = self.closing.is_closed();
        self.may_boot().or_else(|| is_closed.then(|| "a controller is about to have it switched off or updated".into()))
    }

    /// Refuses a guest while this host takes none.
    fn refuse_closed(&self) -> Result<(), NoRoom> {
        match self.closed() {
            Some(why) => {
                Err(NoRoom { what: format!("{} takes no guest: {why}", self.host), cure: closed_cure(&self.host) })
            }
            None => Ok(()),
        }
    }

    /// Lets a guest in, if there is room for it, and reserves the room. What was kept of guests that left is let go of
    /// if it is needed, the guest's own last.
    ///
    /// # Errors
    /// There is no room: which limit is in the way, and what to do.
    pub(crate) fn admit(self: &Arc<Self>, id: MigrationId, vm: &str, need: RoomNeed) -> Result<Reservation, String> {
        let holder = ReservedFor::Migration(id);
        self.reserve(&holder, vm, need, None, Overcommit::Refused).map_err(|lack| lack.to_string())?;
        Ok(Reservation { rooms: self.clone(), holder, overcommit: Overcommit::Refused })
    }

    /// Lets a guest be started here, if there is room for it or `overcommit` allows a start without, and reserves the
    /// room until the guest runs. The guest's VM is busy: nobody else starts it. `need` is `None` if that is not known
    /// before its QEMU says it.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn admit_start(
        self: &Arc<Self>,
        vm: &str,
        need: Option<RoomNeed>,
        overcommit: Overcommit,
    ) -> Result<Reservation, NoRoom> {
        let holder = ReservedFor::Start(vm.to_owned());
        match need {
            Some(need) => self.reserve(&holder, vm, need, None, overcommit)?,
            None => self.refuse_closed()?,
        }
        Ok(Reservation { rooms: self.clone(), holder, overcommit })
    }

    fn reserve(
        &self,
        holder: &ReservedFor,
        vm: &str,
        need: RoomNeed,
        qemu: Option<u32>,
        overcommit: Overcommit,
    ) -> Result<(), NoRoom> {
        let mut reserved = self.reserved.lock();
        self.refuse_closed()?;
        let refused = |rooms: &HostRoom, reserved: &_| {
            let room = rooms.read(reserved, Some(holder), qemu.map(|pid| (pid, need.ram_bytes)), 0);
            (refusal(&room, &need, &rooms.host, vm), room.unread)
        };
        let (mut why, mut unread) = refused(self, &reserved);
        while why.is_some() && self.kept.make_room(vm) {
            (why, unread) = refused(self, &reserved);
        }
        match why {
            Some(why) if overcommit == Overcommit::Allowed => {
                warn!(vm, "it is started without room for it, as somebody wants: {}", why.what)
            }
            Some(why) => return Err(why),
            None => {}
        }
        if !unread.is_empty() {
            info!(vm, "not all limits of this host can be read: {}", unread.join("; "));
        }
        reserved.insert(holder.clone(), Reserved::Incoming { vm: vm.to_owned(), need });
        Ok(())
    }

    /// Lets the copy of a guest begin, if the source has room for what the copy takes, and reserves the room.
    ///
    /// # Errors
    /// There is no room: which limit is in the way, and what to do.
    pub(crate) fn admit_copy(
        self: &Arc<Self>,
        id: MigrationId,
        vm: &Vm,
        agent_bytes: u64,
    ) -> Result<Reservation, String> {
        let mut reserved = self.reserved.lock();
        let refused = |kept| {
            let copy = self.copy_with(&reserved, vm, agent_bytes, kept)?;
            refused_copy(&copy, &self.host, &vm.name)
        };
        let mut why = refused(0);
        while why.is_some() && self.kept.make_room(&vm.name) {
            why = refused(0);
        }
        if let Some(why) = why {
            return Err(why);
        }
        let holder = ReservedFor::Migration(id);
        reserved.insert(holder.clone(), Reserved::Outgoing { vm: vm.name.clone(), agent_bytes });
        Ok(Reservation { rooms: self.clone(), holder, overcommit: Overcommit::Refused })
    }

    /// Returns what the copy of a guest takes of this host, and has. `None`: its QEMU's memory cannot be read.
    pub(crate) fn copy(&self, vm: &Vm, agent_bytes: u64) -> Option<CopyRoom> {
        let reserved = self.reserved.lock().clone();
        self.copy_with(&reserved, vm, agent_bytes, self.kept.ram_bytes())
    }

    fn copy_with(&self, reserved: &Reservations, vm: &Vm, agent_bytes: u64, kept: u64) -> Option<CopyRoom> {
        let pid = vm.process()?.id().pid;
        let held = QemuMemory::of(pid)
            .inspect_err(|error| warn!(vm = vm.name, "its RAM cannot be looked at: {error}"))
            .ok()?;
        let (own, theirs) = (self.own_groups(), ControlGroups::of(pid).unwrap_or_default());
        // Of RAM of its own QEMU allocates nothing when it reads what nobody has touched.
        let mut groups = vec![ChargedGroups { groups: &own, charged: Charged::Agent }];
        if held.holes() > 0 {
            groups.insert(0, ChargedGroups { groups: &theirs, charged: Charged::Qemu });
        }
        // Guests that only run may take what they were promised, or not; guests that are copied do.
        let (others, unread) = self.promises(reserved, None, Some(&vm.name));
        let promised_bytes = others.iter().map(|promise| promise.bytes).fold(0, u64::saturating_add);
        let promises: Vec<Promise> = reserved
            .values()
            .filter_map(|other| match other {
                Reserved::Outgoing { vm: other, agent_bytes } if *other != vm.name => {
                    let pid = self.vms.get(other).ok()?.process()?.id().pid;
                    let bytes = QemuMemory::of(pid).ok()?.holes().saturating_add(*agent_bytes);
                    let groups = ControlGroups::of(pid).unwrap_or_default();
                    Some(Promise { name: other.clone(), bytes, commit_bytes: bytes, huge_bytes: 0, groups })
                }
                _ => None,
            })
            .chain(self.arriving(reserved, None))
            .collect();
        let mut room = limits::room(&ProcFiles::read(), &groups, &promises, &QemuMemory::default(), kept);
        room.unread.extend(unread);
        Some(CopyRoom { holes_bytes: held.holes(), agent_bytes, room, promised_bytes })
    }

    fn own_groups(&self) -> ControlGroups {
        ControlGroups::own().unwrap_or_else(|error| {
            let unread = vec![format!("control groups: /proc/self/cgroup: {error}")];
            let mut groups = ControlGroups::default();
            groups.unread = unread;
            groups
        })
    }

    /// Reads the room. The promise of `except` does not count: it is the holder that asks. `qemu` is the QEMU that asks
    /// and how much RAM it is to have.
    fn read(&self, reserved: &Reservations, except: Option<&ReservedFor>, qemu: Option<(u32, u64)>, kept: u64) -> Room {
        let own = self.own_groups();
        let theirs = qemu.and_then(|(pid, ram_bytes)| {
            Some((ControlGroups::of(pid).ok()?, QemuMemory::of(pid).unwrap_or_default(), ram_bytes))
        });
        let (held, ram_bytes) = theirs.as_ref().map(|(_, held, ram_bytes)| (*held, *ram_bytes)).unwrap_or_default();
        let groups = limits::charged(&own, theirs.as_ref().map(|(groups, held, _)| (groups, held)), ram_bytes);
        let (promises, unread) = self.promises(reserved, except, None);
        let mut room = limits::room(&ProcFiles::read(), &groups, &promises, &held, kept);
        room.unread.extend(unread);
        room
    }

    /// Returns all that guests of this host were promised and do not have yet, without the promises of one holder and
    /// one guest; and the guests whose promises cannot be read.
    fn promises(
        &self,
        reserved: &Reservations,
        except: Option<&ReservedFor>,
        but: Option<&str>,
    ) -> (Vec<Promise>, Vec<String>) {
        let mut unread = Vec::new();
        let mut not_told = Vec::new();
        let is_arriving = |vm: &Vm| {
            let id = vm.migration();
            let promise = id.and_then(|id| reserved.get(&ReservedFor::Migration(id)));
            matches!(promise, Some(Reserved::Incoming { vm: name, .. }) if *name == vm.name)
        };
        let runs =
            self.vms.all().into_iter().filter(|vm| Some(&*vm.name) != but && !is_arriving(vm)).filter_map(|vm| {
                let pid = vm.process()?.id().pid;
                if except.is_some_and(|holder| holder.has(&vm)) {
                    return None;
                }
                let held = match QemuMemory::of(pid) {
                    Ok(held) => held,
                    Err(error) => {
                        // A guest that has ended has no promise.
                        let is_there = vm.process().is_some_and(|process| process.is_alive().unwrap_or(true));
                        unread.extend(
                            is_there
                                .then(|| format!("RAM that {} was promised and does not use yet: {error}", vm.name)),
                        );
                        return None;
                    }
                };
                let groups = ControlGroups::of(pid).unwrap_or_default();
                let ram_bytes = ram_bytes(&vm, &held);
                let held = match held.private_ram(ram_bytes) {
                    0 => held,
                    private_ram => self.without_own(&vm, held, private_ram).unwrap_or_else(|why| {
                        not_told.push(format!("what of {}'s memory is its guest's RAM: {why}", vm.name));
                        held
                    }),
                };
                let bytes = held.pending(ram_bytes);
                let (name, commit_bytes, huge_bytes) = (vm.name.clone(), held.holes(), held.huge_pending());
                Some(Promise { name, bytes, commit_bytes, huge_bytes, groups })
            });
        let mut promises: Vec<Promise> = runs.collect();
        promises.extend(self.arriving(reserved, except));
        unread.extend(not_told);
        (promises, unread)
    }

    /// Takes what a QEMU itself has out of what may be its guest's RAM.
    fn without_own(&self, vm: &Vm, held: QemuMemory, private_ram: u64) -> Result<QemuMemory, String> {
        let id = vm.process().ok_or("its QEMU has ended")?.id();
        let is_all = |ram: &Vec<Range<u64>>| ram.iter().map(|at| at.end - at.start).sum::<u64>() >= private_ram;
        let known = self.ram_at.lock().get(&id).cloned();
        // Memory may have been plugged in since.
        let ram = match known.filter(is_all) {
            Some(ram) => ram,
            None => {
                let guest = vm.running().ok_or("its QEMU is not in contact")?.guest;
                let blocks = guest.with_patience(ANSWER_TIME).ram_blocks().map_err(|error| error_chain(&error))?;
                let blocks = blocks.iter().filter(|block| is_guest_ram(&block.name, block.used_bytes));
                let at =
                    |block: &RamBlock| Some(block.host_address?..block.host_address?.checked_add(block.max_bytes)?);
                let ram: Vec<Range<u64>> = blocks.filter_map(at).collect();
                let mut ram_at = self.ram_at.lock();
                let running: Vec<ProcessId> = self.vms.all().iter().filter_map(|vm| Some(vm.process()?.id())).collect();
                ram_at.retain(|id, _| running.contains(id));
                ram_at.insert(id, ram.clone());
                ram
            }
        };
        if ram.is_empty() {
            return Err("its QEMU does not tell where it has it".into());
        }
        held.without_own(id.pid, &ram).map_err(|error| error.to_string())
    }

    /// Returns the promises of guests that are let in and have not arrived.
    fn arriving<'a>(
        &'a self,
        reserved: &'a Reservations,
        except: Option<&'a ReservedFor>,
    ) -> impl Iterator<Item = Promise> + 'a {
        reserved.iter().filter(move |(holder, _)| Some(*holder) != except).filter_map(|(holder, reserved)| {
            let Reserved::Incoming { vm, need } = reserved else { return None };
            // A guest that has arrived counts as a guest that runs here.
            if self.vms.get(vm).is_ok_and(|vm| vm.process().is_some() && !holder.has(&vm)) {
                return None;
            }
            let pid = match holder {
                ReservedFor::Migration(id) => self.vms.of_migration(*id).and_then(|vm| vm.process()),
                ReservedFor::Start(name) => self.vms.get(name).ok().and_then(|vm| vm.starting()),
            };
            let pid = pid.map(|process| process.id().pid);
            let held = pid.and_then(|pid| QemuMemory::of(pid).ok()).unwrap_or_default();
            let has = held.files_allocated.saturating_add(held.private);
            let groups = pid.and_then(|pid| ControlGroups::of(pid).ok()).unwrap_or_else(|| self.own_groups());
            let huge_bytes =
                if need.hugepages.is_some() { need.ram_bytes.saturating_sub(held.huge_allocated) } else { 0 };
            let bytes = need.memory_bytes().saturating_sub(has);
            let commit_bytes = held.commit_pending(need);
            Some(Promise { name: vm.clone(), bytes, commit_bytes, huge_bytes, groups })
        })
    }
}

/// Returns how much RAM a guest has: by its definition, else by its QEMU's word, else by its QEMU's mappings.
fn ram_bytes(vm: &Vm, held: &QemuMemory) -> u64 {
    let mapped = held.files.saturating_add(held.huge);
    let defined = vm.launch().definition().map(|definition| definition.memory_bytes);
    defined.or_else(|| asked(vm)).unwrap_or(0).max(mapped)
}

/// Returns the RAM of a guest by its QEMU's word, with what was plugged in.
pub(crate) fn asked(vm: &Vm) -> Option<u64> {
    ram_asked(&*vm.running()?.guest)
}

fn ram_asked(guest: &dyn Guest) -> Option<u64> {
    guest.with_patience(ANSWER_TIME).ram_size().ok().map(|size| size.total_bytes())
}

#[cfg(test)]
mod tests {
    use skein_inventory::Resource;
    use skein_units::GIB;

    use skein_hypervisor::QemuHypervisor;

    use super::*;
    use crate::dirs::Dirs;

    fn rooms(dir: &std::path::Path) -> Arc<HostRoom> {
        let dirs = Dirs { state: dir.join("state"), run: dir.join("run") };
        dirs.create().unwrap();
        HostRoom::new(
            "hosta".into(),
            Vms::open(dirs, Arc::new(QemuHypervisor), None, std::time::Duration::from_secs(60)).unwrap(),
        )
    }

    fn need(ram_bytes: u64) -> Option<RoomNeed> {
        Some(RoomNeed::new(ram_bytes, None, 1, Accel::Kvm))
    }

    #[test]
    fn who_is_started_is_let_in_by_the_same_book_as_who_arrives() {
        let dir = tempfile::tempdir().unwrap();
        let rooms = rooms(dir.path());
        let refused = |result: Result<Reservation, NoRoom>| result.err().expect("there is no room").what;
        let left = || rooms.room().left(Resource::Ram).unwrap();
        let most = left() / 10 * 7;
        assert!(refused(rooms.admit_start("hungry", need(1 << 50), Overcommit::Refused)).contains("hungry needs"));
        let first = rooms.admit_start("v1", need(most), Overcommit::Refused).expect("there is room for one");
        let told = refused(rooms.admit_start("v2", need(most), Overcommit::Refused));
        assert!(told.contains("hosta") && told.contains("that v1 may still take and v2 needs"), "{told}");
        // A migration is refused because of the start, and the other way round.
        let arriving = rooms.admit(MigrationId(7), "v3", need(most).unwrap());
        assert!(arriving.err().unwrap().contains("that v1 may still take"));
        drop(first);
        let arriving = rooms.admit(MigrationId(7), "v3", need(most).unwrap()).unwrap();
        assert!(refused(rooms.admit_start("v2", need(most), Overcommit::Refused)).contains("that v3 may still take"));
        // The overcommit is on purpose; then others see that the room is promised.
        let beyond = rooms.admit_start("v2", need(most), Overcommit::Allowed).expect("somebody wants it");
        assert_eq!(left(), 0);
        drop((arriving, beyond));
        assert!(left() > most / 2 && rooms.reserved.lock().is_empty());
    }

    #[test]
    fn a_host_that_is_about_to_be_switched_off_lets_nobody_in_also_after_the_agents_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = rooms(dir.path());
        let starting = first.admit_start("v1", need(GIB / 64), Overcommit::Refused).unwrap();
        assert!(first.close(Duration::from_secs(600)).unwrap_err().contains("v1 is on its way"));
        drop(starting);
        first.close(Duration::from_secs(600)).unwrap();
        let again = rooms(dir.path());
        for need in [need(GIB / 64), None] {
            let told = again.admit_start("v1", need, Overcommit::Allowed).err().expect("nobody is let in");
            assert_eq!(told.what, "hosta takes no guest: a controller is about to have it switched off or updated");
            assert!(told.cure.contains("skein host resume hosta"), "{}", told.cure);
        }
        assert!(again.admit(MigrationId(7), "v2", need(GIB / 64).unwrap()).is_err());
        again.open().unwrap();
        assert!(again.admit_start("v1", None, Overcommit::Refused).is_ok());
        assert!(rooms(dir.path()).admit_start("v1", None, Overcommit::Refused).is_ok());
        again.close(Duration::ZERO).unwrap();
        assert!(again.admit_start("v1", None, Overcommit::Refused).is_ok(), "its time is over");
    }

    #[test]
    fn a_host_that_may_be_booted_at_any_moment_lets_nobody_in_whatever_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let rooms = rooms(dir.path());
        let may_boot = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let asked = may_boot.clone();
        let why = || "it is to be booted".to_owned();
        rooms.closed_while(move || asked.load(std::sync::atomic::Ordering::SeqCst).then(why));
        assert_eq!(rooms.open().unwrap_err(), "hosta may be booted at any moment: it is to be booted");
        assert_eq!(rooms.closed().as_deref(), Some("it is to be booted"));
        assert!(rooms.admit_start("v1", None, Overcommit::Allowed).is_err());
        assert!(rooms.admit(MigrationId(7), "v2", need(GIB / 64).unwrap()).is_err());
        may_boot.store(false, std::sync::atomic::Ordering::SeqCst);
        rooms.open().unwrap();
        assert!(rooms.admit_start("v1", None, Overcommit::Refused).is_ok());
    }

    #[test]
    fn a_start_whose_need_is_not_known_reserves_nothing_before_its_qemu_says() {
        let dir = tempfile::tempdir().unwrap();
        let rooms = rooms(dir.path());
        let unknown = rooms.admit_start("v1", None, Overcommit::Refused).unwrap();
        assert!(rooms.reserved.lock().is_empty());
        rooms.reserve(&unknown.holder, "v1", need(GIB / 64).unwrap(), None, Overcommit::Refused).unwrap();
        assert_eq!(rooms.reserved.lock().len(), 1);
        drop(unknown);
        assert!(rooms.reserved.lock().is_empty());
    }
}
