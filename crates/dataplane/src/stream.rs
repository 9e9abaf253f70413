//! Is a stream at this host: what the stream carries, and how it is joined to its local end.

use std::io;
use std::sync::Arc;

use skein_session::{OpenError, StreamId};
use thiserror::Error;
use tracing::info;

use crate::ResetCode;
use crate::decode::Decode;
use crate::egress::egress;
use crate::ingest::{Framing, ingest};
use crate::local_end::LocalEnd;
use crate::running_session::{Egress, RunningSession, StreamHandle, spawn};
use crate::source::{self, SourcePages, TargetMessages};
use crate::target::{PageWriter, TargetPages};

/// What a stream carries.
#[derive(Clone)]
pub enum StreamContent {
    /// The stream carries bytes, as they are.
    Bytes,
    /// The stream carries a migration whose source is here.
    Source(Arc<SourcePages>),
    /// The stream carries a migration whose target is here.
    Target(Arc<TargetPages>),
}

impl StreamContent {
    /// Returns what decodes the arriving bytes. `None`: the local end gets the bytes as they are.
    fn decoder(&self, id: StreamId, live: &Arc<RunningSession>) -> Option<Box<dyn Decode>> {
        match self {
            StreamContent::Bytes => None,
            StreamContent::Source(pages) => {
                Some(Box::new(TargetMessages::new(pages.clone(), id, Arc::new(live.clone()))))
            }
            StreamContent::Target(pages) => {
                Some(Box::new(PageWriter::new(pages.clone(), id, Some(Arc::new(live.clone())))))
            }
        }
    }
}

/// The reason why a stream does not lead to its local end.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum JoinError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("it was torn down meanwhile")]
    TornDown,
    #[error("no thread can be started: raise the limit on processes, or free memory")]
    Threads(#[source] io::Error),
}

impl RunningSession {
    /// Opens a stream to `destination` at the peer and joins it to `local_end`.
    ///
    /// # Errors
    /// The session takes no more streams, or no thread can be started. Then nobody reads the socket.
    pub fn open(
        self: &Arc<Self>,
        destination: &str,
        local_end: LocalEnd,
        content: StreamContent,
    ) -> Result<StreamId, JoinError> {
        let id = self.with(|state, _| {
            let id = state.core.open(destination)?;
            if let StreamContent::Source(pages) = &content {
                state.core.confine(id, pages.width());
            }
            state.streams.insert(id, StreamHandle::new(destination));
            Ok::<_, OpenError>(id)
        })?;
        self.join(id, local_end, content)?;
        Ok(id)
    }

    /// Joins a stream that the peer opened to its local end: bytes flow until both directions are done.
    pub fn join_socket(self: &Arc<Self>, id: StreamId, socket: impl Into<LocalEnd>, content: StreamContent) {
        if let Err(error) = self.join(id, socket.into(), content) {
            info!(session = %self.id, stream = id.0, "stream not joined: {error}");
        }
    }

    fn join(self: &Arc<Self>, id: StreamId, local_end: LocalEnd, content: StreamContent) -> Result<(), JoinError> {
        local_end.widen();
        let leaving = Arc::new(Egress::new(local_end, content.decoder(id, self)));
        let writable = self.with(|state, _| {
            let handle = state.streams.get_mut(&id)?;
            handle.egress = Some(leaving.clone());
            handle.has_work = true;
            Some(handle.writable.clone())
        });
        // The stream was torn down while its local end was being connected; dropping the socket says so.
        let writable = writable.ok_or(JoinError::TornDown)?;
        let (live, from) = (self.clone(), leaving.clone());
        let threads = spawn("ingest", move || match content {
            StreamContent::Bytes => ingest(&live, id, &from.local_end, &writable, Framing::Raw),
            StreamContent::Target(_) => ingest(&live, id, &from.local_end, &writable, Framing::PageRecords),
            StreamContent::Source(pages) => source::ingest(&live, id, &from.local_end, &writable, &pages),
        })
        .and_then(|ingest| {
            let live = self.clone();
            spawn("egress", move || {
                egress(&live, id, &leaving, ingest);
                live.lock().streams.remove(&id);
            })
        });
        threads.map(drop).map_err(|error| {
            self.reset(id, ResetCode::Busy, "that host cannot start another thread: raise its limit on processes");
            self.lock().streams.remove(&id);
            JoinError::Threads(error)
        })
    }
}
