//! Is the thread of a stream at the source, which takes apart what QEMU sends.
//!
//! [`main_channel`] and [`multifd`] know what the bytes are, [`last_pages`] knows what comes at the end of all pages.
//! What is read goes to the stream's [`Outbox`].

mod input;
mod last_pages;
mod main_channel;
mod multifd;

use std::io;
use std::sync::Arc;

use parking_lot::Condvar;
use skein_qemu_stream::ChannelKind;
use skein_session::StreamId;

use self::input::{Input, IntakeStop};
use self::main_channel::MainChannel;
use super::error::SourceError;
use super::outbox::Outbox;
use super::pages::SourcePages;
use super::socket_reader::{ReadEnded, SocketReader};
use crate::ResetCode;
use crate::error_chain::error_chain;
use crate::local_end::LocalEnd;
use crate::running_session::RunningSession;

/// Says how much is read at once of the main channel, and of what is not understood.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads a stream's local socket into the session until the socket's end, taken apart. Returns the number of bytes.
pub(crate) fn ingest(
    live: &Arc<RunningSession>,
    id: StreamId,
    local_end: &LocalEnd,
    writable: &Arc<Condvar>,
    pages: &Arc<SourcePages>,
) -> u64 {
    let is_over = || live.lock().core.is_reset(id);
    let reader = SocketReader::new(local_end, &is_over, BUFFER_BYTES);
    let (bytes, broke) = match Outbox::start(live, id, writable, pages) {
        Ok(outbox) => {
            let mut input = Input { live, id, pages, reader, outbox, is_over: &is_over };
            let stop = take_apart(&mut input).err();
            let broke = stop.and_then(|stop| give_up(live, id, pages, stop));
            // What a reset cut short has no end.
            input.outbox.finish(broke.is_some() && local_end.resets());
            (input.reader.bytes, broke)
        }
        Err(error) => (0, give_up(live, id, pages, SourceError::Thread(error).into())),
    };
    if let Some(error) = broke {
        live.reset_for_broken_socket(id, local_end, &error);
    }
    local_end.drain();
    bytes
}

/// Tears the stream down if the migration cannot go on. Returns the error if the local socket broke.
fn give_up(live: &RunningSession, id: StreamId, pages: &SourcePages, stop: IntakeStop) -> Option<io::Error> {
    match stop {
        IntakeStop::Failed(why) => {
            let words = error_chain(&why);
            pages.fail(why);
            live.reset(id, ResetCode::Unsound, &words);
            None
        }
        IntakeStop::Ended(ReadEnded::Broke(error)) => Some(error),
        IntakeStop::Ended(ReadEnded::Eof | ReadEnded::Over) => None,
    }
}

/// Reads a connection to its end.
fn take_apart(input: &mut Input<'_>) -> Result<(), IntakeStop> {
    let read = kind(&mut input.reader).map_err(IntakeStop::from).and_then(|kind| match kind {
        ChannelKind::Main => MainChannel::new(input).read(),
        ChannelKind::Multifd => multifd::read(input),
        ChannelKind::Other => input.send_opaque(),
    });
    let Err(IntakeStop::Ended(ended)) = read else { return read };
    // What is left is for QEMU.
    let rest = input.reader.take(input.reader.buffered().len());
    input.outbox.gather(&rest)?;
    input.outbox.flush()?;
    match ended {
        ReadEnded::Eof => Ok(()),
        ended => Err(ended.into()),
    }
}

/// Returns the kind of a connection. A connection that is not QEMU's does not wait for four bytes.
fn kind(reader: &mut SocketReader<'_>) -> Result<ChannelKind, ReadEnded> {
    let magics = [skein_qemu_stream::main_channel::MAGIC, skein_qemu_stream::multifd::MAGIC].map(u32::to_be_bytes);
    loop {
        let first = &reader.buffered()[..reader.buffered().len().min(4)];
        if !magics.iter().any(|magic| magic.starts_with(first)) {
            return Ok(ChannelKind::Other);
        }
        match first.try_into() {
            Ok(first) => return Ok(skein_qemu_stream::kind(first)),
            Err(_) => reader.fill(first.len() + 1)?,
        }
    }
}
