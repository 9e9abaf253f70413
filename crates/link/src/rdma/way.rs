//! Is the connection over TCP at the side of a ring, and the last words that go over it.

use parking_lot::Mutex;

use crate::link::{Message, Shutdown, Writer};
use crate::pieces::Patience;

/// What an end says last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Farewell {
    /// The end writes no more, and reads on.
    ReadsOn = 1,
    /// The end is gone.
    Gone = 2,
}

/// The way to the other end over TCP: the connection that this one began as.
pub(super) struct Way {
    writer: Mutex<Box<dyn Writer>>,
    shutdown: Box<dyn Shutdown>,
}

impl Way {
    pub(super) fn new(writer: Box<dyn Writer>, shutdown: Box<dyn Shutdown>) -> Way {
        Way { writer: Mutex::new(writer), shutdown }
    }

    /// Says that this end has written so many slots, all of which are in the other end's memory.
    pub(super) fn say(&self, farewell: Farewell, total: u64) {
        let head = [&[farewell as u8][..], &total.to_be_bytes()].concat();
        let mut writer = self.writer.lock();
        let said = writer.push(&mut vec![Message { head: head.into(), body: Vec::new() }]);
        // A socket that takes nothing is one that the other end's process does not have any more.
        let _ = said.and_then(|()| writer.flush(Patience::Try));
        if farewell == Farewell::Gone {
            self.shutdown.finish();
        }
    }

    /// Closes the connection over TCP.
    pub(super) fn close(&self) {
        self.shutdown.close();
    }

    /// Gives the connection over TCP up.
    pub(super) fn abort(&self) {
        self.shutdown.abort();
    }
}
