//! A fabric in memory, for tests: without an order, with immediate data or without, and with what goes wrong.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::fabric::{
    Abilities, Access, Begun, Completion, Endpoint, FabricError, Region, RemoteMemory, SharedEndpoint, Slice,
};
use crate::memory::{Mapping, SharedMemory};
use crate::rails::Rails;

/// How many operations of an endpoint are under way at most.
const OPERATIONS_MAX: usize = 256;

/// What a fabric promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeAbilities {
    /// Whether a write can carry immediate data. iWARP's cannot.
    pub immediates: bool,
    /// Whether operations end in the order in which they were begun. EFA's do not.
    pub ordered: bool,
}

/// A fabric. Clones are the same.
#[derive(Clone)]
pub struct FakeFabric {
    world: Arc<World>,
    abilities: FakeAbilities,
}

struct World {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    ends: BTreeMap<u64, End>,
    regions: BTreeMap<u64, Arc<FakeRegion>>,
    under_way: Vec<Operation>,
    next: u64,
    random: u64,
    /// Whether nothing completes any more.
    is_stuck: bool,
    /// What is told wrongly of regions of so many bytes.
    wrong: Option<(usize, Wrong)>,
    /// How many writes were refused because of where they were to go.
    refused_writes: usize,
    /// How many more regions may be registered; `None`: as many as there is memory for.
    registrations_left: Option<usize>,
}

/// Makes something else of what a region is.
type Wrong = fn(RemoteMemory) -> RemoteMemory;

#[derive(Default)]
struct End {
    peer: Option<u64>,
    receives: VecDeque<(Slice, u64)>,
    completions: VecDeque<Completion>,
    is_woken: bool,
}

/// An operation that is under way.
struct Operation {
    by: u64,
    token: u64,
    here: Slice,
    what: What,
}

enum What {
    Send,
    Write(RemoteMemory, Option<u32>),
    Read(RemoteMemory),
}

struct FakeRegion {
    mapping: Mapping,
    bytes: usize,
    told: RemoteMemory,
}

impl Region for FakeRegion {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn remote(&self) -> RemoteMemory {
        self.told
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl FakeFabric {
    /// Makes a fabric whose disorder comes from `seed`.
    pub fn new(abilities: FakeAbilities, seed: u64) -> FakeFabric {
        let state = State {
            ends: BTreeMap::new(),
            regions: BTreeMap::new(),
            under_way: Vec::new(),
            next: 1,
            random: seed,
            is_stuck: false,
            wrong: None,
            refused_writes: 0,
            registrations_left: None,
        };
        FakeFabric { world: Arc::new(World { state: Mutex::new(state), changed: Condvar::new() }), abilities }
    }

    /// Opens an endpoint.
    pub fn endpoint(&self) -> SharedEndpoint {
        let mut state = self.world.state.lock();
        let id = state.next;
        state.next += 1;
        state.ends.insert(id, End::default());
        let abilities = Abilities {
            provider: if self.abilities.immediates { "fake" } else { "fake without immediates" }.into(),
            protocol: (0, 0),
            device: "fake".into(),
            immediate_bytes: if self.abilities.immediates { 4 } else { 0 },
            operation_bytes_max: 1 << 30,
        };
        let world = self.world.clone();
        Arc::new(FakeEndpoint { world, id, name: id.to_be_bytes(), abilities, ordered: self.abilities.ordered })
    }

    /// Has nothing complete any more.
    pub fn get_stuck(&self) {
        self.world.state.lock().is_stuck = true;
    }

    /// Tells something wrong of all regions of so many bytes that are registered from now on.
    pub fn tell_wrong(&self, bytes: usize, wrong: fn(RemoteMemory) -> RemoteMemory) {
        self.world.state.lock().wrong = Some((bytes, wrong));
    }

    /// Registers so many regions from now on, of all endpoints together, and refuses what comes after them, as a host
    /// does where a process may lock no more memory (`ulimit -l`). Regions that are dropped make no room for others.
    pub fn limit_registrations(&self, count: usize) {
        self.world.state.lock().registrations_left = Some(count);
    }

    /// Returns how many writes were refused because no region has the key, or not all of the bytes that were to be
    /// written. Nothing was written by these.
    pub fn refused_writes(&self) -> usize {
        self.world.state.lock().refused_writes
    }

    /// Ends every operation that is under way, and each that is begun from now on, with an error.
    pub fn cut(&self) {
        let mut state = self.world.state.lock();
        state.ends.values_mut().for_each(|end| end.peer = None);
        self.world.changed.notify_all();
    }

    /// Gives every endpoint a completion that nothing was begun for.
    pub fn lie(&self, completion: &Completion) {
        let mut state = self.world.state.lock();
        state.ends.values_mut().for_each(|end| end.completions.push_back(completion.clone()));
        self.world.changed.notify_all();
    }
}

/// A fabric as the rails of a host, wherever that is. Guests' memory may go without protection.
#[derive(Clone)]
pub struct FakeRails(pub FakeFabric);

impl fmt::Debug for FakeRails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FakeRails").field(&self.0.abilities).finish()
    }
}

