//! The other direction at the source: what the target's QEMU says, and what its agent does.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use skein_core::StreamId;
use skein_pages::record::{Decoder, Note, Record};

use super::source::Source;

/// Takes what comes from the target apart.
pub(crate) struct Answers {
    source: Arc<Source>,
    stream: StreamId,
    decoder: Decoder,
}

impl Answers {
    pub(crate) fn new(source: Arc<Source>, stream: StreamId) -> Answers {
        Answers { source, stream, decoder: Decoder::default() }
    }

    pub(crate) fn push(&mut self, piece: Bytes) {
        self.decoder.push(piece);
    }

    /// The target has torn the stream down.
    pub(crate) fn torn_down(&self, why: &str) {
        self.source.torn_down(why);
    }

    /// What QEMU is to get goes to `out`.
    pub(crate) fn step(&mut self, out: &mut VecDeque<Bytes>) -> Result<(), String> {
        while let Some(record) = self.decoder.record().map_err(|error| error.to_string())? {
            match record {
                Record::Bytes(bytes) if !bytes.is_empty() => out.push_back(bytes),
                Record::Bytes(_) => {}
                Record::Note(Note::Passed { barriers }) => self.source.placed(self.stream, barriers),
                Record::Note(note) => self.source.heard(note)?,
                _ => return Err("the target's agent sent a record that is not its to send".into()),
            }
        }
        Ok(())
    }
}
