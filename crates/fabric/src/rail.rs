//! Is a rail of libfabric: a domain, and endpoints with a completion queue of their own.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io::{Read, Write};
use std::mem::zeroed;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use crate::fabric::{Abilities, Access, Begun, Completion, Endpoint, FabricError, Region, RemoteMemory, Slice};
use crate::ffi::{
    FI_ADDR_UNSPEC, FI_CQ_FORMAT_DATA, FI_DELIVERY_COMPLETE, FI_EAGAIN, FI_EAVAIL, FI_ENABLE, FI_GETWAIT,
    FI_MR_VIRT_ADDR, FI_READ, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_TRANSMIT,
    FI_WAIT_FD, FI_WAIT_NONE, FI_WRITE, fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry,
    fi_msg_rma, fi_rma_iov, fid, fid_av, fid_cq, fid_domain, fid_ep, fid_fabric, fid_mr, iovec,
};
use crate::library::{Library, Offer};
use crate::memory::Memory;

/// How many operations of an endpoint are under way at most.
pub const OPERATIONS_MAX: usize = 1024;
/// How many completions are taken at once.
const COMPLETIONS: usize = 16;
/// Bounds an endpoint's name.
const NAME_BYTES_MAX: usize = 256;
/// How long a wait lasts with a provider whose completions nobody can wait for (EFA, shm) …
const NAP: Duration = Duration::from_micros(50);
/// … at first, and at most so many times as long when nothing has come for as many waits.
const NAPS_MAX: u32 = 100;

/// Lets one thread at a time into the library with what belongs to a rail. `FI_THREAD_SAFE` promises as much, but
/// releases that are in use crash where one thread completes operations while another begins some (`ofi_rxm` of 1.17).
/// Calls are few: one for hundreds of kilobytes.
#[derive(Clone, Default)]
struct Turn(Arc<Mutex<()>>);

/// An object of libfabric's, closed when dropped.
struct Object<T> {
    at: NonNull<T>,
    turn: Turn,
}

impl<T> Object<T> {
    /// Takes what a call has made.
    fn new(
        library: &Library,
        turn: &Turn,
        call: &'static str,
        make: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Self, FabricError> {
        let mut at = null_mut();
        let code = {
            let _turn = turn.0.lock();
            make(&mut at)
        };
        if code < 0 {
            return Err(library.error(call, code as isize));
        }
        let at = NonNull::new(at).ok_or_else(|| FabricError::Misbehaves(format!("{call} made nothing")))?;
        Ok(Object { at, turn: turn.clone() })
    }

    fn raw(&self) -> *mut T {
        self.at.as_ptr()
    }

    /// Every object begins with a `fid`.
    fn fid(&self) -> *mut fid {
        self.at.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        let _turn = self.turn.0.lock();
        // SAFETY: the object lives until here, and what was made of it is closed already: owners drop in that order.
        unsafe { ((*(*self.fid()).ops).close)(self.fid()) };
    }
}

// SAFETY: the domain is opened with FI_THREAD_SAFE: its objects may be used by any thread, and by several at once.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

/// A rail: a device that is open. Endpoints of a rail share what the rail has registered.
pub struct Rail {
    // In the order in which they are closed.
    domain: Object<fid_domain>,
    fabric: Object<fid_fabric>,
    offer: Offer,
    next_key: AtomicU64,
    turn: Turn,
}

impl Rail {
    /// Opens what was offered.
    ///
    /// # Errors
    /// The library cannot.
    pub fn open(offer: Offer) -> Result<Arc<Rail>, FabricError> {
        let (library, info, turn) = (offer.library(), offer.info(), Turn::default());
        // SAFETY: the offer has all its parts, and outlives both objects.
        let fabric = Object::new(library, &turn, "fi_fabric", |at| unsafe {
            (library.fabric)((*info).fabric_attr, at, null_mut())
        })?;
        // SAFETY: as above.
        let domain = Object::new(library, &turn, "fi_domain", |at| unsafe {
            ((*(*fabric.raw()).ops).domain)(fabric.raw(), info, at, null_mut())
        })?;
        Ok(Arc::new(Rail { domain, fabric, offer, next_key: AtomicU64::new(0), turn }))
    }

