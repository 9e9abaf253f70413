//! Is where migrations to this host arrive: the sockets of the QEMUs that wait for them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use skein_dataplane::target::TargetPages;
use skein_dataplane::{ResetCode, RunningSession, StreamContent, StreamId};
use skein_handover::MigrationId;

use crate::stream_destination::{LocalPlace, LocalSocket, Refusal};

/// Bounds the streams of a migration: QEMU's 255 multifd channels, main and postcopy, and a few tries.
const STREAMS_MAX: usize = 1024;

/// The migrations that may arrive, and the hosts that may send them. Clones are the same.
#[derive(Clone, Default)]
pub struct IncomingChannels {
    open: Arc<Mutex<HashMap<MigrationId, IncomingMigration>>>,
}

struct IncomingMigration {
    peer: String,
    path: PathBuf,
    pages: Arc<TargetPages>,
    streams: Vec<(Arc<RunningSession>, StreamId)>,
}

impl IncomingChannels {
    /// Joins from now on the streams of a migration that `peer` opens to the unix socket at `path`, in the order they
    /// were opened in, without the pages that `pages` takes. Nothing needs to listen there yet.
    pub fn open(&self, id: MigrationId, peer: &str, path: &Path, pages: Arc<TargetPages>) {
        let landing = IncomingMigration { peer: peer.to_owned(), path: path.to_owned(), pages, streams: Vec::new() };
        if let Some(before) = self.lock().insert(id, landing) {
            before.tear_down();
        }
    }

    /// Lets nothing arrive any more, and tears down what has arrived.
    pub fn close(&self, id: MigrationId) {
        let landing = self.lock().remove(&id);
        if let Some(landing) = landing {
            landing.tear_down();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MigrationId, IncomingMigration>> {
        self.open.lock().expect("no panic under this lock")
    }

    /// Returns the socket for a stream that the peer of `live` opened.
    pub(crate) fn take(
        &self,
        id: MigrationId,
        live: &Arc<RunningSession>,
        stream: StreamId,
    ) -> Result<LocalSocket, Refusal> {
        let mut open = self.lock();
        // To a stranger a migration of others does not exist.
        let Some(landing) = open.get_mut(&id).filter(|landing| landing.peer == live.peer()) else {
            return Err((
                ResetCode::NoDestination,
                format!("that host does not wait for migration {id} from {}", live.peer()),
            ));
        };
        if landing.streams.len() >= STREAMS_MAX {
            return Err((ResetCode::Busy, format!("migration {id} has opened {STREAMS_MAX} connections")));
        }
        landing.streams.push((live.clone(), stream));
        let place = LocalPlace::Unix(landing.path.clone());
        Ok(LocalSocket { place, content: StreamContent::Target(landing.pages.clone()) })
    }
}

impl IncomingMigration {
    fn tear_down(self) {
        for (live, stream) in self.streams {
            live.reset(stream, ResetCode::SocketClosed, "the target does not wait for this migration any more");
        }
    }
}
