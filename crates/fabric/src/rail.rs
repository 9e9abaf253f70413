//! Is a rail of libfabric: a device that is open, with an endpoint and a completion queue. One thread uses it, in a
//! process of its own (see [`crate::process`]): releases of libfabric that are in use crash where one thread completes
//! operations while another begins some, though they promise `FI_THREAD_SAFE` (`ofi_rxm` of 1.17).

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::fabric::{Abilities, Access, Begun, Completion, FabricError, RemoteMemory};
use crate::ffi::{
    FI_ADDR_UNSPEC, FI_CQ_FORMAT_DATA, FI_DELIVERY_COMPLETE, FI_EAGAIN, FI_EAVAIL, FI_ENABLE, FI_GETWAIT,
    FI_MR_VIRT_ADDR, FI_READ, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_TRANSMIT,
    FI_WAIT_FD, FI_WAIT_NONE, FI_WRITE, fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry,
    fi_msg_rma, fi_rma_iov, fid, fid_av, fid_cq, fid_domain, fid_ep, fid_fabric, fid_mr, iovec,
};
use crate::library::{Library, Offer};
use crate::memory::{Mapping, SharedMemory};

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

/// An object of libfabric's, closed when dropped.
struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    /// Takes what a call has made.
    fn new(library: &Library, call: &str, make: impl FnOnce(*mut *mut T) -> c_int) -> Result<Self, FabricError> {
        let mut at = null_mut();
        let code = make(&mut at);
        if code < 0 {
            return Err(library.error(call, code as isize));
        }
        NonNull::new(at).map(Object).ok_or_else(|| FabricError::Misbehaves(format!("{call} made nothing")))
    }

    fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Closes the object. Returns what the library said.
    fn close(self) -> c_int {
        // SAFETY: as for `drop`, which does not come to it.
        let code = unsafe { ((*(*self.fid()).ops).close)(self.fid()) };
        std::mem::forget(self);
        code
    }

    /// Every object begins with a `fid`.
    fn fid(&self) -> *mut fid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: the object lives until here, and what was made of it is closed already: owners drop in that order.
        unsafe { ((*(*self.fid()).ops).close)(self.fid()) };
    }
}

/// A device that is open.
struct Rail {
    // In the order in which they are closed.
    domain: Object<fid_domain>,
    fabric: Object<fid_fabric>,
    offer: Offer,
}

impl Rail {
    fn open(offer: Offer) -> Result<Rail, FabricError> {
        let (library, info) = (offer.library(), offer.info());
        // SAFETY: the offer has all its parts, and outlives both objects.
        let fabric =
            Object::new(library, "fi_fabric", |at| unsafe { (library.fabric)((*info).fabric_attr, at, null_mut()) })?;
        // SAFETY: as above.
        let domain = Object::new(library, "fi_domain", |at| unsafe {
            ((*(*fabric.raw()).ops).domain)(fabric.raw(), info, at, null_mut())
        })?;
        Ok(Rail { domain, fabric, offer })
    }

    /// Returns the mode of registration that the provider has.
    fn mr_mode(&self) -> c_int {
        // SAFETY: the offer has this part, as `Offer::new` checked.
        unsafe { (*(*self.offer.info()).domain_attr).mr_mode }
    }
}

/// Memory that a rail has registered.
pub struct RailRegion {
    // In the order in which they are let go.
    region: Object<fid_mr>,
    mapping: Mapping,
    bytes: usize,
    rail: Rc<Rail>,
}

impl RailRegion {
    /// Returns where the memory lies for the peer.
    pub fn remote(&self) -> RemoteMemory {
        // SAFETY: the object lives.
        let key = unsafe { (*self.region.raw()).key };
        let is_virtual = self.rail.mr_mode() & FI_MR_VIRT_ADDR != 0;
        RemoteMemory { address: if is_virtual { self.mapping.address() as u64 } else { 0 }, key }
    }
}

/// A part of a region, for an operation.
#[derive(Clone)]
pub struct RailSlice {
    region: Rc<RailRegion>,
    offset: usize,
    bytes: usize,
}

