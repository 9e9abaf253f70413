//! Is a connection of QEMU that is taken apart: what the connection brings, and the way into the session.

use bytes::Bytes;
use skein_pages::page_record::{self, BYTES_MAX};
use skein_session::StreamId;

use crate::running_session::RunningSession;
use crate::source::error::SourceError;
use crate::source::outbox::{NotSent, Outbox};
use crate::source::page_counters::add;
use crate::source::pages::SourcePages;
use crate::source::socket_reader::{ReadEnded, SocketReader};

/// The reason why an intake ends early.
pub(super) enum IntakeStop {
    /// The connection has no more bytes, or its stream was torn down.
    Ended(ReadEnded),
    /// The migration cannot go on.
    Failed(SourceError),
}

impl From<ReadEnded> for IntakeStop {
    fn from(ended: ReadEnded) -> IntakeStop {
        IntakeStop::Ended(ended)
    }
}

impl From<SourceError> for IntakeStop {
    fn from(why: SourceError) -> IntakeStop {
        IntakeStop::Failed(why)
    }
}

impl From<NotSent> for IntakeStop {
    fn from(why: NotSent) -> IntakeStop {
        match why {
            NotSent::Over => IntakeStop::Ended(ReadEnded::Over),
            NotSent::Failed(why) => IntakeStop::Failed(why),
        }
    }
}

/// A connection of QEMU.
pub(super) struct Input<'a> {
    pub(super) live: &'a RunningSession,
    pub(super) id: StreamId,
    pub(super) pages: &'a SourcePages,
    pub(super) reader: SocketReader<'a>,
    pub(super) outbox: Outbox,
    /// Returns whether the stream was torn down.
    pub(super) is_over: &'a dyn Fn() -> bool,
}

impl Input<'_> {
    /// Sends everything that follows to QEMU as it is, until the end.
    pub(super) fn send_opaque(&mut self) -> Result<(), IntakeStop> {
        self.outbox.flush()?;
        self.outbox.send(vec![page_record::opaque()])?;
        loop {
            let mut buffer = self.live.pool.take(BYTES_MAX);
            let bytes = match self.reader.read_some(buffer.as_mut()) {
                Ok(bytes) => bytes,
                Err(ReadEnded::Eof) => return Ok(()),
                Err(ended) => return Err(ended.into()),
            };
            add(&self.pages.counts.other_bytes, bytes);
            let data = if bytes < BYTES_MAX / 4 {
                Bytes::copy_from_slice(&buffer.as_ref()[..bytes])
            } else {
                buffer.truncate(bytes);
                buffer.freeze()
            };
            self.outbox.send(vec![data])?;
        }
    }
}