impl Rails for FakeRails {
    fn endpoint(&self, _: IpAddr) -> Result<Option<SharedEndpoint>, FabricError> {
        Ok(Some(self.0.endpoint()))
    }

    fn allows_plaintext(&self) -> bool {
        true
    }

    fn bars(&self, _: &str, _: &dyn Fn() -> bool) -> bool {
        false
    }
}

/// An endpoint.
struct FakeEndpoint {
    world: Arc<World>,
    id: u64,
    name: [u8; 8],
    abilities: Abilities,
    ordered: bool,
}

impl State {
    /// Draws a number below `below` (SplitMix64).
    fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }

    /// Carries out some of what is under way.
    fn run(&mut self, ordered: bool) {
        let mut left = if ordered || self.under_way.is_empty() { 0 } else { self.draw(3) };
        left = left.min(self.under_way.len().saturating_sub(1));
        let mut tries = self.under_way.len();
        while !self.is_stuck && self.under_way.len() > left && tries > 0 {
            tries -= 1;
            let at = if ordered { 0 } else { self.draw(self.under_way.len()) };
            let operation = self.under_way.remove(at);
            match self.carry_out(&operation) {
                Some(done) => self.complete(operation.by, done),
                // The peer has not begun a receive.
                None if ordered => {
                    self.under_way.insert(0, operation);
                    return;
                }
                None => self.under_way.push(operation),
            }
        }
    }

    fn complete(&mut self, at: u64, completion: Completion) {
        if let Some(end) = self.ends.get_mut(&at) {
            end.completions.push_back(completion);
        }
    }

    /// Returns how the operation ended; `None`: it has to wait.
    fn carry_out(&mut self, operation: &Operation) -> Option<Completion> {
        let failed = |words: &str| {
            let why = FabricError::Call { call: "fake".into(), code: 5, words: words.into() };
            Some(Completion::Failed { token: Some(operation.token), why })
        };
        let peer = self.ends.get(&operation.by)?.peer;
        let Some(peer) = peer.filter(|peer| self.ends.contains_key(peer)) else { return failed("the peer is gone") };
        match operation.what {
            What::Send => {
                let (into, token) = self.ends.get_mut(&peer)?.receives.pop_front()?;
                let bytes = operation.here.bytes();
                if into.bytes() < bytes {
                    return failed("the message is too long");
                }
                copy(address(&operation.here)?, address(&into)?, bytes);
                self.complete(peer, Completion::Received { token, bytes });
            }
            What::Write(there, immediate) => {
                let Some(there) = self.place(there, operation.here.bytes()) else {
                    self.refused_writes += 1;
                    return failed("no such memory");
                };
                let token = match immediate {
                    Some(_) => Some(self.ends.get_mut(&peer)?.receives.pop_front()?.1),
                    None => None,
                };
                copy(address(&operation.here)?, there, operation.here.bytes());
                if let Some(immediate) = immediate {
                    self.complete(peer, Completion::Written { token, immediate });
                }
            }
            What::Read(there) => {
                let Some(there) = self.place(there, operation.here.bytes()) else { return failed("no such memory") };
                copy(there, address(&operation.here)?, operation.here.bytes());
            }
        }
        Some(Completion::Done { token: operation.token })
    }

    /// Returns where memory of a peer is, if that has as many bytes there.
    fn place(&self, at: RemoteMemory, bytes: usize) -> Option<*mut u8> {
        let region = self.regions.get(&at.key)?;
        let offset = usize::try_from(at.address).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= region.bytes).then(|| region.mapping.address().wrapping_add(offset))
    }
}