impl RailSlice {
    /// Returns the part. `None`: the region is not as long.
    pub fn new(region: Rc<RailRegion>, offset: usize, bytes: usize) -> Option<RailSlice> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= region.bytes);
        fits.then_some(RailSlice { region, offset, bytes })
    }

    fn address(&self) -> *mut u8 {
        // SAFETY: the offset lies within the region's memory, as `new` checked.
        unsafe { self.region.mapping.address().add(self.offset) }
    }

    fn descriptor(&self) -> *mut c_void {
        // SAFETY: the object lives.
        unsafe { (*self.region.region.raw()).mem_desc }
    }
}

/// What the library keeps of an operation while it is under way (`struct fi_context2`).
#[repr(C, align(64))]
struct Context(UnsafeCell<[u64; 8]>);

/// The operations under way. Their memory is kept until they are done.
struct Operations {
    free: Vec<u32>,
    /// Of each context that is in use: the operation's token, and its memory.
    used: Vec<Option<(u64, Rc<RailRegion>)>>,
}

/// An endpoint of a rail. See [`crate::Endpoint`] for what its operations are.
pub struct RailEndpoint {
    // In the order in which they are closed: the endpoint before its queue and the peers' addresses, and all of them
    // before the memory of operations that are under way.
    endpoint: Object<fid_ep>,
    queue: Object<fid_cq>,
    addresses: Object<fid_av>,
    operations: RefCell<Operations>,
    /// What the peer may write: a provider without a device writes what has come when the memory may be gone otherwise.
    regions: RefCell<Vec<Rc<RailRegion>>>,
    contexts: Box<[Context]>,
    rail: Rc<Rail>,
    name: Vec<u8>,
    peer: Cell<Option<fi_addr_t>>,
    /// Is readable when there may be a completion; with providers that have one.
    readable: Option<RawFd>,
    /// How many waits have passed since something came.
    idle_waits: Cell<u32>,
    next_key: Cell<u64>,
}

