//! Opens rails as paths come to RDMA, and takes in what the target says of its ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use skein_fabric::{FabricError, RemoteMemory};
use skein_guest_ram::Ram;
use skein_pages::PAGE_BYTES;
use skein_pages::page_record::{OfferedRail, PageMessage, RAILS_MAX, SLICES_MAX, WritableSlice};
use tracing::warn;

use super::memory::RailMemory;
use super::slices::{DataSlices, slices_with_data};
use super::writer::Writer;
use super::{RailState, RailStatus, RailWrites};
use crate::rail_paths::RailPaths;
use crate::running_session::spawn;
use crate::source::page_counters::PageCounters;

/// How often is looked for paths that have come to RDMA: each does so once its session has carried something.
const PATHS_CHECK: Duration = Duration::from_millis(20);

impl RailWrites {
    /// Opens the rails of paths in the background as these come to RDMA, until the migration is over, and prepares the
    /// offers to the target. `rams` are the blocks' RAM at the source, by number.
    pub(in crate::source) fn open(
        self: &Arc<Self>,
        paths: Arc<dyn RailPaths>,
        rams: BTreeMap<u16, Arc<dyn Ram>>,
        counts: Arc<PageCounters>,
    ) {
        if !paths.may_write() || rams.is_empty() {
            return;
        }
        let rails = self.clone();
        let _ = spawn("open-rails", move || {
            let (mut tried, mut slices) = (BTreeSet::new(), None);
            while !rails.state.lock().is_over {
                let writable = paths.writable();
                rails.look(&writable, paths.data_paths());
                // A path that comes to RDMA again gets a rail again.
                tried.retain(|path| writable.contains(path));
                let may_have_more = rails.state.lock().rails.len() < RAILS_MAX;
                let new = writable.into_iter().find(|path| may_have_more && tried.insert(*path));
                let Some(path) = new else {
                    thread::sleep(PATHS_CHECK);
                    continue;
                };
                match open(&*paths, path, &counts) {
                    Ok((offered, opened)) => {
                        let Some(slices) = slices.get_or_insert_with(|| slices_with_data(&rams)) else { return };
                        rails.offer(offered, opened, slices);
                    }
                    Err(error) => rails.state.lock().tell(format!("RDMA: path {path}: its rail is not used: {error}")),
                }
            }
        });
    }

    /// Takes in which paths go over RDMA, and how many carry data. A rail whose path is lost has failed.
    pub(super) fn look(&self, writable: &[u32], data_paths: usize) {
        let mut state = self.state.lock();
        state.data_paths = data_paths;
        for rail in state.rails.iter_mut().filter(|rail| rail.status == RailStatus::Open) {
            if !rail.is_lost && !writable.contains(&rail.path) {
                rail.is_lost = true;
                rail.endpoint.wake();
            }
        }
    }

    pub(super) fn offer(&self, offered: OfferedRail, opened: RailState, slices: &DataSlices) {
        let of_blocks = slices.of_blocks.clone();
        let mut state = self.state.lock();
        if !state.is_over {
            let offered = OfferedRail { number: state.rails.len() as u8, ..offered };
            let offer = PageMessage::Rails { slice_pages: slices.pages, slices: of_blocks, rails: vec![offered] };
            state.offers.push_back(offer);
            state.rails.push(opened);
            state.slice_pages = slices.pages;
            self.are_open.store(true, SeqCst);
        }
    }

    /// Takes in what became of the rails at the target.
    pub(in crate::source) fn hear(
        self: &Arc<Self>,
        paths: &Arc<dyn RailPaths>,
        opened: Vec<(u8, Vec<u8>)>,
        refused: Vec<(u8, String)>,
        slices: Vec<WritableSlice>,
        done: u32,
    ) {
        let mut state = self.state.lock();
        state.told = done;
        for (rail, why) in refused {
            let path = state.rails.get(usize::from(rail)).map_or(0, |of| of.path);
            state.tell(format!("RDMA: path {path}: NICs do not write the guest's RAM: {why}"));
        }
        for (rail, name) in opened {
            let number = usize::from(rail);
            let Some(of) = state.rails.get_mut(number).filter(|of| of.status == RailStatus::Opening) else { continue };
            let Some(memory) = of.memory.take() else { continue };
            of.status = RailStatus::Open;
            let (path, endpoint) = (of.path, of.endpoint.clone());
            let (rails, paths) = (self.clone(), paths.clone());
            let writes = move || {
                Writer::new(rails.clone(), number, endpoint, memory).run(&name, &*paths, path);
                rails.state.lock().writers -= 1;
                rails.changed.notify_all();
            };
            match spawn("rail-writes", writes) {
                Ok(_) => state.writers += 1,
                Err(_) => of.status = RailStatus::Failed,
            }
        }
        let slice_bytes = u64::from(state.slice_pages) * PAGE_BYTES as u64;
        for slice in slices {
            if slice.address.checked_add(slice_bytes).is_none() {
                warn!("rail {}: slice {} of block {} is nowhere", slice.rail, slice.slice, slice.block);
                continue;
            }
            let at = RemoteMemory { address: slice.address, key: slice.key };
            if state.slices.len() < SLICES_MAX {
                state.slices.entry((slice.block, slice.slice)).or_default().insert(slice.rail.into(), at);
            }
        }
    }
}

/// Opens the rail of a path.
pub(super) fn open(
    paths: &dyn RailPaths,
    path: u32,
    counts: &Arc<PageCounters>,
) -> Result<(OfferedRail, RailState), FabricError> {
    let endpoint = paths.open(path)?;
    let arena = paths.arena().map_err(|error| FabricError::NoMemory(error.to_string()))?;
    let memory = RailMemory::register(&endpoint, arena, counts.clone())?;
    let abilities = endpoint.abilities();
    let (provider, protocol) = (abilities.provider.clone(), abilities.protocol);
    let offered = OfferedRail { number: 0, path, provider, protocol, name: endpoint.name().to_vec() };
    let status = RailStatus::Opening;
    Ok((
        offered,
        RailState { path, endpoint, memory: Some(memory), queue: VecDeque::new(), load: 0, status, is_lost: false },
    ))
}