/// Returns where a part of a region of this fabric's begins.
fn address(of: &Slice) -> Option<*mut u8> {
    let region = of.region().as_any().downcast_ref::<FakeRegion>()?;
    Some(region.mapping.address().wrapping_add(of.range().start))
}

fn copy(from: *mut u8, to: *mut u8, bytes: usize) {
    // SAFETY: both lie in regions that live, as long as that; regions do not overlap, as their memory does not.
    unsafe { ptr::copy(from, to, bytes) }
}

impl FakeEndpoint {
    fn begin(&self, here: &Slice, what: What, token: u64) -> Result<Begun, FabricError> {
        let mut state = self.world.state.lock();
        let own = state.under_way.iter().filter(|operation| operation.by == self.id).count();
        if own >= OPERATIONS_MAX {
            return Ok(Begun::Busy);
        }
        state.under_way.push(Operation { by: self.id, token, here: here.clone(), what });
        self.world.changed.notify_all();
        Ok(Begun::Yes)
    }
}

impl Endpoint for FakeEndpoint {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn name(&self) -> &[u8] {
        &self.name
    }

    fn connect(&self, name: &[u8]) -> Result<(), FabricError> {
        let name: [u8; 8] = name.try_into().map_err(|_| FabricError::Misbehaves("no name".into()))?;
        let mut state = self.world.state.lock();
        if let Some(end) = state.ends.get_mut(&self.id) {
            end.peer = Some(u64::from_be_bytes(name));
        }
        Ok(())
    }

    fn register(&self, memory: &SharedMemory, access: Access, key: u64) -> Result<Arc<dyn Region>, FabricError> {
        let mapping = Mapping::new(memory).map_err(|error| FabricError::NoMemory(error.to_string()))?;
        let (bytes, mut state) = (memory.bytes(), self.world.state.lock());
        if let Some(left) = state.registrations_left {
            let none_left = || FabricError::NoMemory("no more of it may be locked".into());
            state.registrations_left = Some(left.checked_sub(1).ok_or_else(none_left)?);
        }
        let wrong = state.wrong.filter(|(of, _)| *of == bytes);
        let told = RemoteMemory { address: 0, key };
        let region = Arc::new(FakeRegion { mapping, bytes, told: wrong.map_or(told, |(_, wrong)| wrong(told)) });
        if access.is_remote() {
            state.regions.insert(key, region.clone());
        }
        Ok(region)
    }

    fn receive(&self, into: &Slice, token: u64) -> Result<Begun, FabricError> {
        let mut state = self.world.state.lock();
        if let Some(end) = state.ends.get_mut(&self.id) {
            end.receives.push_back((into.clone(), token));
        }
        self.world.changed.notify_all();
        Ok(Begun::Yes)
    }

    fn send(&self, from: &Slice, token: u64) -> Result<Begun, FabricError> {
        self.begin(from, What::Send, token)
    }

    fn write(&self, from: &Slice, to: RemoteMemory, immediate: Option<u32>, token: u64) -> Result<Begun, FabricError> {
        self.begin(from, What::Write(to, immediate), token)
    }

    fn read(&self, into: &Slice, from: RemoteMemory, token: u64) -> Result<Begun, FabricError> {
        self.begin(into, What::Read(from), token)
    }

    fn poll(&self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut state = self.world.state.lock();
        state.run(self.ordered);
        let others = state.ends.iter().any(|(id, end)| *id != self.id && !end.completions.is_empty());
        if let Some(end) = state.ends.get_mut(&self.id) {
            completions.extend(end.completions.drain(..));
        }
        if others {
            self.world.changed.notify_all();
        }
        Ok(())
    }