    /// Registers memory, for all endpoints of the rail.
    ///
    /// # Errors
    /// As [`Endpoint::register`].
    pub fn register(
        self: &Arc<Self>,
        memory: Arc<dyn Memory>,
        access: Access,
        key: u64,
    ) -> Result<Arc<dyn Region>, FabricError> {
        let local = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
        let (rights, key) = match access {
            Access::Remote => (local | FI_REMOTE_READ | FI_REMOTE_WRITE, key),
            // A key that nobody is told; but two regions of a domain must not have the same.
            Access::Local => (local, key ^ self.next_key.fetch_add(1, Ordering::Relaxed)),
        };
        let (at, bytes) = (memory.address(), memory.bytes());
        // SAFETY: the memory is mapped, and stays so for as long as the region, which owns it.
        let region = Object::new(self.offer.library(), &self.turn, "fi_mr_reg", |region| unsafe {
            let domain = self.domain.raw();
            ((*(*domain).mr).reg)(&mut (*domain).fid, at.as_ptr().cast(), bytes, rights, 0, key, 0, region, null_mut())
        })?;
        Ok(Arc::new(RailRegion { region, memory, rail: self.clone() }))
    }

    /// Returns the mode of registration that the provider has.
    fn mr_mode(&self) -> c_int {
        // SAFETY: the offer has this part, as `Offer::new` checked.
        unsafe { (*(*self.offer.info()).domain_attr).mr_mode }
    }
}

/// Memory that a rail has registered.
struct RailRegion {
    // In the order in which they are let go.
    region: Object<fid_mr>,
    memory: Arc<dyn Memory>,
    rail: Arc<Rail>,
}

impl Region for RailRegion {
    fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    fn remote(&self) -> RemoteMemory {
        // SAFETY: the object lives.
        let key = unsafe { (*self.region.raw()).key };
        let is_virtual = self.rail.mr_mode() & FI_MR_VIRT_ADDR != 0;
        RemoteMemory { address: if is_virtual { self.memory.address().as_ptr() as u64 } else { 0 }, key }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// What the library keeps of an operation while it is under way (`struct fi_context2`).
#[repr(C, align(64))]
struct Context(UnsafeCell<[u64; 8]>);

/// The operations under way. Their memory is kept until they are done.
struct Operations {
    free: Vec<u32>,
    /// Of each context that is in use: the operation's token, and its memory.
    used: Vec<Option<(u64, Arc<dyn Region>)>>,
}

/// An endpoint of a rail.
pub struct RailEndpoint {
    // In the order in which they are closed: the endpoint before its queue and the peers' addresses, and all of them
    // before the memory of operations that are under way.
    endpoint: Object<fid_ep>,
    queue: Object<fid_cq>,
    addresses: Object<fid_av>,
    operations: Mutex<Operations>,
    /// What the peer may write: a provider without a device writes what has come when the memory may be gone otherwise.
    regions: Mutex<Vec<Arc<dyn Region>>>,
    contexts: Box<[Context]>,
    rail: Arc<Rail>,
    name: Vec<u8>,
    peer: Mutex<Option<fi_addr_t>>,
    /// Is readable when there may be a completion; with providers that have one.
    readable: Option<RawFd>,
    /// How many waits have passed since something came.
    idle_waits: AtomicU32,
    /// What is written at one end ends a wait at the other.
    waker: (UnixStream, UnixStream),
}

// SAFETY: what is shared is the library's, which is safe for threads (see `Object`), behind locks, or contexts: their
// cells are the library's from the begin of an operation to its completion, and nobody else's.
unsafe impl Sync for RailEndpoint {}

impl RailEndpoint {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// The library cannot.
    pub fn open(rail: &Arc<Rail>) -> Result<RailEndpoint, FabricError> {
        let (library, domain, info) = (rail.offer.library(), rail.domain.raw(), rail.offer.info());
        let turn = &rail.turn;
        // SAFETY: zeros are what the interface gives as defaults.
        let mut attributes: fi_av_attr = unsafe { zeroed() };
        // SAFETY: the domain lives, and the attributes are read in the call only.
        let addresses = Object::new(library, turn, "fi_av_open", |at| unsafe {
            ((*(*domain).ops).av_open)(domain, &mut attributes, at, null_mut())
        })?;
        let open_queue = |wait_obj| {
            // SAFETY: zeros are what the interface gives as defaults.
            let mut attributes: fi_cq_attr = unsafe { zeroed() };
            (attributes.size, attributes.format, attributes.wait_obj) =
                (2 * OPERATIONS_MAX, FI_CQ_FORMAT_DATA, wait_obj);
            // SAFETY: as for the addresses.
            Object::new(library, turn, "fi_cq_open", |at| unsafe {
                ((*(*domain).ops).cq_open)(domain, &mut attributes, at, null_mut())
            })
        };
        let queue = open_queue(FI_WAIT_FD).or_else(|_| open_queue(FI_WAIT_NONE))?;
        // SAFETY: as for the addresses.
        let endpoint = Object::new(library, turn, "fi_endpoint", |at| unsafe {
            ((*(*domain).ops).endpoint)(domain, info, at, null_mut())
        })?;
        let bind = |to: *mut fid, flags| {
            // SAFETY: both objects live, and the endpoint is closed before what it is bound to.
            let code = unsafe { ((*(*endpoint.fid()).ops).bind)(endpoint.fid(), to, flags) };
            if code < 0 { Err(library.error("fi_ep_bind", code as isize)) } else { Ok(()) }
        };
        bind(addresses.fid(), 0)?;
        bind(queue.fid(), FI_TRANSMIT | FI_RECV)?;
        // SAFETY: the endpoint lives, and has all that it needs.
        let code = unsafe { ((*(*endpoint.fid()).ops).control)(endpoint.fid(), FI_ENABLE, null_mut()) };
        if code < 0 {
            return Err(library.error("fi_enable", code as isize));
        }
        let name = name_of(library, &endpoint)?;
        let mut readable: c_int = -1;
        // SAFETY: the queue lives; FI_GETWAIT of a queue that has a descriptor writes that.
        let code = unsafe { ((*(*queue.fid()).ops).control)(queue.fid(), FI_GETWAIT, (&raw mut readable).cast()) };
        let waker = UnixStream::pair().and_then(|pair| {
            pair.0.set_nonblocking(true)?;
            pair.1.set_nonblocking(true)?;
            Ok(pair)
        });
        Ok(RailEndpoint {
            endpoint,
            queue,
            addresses,
            operations: Mutex::new(Operations {
                free: (0..OPERATIONS_MAX as u32).collect(),
                used: (0..OPERATIONS_MAX).map(|_| None).collect(),
            }),
            regions: Mutex::default(),
            contexts: (0..OPERATIONS_MAX).map(|_| Context(UnsafeCell::new([0; 8]))).collect(),
            rail: rail.clone(),
            name,
            peer: Mutex::new(None),
            readable: (code == 0 && readable >= 0).then_some(readable),
            idle_waits: AtomicU32::new(0),
            waker: waker.map_err(|error| FabricError::NoMemory(error.to_string()))?,
        })
    }

    fn library(&self) -> &'static Library {
        self.rail.offer.library()
    }

    fn peer(&self) -> Result<fi_addr_t, FabricError> {
        self.peer.lock().ok_or_else(|| FabricError::Misbehaves("an operation before the peer is named".into()))
    }

    /// Begins an operation on memory of this end by `call`, which gets the memory's descriptor and the context.
    fn begin(
        &self,
        name: &'static str,
        slice: &Slice,
        token: u64,
        call: impl FnOnce(*mut c_void, *mut c_void) -> isize,
    ) -> Result<Begun, FabricError> {
        let region = slice.region().clone();
        let descriptor = region.as_any().downcast_ref::<RailRegion>();
        let descriptor = descriptor.filter(|region| Arc::ptr_eq(&region.rail, &self.rail));
        let Some(descriptor) = descriptor else {
            return Err(FabricError::Misbehaves("memory that another rail has registered".into()));
        };
        // SAFETY: the object lives.
        let descriptor = unsafe { (*descriptor.region.raw()).mem_desc };
        let at = {
            let mut operations = self.operations.lock();
            let Some(at) = operations.free.pop() else { return Ok(Begun::Busy) };
            operations.used[at as usize] = Some((token, region));
            at
        };
        let code = {
            let _turn = self.rail.turn.0.lock();
            call(descriptor, self.contexts[at as usize].0.get().cast())
        };
        if code == 0 {
            return Ok(Begun::Yes);
        }
        let mut operations = self.operations.lock();
        operations.used[at as usize] = None;
        operations.free.push(at);
        if code == -FI_EAGAIN { Ok(Begun::Busy) } else { Err(self.library().error(name, code)) }
    }

    /// Returns the token of the operation with this context, which is over. `None`: no operation has it.
    fn end(&self, context: *mut c_void) -> Option<u64> {
        let begin = self.contexts.as_ptr() as usize;
        let at = (context as usize).checked_sub(begin)? / size_of::<Context>();
        let mut operations = self.operations.lock();
        let (token, _region) = operations.used.get_mut(at)?.take()?;
        operations.free.push(at as u32);
        Some(token)
    }

    fn completion(&self, entry: &fi_cq_data_entry) -> Result<Completion, FabricError> {
        let token = self.end(entry.op_context);
        if entry.flags & FI_REMOTE_CQ_DATA != 0 {
            return Ok(Completion::Written { token, immediate: entry.data as u32 });
        }
        let token = token.ok_or_else(|| FabricError::Misbehaves("a completion of nothing that was begun".into()))?;
        Ok(match entry.flags & FI_RECV {
            0 => Completion::Done { token },
            _ => Completion::Received { token, bytes: entry.len },
        })
    }

    fn failure(&self) -> Result<Completion, FabricError> {
        // SAFETY: zeros are a valid entry without data of the provider's.
        let mut entry: fi_cq_err_entry = unsafe { zeroed() };
        let code = {
            let _turn = self.rail.turn.0.lock();
            // SAFETY: the queue lives, and the entry has room for what any release writes.
            unsafe { ((*(*self.queue.raw()).ops).readerr)(self.queue.raw(), &mut entry, 0) }
        };
        if code < 0 && code != -FI_EAGAIN {
            return Err(self.library().error("fi_cq_readerr", code));
        }
        let why = self.library().error("an operation failed", entry.err as isize);
        Ok(Completion::Failed { token: self.end(entry.op_context), why })
    }
}

/// Returns the name by which a peer finds the endpoint.
fn name_of(library: &Library, endpoint: &Object<fid_ep>) -> Result<Vec<u8>, FabricError> {
    let mut name = vec![0; NAME_BYTES_MAX];
    let mut bytes = name.len();
    // SAFETY: the endpoint lives; as many bytes are written as `bytes` says there is room for.
    let code = unsafe { ((*(*endpoint.raw()).cm).getname)(endpoint.fid(), name.as_mut_ptr().cast(), &mut bytes) };
    if code < 0 {
        return Err(library.error("fi_getname", code as isize));
    }
    name.truncate(bytes);
    Ok(name)
}

impl Endpoint for RailEndpoint {
    fn abilities(&self) -> &Abilities {
        self.rail.offer.abilities()
    }

