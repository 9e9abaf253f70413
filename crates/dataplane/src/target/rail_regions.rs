//! Is the rails of a migration's target: the guest's RAM, registered slice after slice for the source's rails to write.
//!
//! What is registered is what the source reports as not zero, of blocks that are files in memory. Memory is found for a
//! slice before the rail's process registers that, so that the process does not stand still for long.
//!
//! # No late write lands in a running guest
//!
//! [`RailRegions::fence_all`] closes each rail before both ends are compared, and once more before this host says that
//! the guest is all there, whatever the source did. The guest is granted after that alone. A rail that cannot be closed
//! calls the migration off. Memory is let go of when the guest runs: that takes tens of ms for a GiB.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use parking_lot::Mutex;
use skein_fabric::{Access, FabricError, Region, SharedEndpoint, SharedMemory};
use skein_pages::PAGE_BYTES;
use skein_pages::page_record::{
    OfferedRail, PageMessage, RAILS_MAX, SLICES_MAX, SLICES_PER_MESSAGE_MAX, WritableSlice,
};
use tracing::{debug, info};

use super::blocks::Blocks;
use super::error::{ProtocolError, TargetError};
use crate::rail_paths::RailPaths;
use crate::running_session::spawn;

/// Bounds the words about a rail that is not used, in characters.
const WHY_CHARS_MAX: usize = 200;
/// Why no rail is opened for a guest.
const NOT_HERE: &str = "there is no rail at the target";
const NOT_ALLOWED: &str = "the target does not let NICs write guests' RAM (--rdma-plaintext allow)";
const BARRED: &str = "the guest may give parts of its RAM back (virtio-mem), which no NIC may have registered then";
const OVER: &str = "the guest is there, or does not come";
const NO_FILE: &str = "the guest's RAM at the target is no file in memory, but its QEMU's own";

/// The rails of a migration at its target.
#[derive(Default)]
pub(super) struct RailRegions(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The numbers of the rails that the source has offered.
    offered: BTreeSet<u8>,
    /// The rails that are open, by their numbers.
    rails: BTreeMap<u8, OpenRail>,
    /// The rails that were closed for good, or were to be, and whose memory was not let go of.
    closed: Vec<OpenRail>,
    /// How many rails are being closed, or could not be.
    unclosed: usize,
    news: News,
    /// Whether no rail is opened, and nothing registered any more.
    is_over: bool,
    /// Whether that is so from the beginning.
    is_barred: bool,
}

struct OpenRail {
    endpoint: SharedEndpoint,
    regions: Vec<Arc<dyn Region>>,
}

/// What the source has not been told.
#[derive(Default)]
struct News {
    opened: Vec<(u8, Vec<u8>)>,
    refused: Vec<(u8, String)>,
    slices: Vec<WritableSlice>,
    /// Of how many offers nothing more comes.
    done: u32,
}

/// What the source offers.
pub(super) struct Offer {
    pub(super) rails: Vec<OfferedRail>,
    pub(super) slice_pages: u32,
    pub(super) slices: Vec<(u16, Vec<u32>)>,
}

impl RailRegions {
    /// Opens rails in the background, and registers the guest's RAM for them.
    ///
    /// # Errors
    /// The source offers nothing, or more than there may be.
    pub(super) fn open(
        &self,
        offer: Offer,
        paths: Option<Arc<dyn RailPaths>>,
        blocks: &Arc<Blocks>,
    ) -> Result<(), TargetError> {
        let slices: usize = offer.slices.iter().map(|(_, slices)| slices.len()).sum();
        let mut state = self.0.lock();
        let mut is_new = |rail: &OfferedRail| usize::from(rail.number) < RAILS_MAX && state.offered.insert(rail.number);
        let are_new = !offer.rails.is_empty() && offer.rails.iter().all(&mut is_new);
        if !are_new || slices > SLICES_MAX || offer.slice_pages == 0 {
            return Err(ProtocolError::Rails.into());
        }
        if state.is_over {
            let why = if state.is_barred { BARRED } else { OVER };
            offer.rails.iter().for_each(|rail| state.refuse(rail.number, why));
            state.news.done += 1;
            return Ok(());
        }
        drop(state);
        let (state, blocks) = (self.0.clone(), blocks.clone());
        let opened = spawn("register", move || {
            serve(&state, offer, paths, &blocks);
            state.lock().news.done += 1;
        });
        if opened.is_err() {
            self.0.lock().news.done += 1;
        }
        Ok(())
    }

