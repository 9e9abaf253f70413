//! Reads a stream's local socket into the session, with the bytes as they are.

use std::io;

use bytes::Bytes;
use parking_lot::Condvar;
use skein_pages::page_record::{self, BYTES_MAX};
use skein_session::{Session, StreamId};

use crate::connection::submit;
use crate::local_end::LocalEnd;
use crate::running_session::RunningSession;

/// Bounds a short read. A short read is copied into memory of its size, so that the pooled buffer can be used again.
const SHORT_READ: usize = BYTES_MAX / 4;

/// The form in which a stream's bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The bytes travel as they are.
    Raw,
    /// The bytes travel in page records, because other records go on the stream, too.
    PageRecords,
}

/// Reads the local socket into the session until the socket's end. Returns the number of bytes.
pub(crate) fn ingest(
    live: &RunningSession,
    id: StreamId,
    local_end: &LocalEnd,
    writable: &Condvar,
    framing: Framing,
) -> u64 {
    let mut bytes = 0;
    let mut buffer = live.pool.take(BYTES_MAX);
    loop {
        // Bytes come first, then capacity for them: capacity that is granted and not used holds up other streams.
        match local_end.wait_for_bytes() {
            Ok(true) => {}
            Ok(false) if live.lock().core.is_reset(id) => break,
            Ok(false) => continue,
            Err(error) => {
                live.reset_for_broken_socket(id, local_end, &error);
                return bytes;
            }
        }
        let capacity = |core: &mut Session, now| Some(core.send_capacity(now, id)).filter(|bytes| *bytes > 0);
        let Some(capacity) = live.wait_for_capacity(id, writable, capacity) else { break };
        let read = local_end.read(&mut buffer.as_mut()[..capacity.min(BYTES_MAX)]);
        let data = match read {
            Ok(0) => {
                live.with(|state, _| state.core.finish(id));
                return bytes;
            }
            Ok(n) if n < SHORT_READ => Bytes::copy_from_slice(&buffer.as_ref()[..n]),
            Ok(n) => {
                let mut full = std::mem::replace(&mut buffer, live.pool.take(BYTES_MAX));
                full.truncate(n);
                full.freeze()
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                live.reset_for_broken_socket(id, local_end, &error);
                return bytes;
            }
        };
        bytes += data.len() as u64;
        let head = (framing == Framing::PageRecords).then(|| page_record::bytes_head(data.len()));
        submit(live, id, head.into_iter().chain([data]));
    }
    local_end.drain();
    bytes
}