    fn wait(&self, patience: Duration) {
        let mut state = self.world.state.lock();
        let is_idle = state.under_way.is_empty() || state.is_stuck;
        let Some(end) = state.ends.get_mut(&self.id) else { return };
        let has_something = !end.completions.is_empty() || std::mem::take(&mut end.is_woken);
        if !has_something {
            // What waits for a receive of the peer's is tried again soon.
            let patience = if is_idle { patience } else { patience.min(Duration::from_millis(1)) };
            self.world.changed.wait_for(&mut state, patience);
        }
    }

    fn rest(&self) {}

    fn close(&self) -> Result<(), FabricError> {
        self.leave();
        Ok(())
    }

    fn wake(&self) {
        if let Some(end) = self.world.state.lock().ends.get_mut(&self.id) {
            end.is_woken = true;
        }
        self.world.changed.notify_all();
    }
}

impl FakeEndpoint {
    fn leave(&self) {
        let mut state = self.world.state.lock();
        state.ends.remove(&self.id);
        state.under_way.retain(|operation| operation.by != self.id);
        self.world.changed.notify_all();
    }
}

impl Drop for FakeEndpoint {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;

    fn fabric() -> FakeFabric {
        FakeFabric::new(FakeAbilities { immediates: true, ordered: true }, 1)
    }

    fn register(at: &SharedEndpoint, access: Access, key: u64) -> Result<Arc<dyn Region>, FabricError> {
        let buffer = Buffer::new(4096).unwrap();
        at.register(buffer.memory(), access, key)
    }

    #[test]
    fn writes_that_go_nowhere_fail_and_are_counted() {
        let fabric = fabric();
        let (a, b) = (fabric.endpoint(), fabric.endpoint());
        a.connect(b.name()).unwrap();
        let from = Slice::new(register(&a, Access::Local, 1).unwrap(), 0..4096).unwrap();
        let region = register(&b, Access::RemoteWrite, 2).unwrap();
        let (whole, end) = (region.remote(), region.bytes() as u64);
        let at = |address: u64| RemoteMemory { address, ..whole };
        for (to, refused) in [
            (at(0), 0),
            (at(end - 4096), 0),
            (at(end - 4095), 1),
            (at(u64::MAX), 2),
            (RemoteMemory { key: 3, ..whole }, 3),
            // What is registered for operations of its own end alone is nothing that can be written to.
            (RemoteMemory { key: 1, ..whole }, 4),
            (whole, 4),
        ] {
            let before = fabric.refused_writes();
            assert_eq!(a.write(&from, to, None, 5), Ok(Begun::Yes));
            let mut taken = Vec::new();
            a.poll(&mut taken).unwrap();
            match &taken[..] {
                [Completion::Done { token: 5 }] => assert_eq!(refused, before, "{to:?}"),
                [Completion::Failed { token: Some(5), .. }] => assert_eq!(refused, before + 1, "{to:?}"),
                other => panic!("{to:?}: {other:?}"),
            }
            assert_eq!(fabric.clone().refused_writes(), refused, "{to:?}");
        }
        // Where no peer is left, that is why a write fails, and not where it was to go.
        fabric.cut();
        assert_eq!(a.write(&from, at(end), None, 6), Ok(Begun::Yes));
        a.poll(&mut Vec::new()).unwrap();
        assert_eq!(fabric.refused_writes(), 4);
    }

    #[test]
    fn no_more_is_registered_than_the_limit_allows() {
        let fabric = fabric();
        let (a, b) = (fabric.endpoint(), fabric.endpoint());
        let registered = |at: &SharedEndpoint, key: u64| register(at, Access::RemoteWrite, key).map(drop);
        assert_eq!(registered(&a, 1), Ok(()));
        fabric.clone().limit_registrations(2);
        assert_eq!([registered(&a, 2), registered(&b, 3)], [Ok(()), Ok(())]);
        let later = fabric.endpoint();
        for at in [&a, &b, &later, &a] {
            let refused = registered(at, 4);
            assert!(matches!(refused, Err(FabricError::NoMemory(_))), "{refused:?}");
        }
        fabric.limit_registrations(1);
        assert_eq!(registered(&later, 5), Ok(()));
        assert!(registered(&later, 6).is_err());
    }
}