    /// Returns what the source was not told yet. `copied_bytes` were copied to and from the guest's RAM.
    pub(super) fn news(&self, copied_bytes: u64) -> PageMessage {
        let mut state = self.0.lock();
        let news = &mut state.news;
        let slices = news.slices.drain(..news.slices.len().min(SLICES_PER_MESSAGE_MAX)).collect();
        let (opened, refused) = (std::mem::take(&mut news.opened), std::mem::take(&mut news.refused));
        // What has an end is known to have one when the last of it is told.
        let done = if news.slices.is_empty() { news.done } else { 0 };
        PageMessage::RailNews { opened, refused, slices, done, copied_bytes }
    }

    /// Closes a rail: nothing of the source's comes by it any more.
    ///
    /// # Errors
    /// The rail cannot be said to be closed.
    pub(super) fn fence(&self, rail: u8) -> Result<(), TargetError> {
        let mut state = self.0.lock();
        let Some(closed) = state.rails.remove(&rail) else { return Ok(()) };
        state.unclosed += 1;
        drop(state);
        self.close(&closed)?;
        let _ = spawn("unpin", move || drop(closed));
        Ok(())
    }

    /// Closes all rails, for good.
    ///
    /// # Errors
    /// A rail cannot be said to be closed.
    pub(super) fn fence_all(&self) -> Result<(), TargetError> {
        let mut state = self.0.lock();
        state.is_over = true;
        let rails = std::mem::take(&mut state.rails);
        state.unclosed += rails.len();
        drop(state);
        let closed = rails.values().map(|rail| self.close(rail)).fold(Ok(()), Result::and);
        let mut state = self.0.lock();
        state.closed.extend(rails.into_values());
        // Another stream's thread may be closing a rail, or have failed to.
        match state.unclosed {
            0 => closed,
            _ => closed.and(Err(TargetError::RailOpen(FabricError::Process("is being closed still".into())))),
        }
    }

    /// Closes all rails for good, and lets go of their memory, in the background. To unpin much of that takes a while,
    /// which a process is given that is known to have closed its endpoint.
    pub(super) fn let_go(&self) {
        let mut state = self.0.lock();
        state.is_over = true;
        let (rails, closed) = (std::mem::take(&mut state.rails), std::mem::take(&mut state.closed));
        drop(state);
        if rails.is_empty() && closed.is_empty() {
            return;
        }
        let _ = spawn("unpin", move || {
            for rail in rails.values() {
                let _ = rail.endpoint.close();
            }
            drop((rails, closed));
        });
    }

    /// Closes a rail's endpoint. Its memory stays.
    fn close(&self, rail: &OpenRail) -> Result<(), TargetError> {
        rail.endpoint.close().map_err(TargetError::RailOpen)?;
        self.0.lock().unclosed -= 1;
        Ok(())
    }

    /// Opens no rail from now on: QEMU may give parts of the RAM back.
    pub(super) fn bar(&self) {
        let mut state = self.0.lock();
        (state.is_over, state.is_barred) = (true, true);
    }
}