    fn name(&self) -> &[u8] {
        &self.name
    }

    fn connect(&self, name: &[u8]) -> Result<(), FabricError> {
        let mut padded = [0; NAME_BYTES_MAX];
        // Providers read as many bytes as their kind of names has, or up to a zero byte.
        let Some(begin) = padded.get_mut(..name.len()).filter(|_| name.len() < NAME_BYTES_MAX && !name.is_empty())
        else {
            return Err(FabricError::Misbehaves(format!("a peer's name of {} bytes", name.len())));
        };
        begin.copy_from_slice(name);
        let mut peer = self.peer.lock();
        let mut address = 0;
        let _turn = self.rail.turn.0.lock();
        // SAFETY: the addresses live, and the name has room for all that a provider reads.
        let inserted = unsafe {
            let addresses = self.addresses.raw();
            ((*(*addresses).ops).insert)(addresses, padded.as_ptr().cast(), 1, &mut address, 0, null_mut())
        };
        if inserted != 1 {
            return Err(match inserted {
                0 => FabricError::Misbehaves("a peer's name that its provider does not take".into()),
                code => self.library().error("fi_av_insert", code as isize),
            });
        }
        *peer = Some(address);
        Ok(())
    }

    fn register(&self, memory: Arc<dyn Memory>, access: Access, key: u64) -> Result<Arc<dyn Region>, FabricError> {
        let region = self.rail.register(memory, access, key)?;
        if access == Access::Remote {
            self.regions.lock().push(region.clone());
        }
        Ok(region)
    }