impl RailEndpoint {
    /// Opens a rail that was offered, and an endpoint of that.
    ///
    /// # Errors
    /// The library cannot.
    pub fn open(offer: Offer) -> Result<RailEndpoint, FabricError> {
        let rail = Rail::open(offer)?;
        let (library, domain, info) = (rail.offer.library(), rail.domain.raw(), rail.offer.info());
        // SAFETY: zeros are what the interface gives as defaults.
        let mut attributes: fi_av_attr = unsafe { zeroed() };
        // SAFETY: the domain lives, and the attributes are read in the call only.
        let addresses = Object::new(library, "fi_av_open", |at| unsafe {
            ((*(*domain).ops).av_open)(domain, &mut attributes, at, null_mut())
        })?;
        let open_queue = |wait_obj| {
            // SAFETY: zeros are what the interface gives as defaults.
            let mut attributes: fi_cq_attr = unsafe { zeroed() };
            (attributes.size, attributes.format, attributes.wait_obj) =
                (2 * OPERATIONS_MAX, FI_CQ_FORMAT_DATA, wait_obj);
            // SAFETY: as for the addresses.
            Object::new(library, "fi_cq_open", |at| unsafe {
                ((*(*domain).ops).cq_open)(domain, &mut attributes, at, null_mut())
            })
        };
        let queue = open_queue(FI_WAIT_FD).or_else(|_| open_queue(FI_WAIT_NONE))?;
        // SAFETY: as for the addresses.
        let endpoint = Object::new(library, "fi_endpoint", |at| unsafe {
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
        Ok(RailEndpoint {
            endpoint,
            queue,
            addresses,
            operations: RefCell::new(Operations {
                free: (0..OPERATIONS_MAX as u32).collect(),
                used: (0..OPERATIONS_MAX).map(|_| None).collect(),
            }),
            regions: RefCell::default(),
            contexts: (0..OPERATIONS_MAX).map(|_| Context(UnsafeCell::new([0; 8]))).collect(),
            rail: Rc::new(rail),
            name,
            peer: Cell::new(None),
            readable: (code == 0 && readable >= 0).then_some(readable),
            idle_waits: Cell::new(0),
            next_key: Cell::new(0),
        })
    }

    /// Closes the endpoint: nothing of the peer's comes by it any more.
    ///
    /// # Errors
    /// The library does not say so.
    pub fn close(self) -> Result<(), FabricError> {
        let library = self.library();
        match self.endpoint.close() {
            0 => Ok(()),
            code => Err(library.error("fi_close", code as isize)),
        }
    }

    fn library(&self) -> &'static Library {
        self.rail.offer.library()
    }

    fn peer(&self) -> Result<fi_addr_t, FabricError> {
        self.peer.get().ok_or_else(|| FabricError::Misbehaves("an operation before the peer is named".into()))
    }

    /// Begins an operation on memory of this end by `call`, which gets the memory's descriptor and the context.
    fn begin(
        &self,
        name: &str,
        slice: &RailSlice,
        token: u64,
        call: impl FnOnce(*mut c_void, *mut c_void) -> isize,
    ) -> Result<Begun, FabricError> {
        let at = {
            let mut operations = self.operations.borrow_mut();
            let Some(at) = operations.free.pop() else { return Ok(Begun::Busy) };
            operations.used[at as usize] = Some((token, slice.region.clone()));
            at
        };
        let code = call(slice.descriptor(), self.contexts[at as usize].0.get().cast());
        if code == 0 {
            return Ok(Begun::Yes);
        }
        let mut operations = self.operations.borrow_mut();
        operations.used[at as usize] = None;
        operations.free.push(at);
        if code == -FI_EAGAIN { Ok(Begun::Busy) } else { Err(self.library().error(name, code)) }
    }

    /// Returns the token of the operation with this context, which is over. `None`: no operation has it.
    fn end(&self, context: *mut c_void) -> Option<u64> {
        let begin = self.contexts.as_ptr() as usize;
        let at = (context as usize).checked_sub(begin)? / size_of::<Context>();
        let mut operations = self.operations.borrow_mut();
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

    /// Returns the operation that has failed; `None`: the library knows of none any more.
    fn failure(&self) -> Result<Option<Completion>, FabricError> {
        // SAFETY: zeros are a valid entry without data of the provider's.
        let mut entry: fi_cq_err_entry = unsafe { zeroed() };
        // SAFETY: the queue lives, and the entry has room for what any release writes.
        let code = unsafe { ((*(*self.queue.raw()).ops).readerr)(self.queue.raw(), &mut entry, 0) };
        if code == -FI_EAGAIN {
            return Ok(None);
        }
        if code < 0 {
            return Err(self.library().error("fi_cq_readerr", code));
        }
        let why = self.library().error("an operation failed", entry.err as isize);
        Ok(Some(Completion::Failed { token: self.end(entry.op_context), why }))
    }

    /// Returns what the provider can do.
    pub fn abilities(&self) -> &Abilities {
        self.rail.offer.abilities()
    }

    /// Returns the name by which a peer finds this endpoint.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Names the peer.
    ///
    /// # Errors
    /// The provider refuses.
    pub fn connect(&self, name: &[u8]) -> Result<(), FabricError> {
        let mut padded = [0; NAME_BYTES_MAX];
        // Providers read as many bytes as their kind of names has, or up to a zero byte.
        let Some(begin) = padded.get_mut(..name.len()).filter(|_| name.len() < NAME_BYTES_MAX && !name.is_empty())
        else {
            return Err(FabricError::Misbehaves(format!("a peer's name of {} bytes", name.len())));
        };
        begin.copy_from_slice(name);
        let mut address = 0;
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
        self.peer.set(Some(address));
        Ok(())
    }

    /// Registers memory. What the peer may write is kept until the endpoint is closed.
    ///
    /// # Errors
    /// The system maps or locks no more memory for this process, or the device has no room.
    pub fn register(&self, memory: &SharedMemory, access: Access, key: u64) -> Result<Rc<RailRegion>, FabricError> {
        let local = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
        let (rights, key) = match access {
            Access::RemoteWrite => (local | FI_REMOTE_WRITE, key),
            Access::RemoteReadWrite => (local | FI_REMOTE_READ | FI_REMOTE_WRITE, key),
            // A key that nobody is told; but two regions of a domain must not have the same.
            Access::Local => (local, key ^ self.next_key.replace(self.next_key.get() + 1)),
        };
        let bytes = memory.bytes();
        let mapping = Mapping::new(memory).map_err(|error| FabricError::NoMemory(error.to_string()))?;
        // SAFETY: the memory is mapped, and stays so for as long as the region, which owns it.
        let region = Object::new(self.library(), "fi_mr_reg", |region| unsafe {
            let (domain, at) = (self.rail.domain.raw(), mapping.address().cast());
            ((*(*domain).mr).reg)(&mut (*domain).fid, at, bytes, rights, 0, key, 0, region, null_mut())
        })?;
        let region = Rc::new(RailRegion { region, mapping, bytes, rail: self.rail.clone() });
        if access.is_remote() {
            self.regions.borrow_mut().push(region.clone());
        }
        Ok(region)
    }

    /// Takes a message, or the notice of a write, when one comes.
    ///
    /// # Errors
    /// The provider refuses.
    pub fn receive(&self, into: &RailSlice, token: u64) -> Result<Begun, FabricError> {
        self.begin("fi_recv", into, token, |descriptor, context| {
            let (ep, at) = (self.endpoint.raw(), into.address().cast());
            // SAFETY: the memory is registered, and kept until the operation is done.
            unsafe { ((*(*ep).msg).recv)(ep, at, into.bytes, descriptor, FI_ADDR_UNSPEC, context) }
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The provider refuses.
    pub fn send(&self, from: &RailSlice, token: u64) -> Result<Begun, FabricError> {
        let peer = self.peer()?;
        self.begin("fi_send", from, token, |descriptor, context| {
            let (ep, at) = (self.endpoint.raw(), from.address().cast_const().cast());
            // SAFETY: as for `receive`.
            unsafe { ((*(*ep).msg).send)(ep, at, from.bytes, descriptor, peer, context) }
        })
    }

    /// Writes into the peer's memory.
    ///
    /// # Errors
    /// The provider refuses.
    pub fn write(
        &self,
        from: &RailSlice,
        to: RemoteMemory,
        immediate: Option<u32>,
        token: u64,
    ) -> Result<Begun, FabricError> {
        let peer = self.peer()?;
        if immediate.is_some() && !self.abilities().has_immediates() {
            return Err(FabricError::Misbehaves("a write with immediate data that the provider has not".into()));
        }
        self.begin("fi_writemsg", from, token, |mut descriptor, context| {
            let here = iovec { iov_base: from.address().cast(), iov_len: from.bytes };
            let there = fi_rma_iov { addr: to.address, len: from.bytes, key: to.key };
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

    /// Reads the peer's memory.
    ///
    /// # Errors
    /// The provider refuses.
    pub fn read(&self, into: &RailSlice, from: RemoteMemory, token: u64) -> Result<Begun, FabricError> {
        let peer = self.peer()?;
        self.begin("fi_read", into, token, |descriptor, context| {
            let (ep, at) = (self.endpoint.raw(), into.address().cast());
            // SAFETY: as for `receive`.
            unsafe { ((*(*ep).rma).read)(ep, at, into.bytes, descriptor, peer, from.address, from.key, context) }
        })
    }

    /// Adds what has happened to `completions`.
    ///
    /// # Errors
    /// The provider refuses.
    pub fn poll(&self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        // SAFETY: zeros are valid entries.
        let mut entries: [fi_cq_data_entry; COMPLETIONS] = unsafe { zeroed() };
        let queue = self.queue.raw();
        // SAFETY: the queue lives; as many entries are written as there is room for.
        let count = unsafe { ((*(*queue).ops).read)(queue, entries.as_mut_ptr().cast(), COMPLETIONS) };
        if count > 0 || count == -FI_EAVAIL {
            self.idle_waits.set(0);
        }
        if count == -FI_EAVAIL {
            completions.extend(self.failure()?);
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

    /// Waits until there may be a completion, `other` is readable, or `patience` is over.
    pub fn wait(&self, other: BorrowedFd<'_>, patience: Duration) {
        let mut ends = vec![PollFd::new(other, PollFlags::POLLIN)];
        let mut patience = patience;
        if let Some(readable) = self.readable {
            let (fabric, mut queue) = (self.rail.fabric.raw(), self.queue.fid());
            // SAFETY: both objects live. Whether the descriptor may be waited for is what the call says.
            if unsafe { ((*(*fabric).ops).trywait)(fabric, &mut queue, 1) } != 0 {
                return;
            }
            // SAFETY: the descriptor is the queue's, which lives.
            ends.push(PollFd::new(unsafe { BorrowedFd::borrow_raw(readable) }, PollFlags::POLLIN));
        } else {
            let naps = self.idle_waits.get();
            self.idle_waits.set(naps.saturating_add(1));
            patience = patience.min(NAP * (naps / NAPS_MAX).clamp(1, NAPS_MAX));
        }
        let _ = ppoll(&mut ends, Some(TimeSpec::from_duration(patience)), None);
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