impl Drop for RailRegions {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl State {
    fn refuse(&mut self, number: u8, why: &str) {
        self.news.refused.push((number, why.chars().take(WHY_CHARS_MAX).collect()));
    }
}

/// Opens the rails of an offer, and registers the guest's RAM for them.
fn serve(state: &Mutex<State>, offer: Offer, paths: Option<Arc<dyn RailPaths>>, blocks: &Arc<Blocks>) {
    let has_files = offer.slices.iter().any(|(block, _)| blocks.file(*block).is_some());
    let paths = match paths {
        None => Err(NOT_HERE),
        Some(paths) if !paths.may_write() => Err(NOT_ALLOWED),
        Some(_) if !has_files => Err(NO_FILE),
        Some(paths) => Ok(paths),
    };
    let mut numbers = Vec::new();
    for rail in &offer.rails {
        let number = rail.number;
        let opened = match &paths {
            Ok(paths) => open(&**paths, rail).map_err(|error| error.to_string()),
            Err(why) => Err((*why).to_owned()),
        };
        let mut state = state.lock();
        match opened {
            Ok((name, endpoint)) if !state.is_over => {
                state.rails.insert(number, OpenRail { endpoint, regions: Vec::new() });
                state.news.opened.push((number, name));
                numbers.push(number);
            }
            Ok(_) => {}
            Err(why) => state.refuse(number, &why),
        }
    }
    let is_open = |numbers: &[u8]| {
        let state = state.lock();
        !state.is_over && numbers.iter().any(|rail| state.rails.contains_key(rail))
    };
    if !is_open(&numbers) {
        return;
    }
    let Some(memories) = memories(blocks.clone(), offer) else { return };
    let mut has_told = false;
    for SliceMemory { block, slice, memory } in memories {
        if !is_open(&numbers) {
            return;
        }
        match memory {
            Ok(memory) => register(state, &mut numbers, &memory, block, slice),
            Err(why) if !has_told => {
                has_told = true;
                info!("slice {slice} of block {block} is not registered for RDMA: {why}");
            }
            Err(why) => debug!("slice {slice} of block {block} is not registered: {why}"),
        }
    }
}

/// A slice of a block, and memory for that or why there is none.
struct SliceMemory {
    block: u16,
    slice: u32,
    memory: Result<SharedMemory, String>,
}

/// Finds memory for slices, one after the other, in a thread that comes after others where cores are busy: pages come
/// over connections meanwhile. `None`: there is no thread.
fn memories(blocks: Arc<Blocks>, offer: Offer) -> Option<Receiver<SliceMemory>> {
    let (sender, memories) = sync_channel(1);
    let find = move || {
        skein_host::lower_thread_priority();
        let slices = offer.slices.iter().flat_map(|(block, slices)| slices.iter().map(|slice| (*block, *slice)));
        for (block, slice) in slices {
            let memory = memory(&blocks, block, slice, offer.slice_pages);
            if sender.send(SliceMemory { block, slice, memory }).is_err() {
                return;
            }
        }
    };
    spawn("populate", find).ok().map(|_| memories)
}

/// Opens this end of a rail. Returns the name by which that is found.
fn open(paths: &dyn RailPaths, rail: &OfferedRail) -> Result<(Vec<u8>, SharedEndpoint), FabricError> {
    let endpoint = paths.open(rail.path)?;
    let abilities = endpoint.abilities();
    if (&abilities.provider, abilities.protocol) != (&rail.provider, rail.protocol) {
        let (here, there) = (&abilities.provider, &rail.provider);
        return Err(FabricError::Misbehaves(format!("the rails are of different kinds: {here} and {there}")));
    }
    endpoint.connect(&rail.name)?;
    Ok((endpoint.name().to_vec(), endpoint))
}

/// Returns the memory of a slice of a block, after the system has found some for it.
fn memory(blocks: &Blocks, block: u16, slice: u32, slice_pages: u32) -> Result<SharedMemory, String> {
    let (file, extent) = blocks.file(block).ok_or("the block is no file in memory")?;
    let slice_bytes = u64::from(slice_pages) * PAGE_BYTES as u64;
    let begin = u64::from(slice).checked_mul(slice_bytes).and_then(|offset| extent.start.checked_add(offset));
    let begin = begin.ok_or("there is no such slice")?;
    let end = extent.end.min(begin.saturating_add(slice_bytes));
    let file = file.try_clone().map_err(|error| error.to_string())?;
    let memory = SharedMemory::new(Arc::new(file), begin..end).ok_or("there is no such slice")?;
    memory.populate().map_err(|error| error.to_string())?;
    Ok(memory)
}

/// Registers a slice for each of these rails that is open. A rail that takes no more writes what it has, and is not
/// asked again.
fn register(state: &Mutex<State>, numbers: &mut Vec<u8>, memory: &SharedMemory, block: u16, slice: u32) {
    let rails: Vec<(u8, SharedEndpoint)> = {
        let state = state.lock();
        numbers.iter().filter_map(|rail| Some((*rail, state.rails.get(rail)?.endpoint.clone()))).collect()
    };
    for (rail, endpoint) in rails {
        let mut key = [0; 8];
        let registered = match aws_lc_rs::rand::fill(&mut key) {
            Ok(()) => endpoint.register(memory, Access::RemoteWrite, u64::from_le_bytes(key)),
            Err(_) => Err(FabricError::NoMemory("for random numbers".into())),
        };
        let mut state = state.lock();
        match registered {
            Ok(region) => {
                let at = region.remote();
                // A rail that was closed meanwhile has no use for the region.
                let Some(open) = state.rails.get_mut(&rail) else { continue };
                open.regions.push(region);
                state.news.slices.push(WritableSlice { rail, block, slice, address: at.address, key: at.key });
            }
            Err(why) => {
                state.refuse(rail, &why.to_string());
                numbers.retain(|number| *number != rail);
            }
        }
    }
}

#[cfg(test)]
mod tests;