    fn receive(&self, into: &Slice, token: u64) -> Result<Begun, FabricError> {
        self.begin("fi_recv", into, token, |descriptor, context| {
            let (ep, at) = (self.endpoint.raw(), into.address().cast());
            // SAFETY: the memory is registered, and kept until the operation is done.
            unsafe { ((*(*ep).msg).recv)(ep, at, into.bytes(), descriptor, FI_ADDR_UNSPEC, context) }
        })
    }

    fn send(&self, from: &Slice, token: u64) -> Result<Begun, FabricError> {
        let peer = self.peer()?;
        self.begin("fi_send", from, token, |descriptor, context| {
            let (ep, at) = (self.endpoint.raw(), from.address().cast_const().cast());
            // SAFETY: as for `receive`.
            unsafe { ((*(*ep).msg).send)(ep, at, from.bytes(), descriptor, peer, context) }
        })
    }

    fn write(&self, from: &Slice, to: RemoteMemory, immediate: Option<u32>, token: u64) -> Result<Begun, FabricError> {
        let peer = self.peer()?;
        if immediate.is_some() && !self.abilities().has_immediates() {
            return Err(FabricError::Misbehaves("a write with immediate data that the provider has not".into()));
        }
        self.begin("fi_writemsg", from, token, |mut descriptor, context| {
            let here = iovec { iov_base: from.address().cast(), iov_len: from.bytes() };
            let there = fi_rma_iov { addr: to.address, len: from.bytes(), key: to.key };
            let message = fi_msg_rma {
                msg_iov: &here,
                desc: &mut descriptor,
                iov_count: 1,
                addr: peer,
                rma_iov: &there,
                rma_iov_count: 1,
                context,
                data: immediate.unwrap_or_default().into(),
            };
            let flags = FI_DELIVERY_COMPLETE | if immediate.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
            let ep = self.endpoint.raw();
            // SAFETY: as for `receive`; the message is read in the call only.
            unsafe { ((*(*ep).rma).writemsg)(ep, &message, flags) }
        })
    }

    fn read(&self, into: &Slice, from: RemoteMemory, token: u64) -> Result<Begun, FabricError> {
        let peer = self.peer()?;
        self.begin("fi_read", into, token, |descriptor, context| {
            let (ep, at) = (self.endpoint.raw(), into.address().cast());
            // SAFETY: as for `receive`.
            unsafe { ((*(*ep).rma).read)(ep, at, into.bytes(), descriptor, peer, from.address, from.key, context) }
        })
    }

    fn poll(&self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        // SAFETY: zeros are valid entries.
        let mut entries: [fi_cq_data_entry; COMPLETIONS] = unsafe { zeroed() };
        let queue = self.queue.raw();
        let count = {
            let _turn = self.rail.turn.0.lock();
            // SAFETY: the queue lives; as many entries are written as there is room for.
            unsafe { ((*(*queue).ops).read)(queue, entries.as_mut_ptr().cast(), COMPLETIONS) }
        };
        if count > 0 || count == -FI_EAVAIL {
            self.idle_waits.store(0, Ordering::Relaxed);
        }
        // A region that is let go here takes its turn by itself.
        if count == -FI_EAVAIL {
            completions.push(self.failure()?);
            return Ok(());
        }
        if count < 0 && count != -FI_EAGAIN {
            return Err(self.library().error("fi_cq_read", count));
        }
        for entry in entries.iter().take(count.max(0) as usize) {
            completions.push(self.completion(entry)?);
        }
        Ok(())
    }

    fn wait(&self, patience: Duration) {
        let Some(readable) = self.readable else {
            let naps = self.idle_waits.fetch_add(1, Ordering::Relaxed) / NAPS_MAX;
            // A poll would take a millisecond at least.
            return std::thread::sleep(patience.min(NAP * naps.clamp(1, NAPS_MAX)));
        };
        let may_wait = {
            let _turn = self.rail.turn.0.lock();
            let (fabric, mut queue) = (self.rail.fabric.raw(), self.queue.fid());
            // SAFETY: both objects live. Whether the descriptor may be waited for is what the call says.
            unsafe { ((*(*fabric).ops).trywait)(fabric, &mut queue, 1) == 0 }
        };
        if !may_wait {
            return;
        }
        // SAFETY: the descriptor is the queue's, which lives.
        let readable = unsafe { BorrowedFd::borrow_raw(readable) };
        let mut ends = [self.waker.1.as_fd(), readable].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let patience = PollTimeout::try_from(patience.min(Duration::from_secs(3600))).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut ends, patience);
        let mut woken = [0; 64];
        while matches!((&self.waker.1).read(&mut woken), Ok(count) if count == woken.len()) {}
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _ = (&self.waker.0).write(&[1]);
    }
}
