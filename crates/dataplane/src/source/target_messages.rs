//! Is the other direction at the source: what the target's QEMU says, and what its agent says.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use skein_link::Patience;
use skein_pages::page_record::{Decoder, PageMessage, PageRecord};
use skein_session::StreamId;

use super::error::{ProtocolError, SourceError};
use super::pages::SourcePages;
use crate::decode::{Decode, DecodeError, Progress};
use crate::rail_paths::RailPaths;

/// Takes apart what comes from the target.
pub(crate) struct TargetMessages {
    pages: Arc<SourcePages>,
    stream: StreamId,
    decoder: Decoder,
    paths: Arc<dyn RailPaths>,
}

impl TargetMessages {
    pub(crate) fn new(source: Arc<SourcePages>, stream: StreamId, paths: Arc<dyn RailPaths>) -> TargetMessages {
        TargetMessages { pages: source, stream, decoder: Decoder::default(), paths }
    }

    /// Appends what QEMU is to get to `out`.
    fn read(&mut self, out: &mut VecDeque<Bytes>) -> Result<(), SourceError> {
        while let Some(record) = self.decoder.record()? {
            match record {
                PageRecord::Bytes(bytes) if !bytes.is_empty() => out.push_back(bytes),
                PageRecord::Bytes(_) => {}
                PageRecord::Note(PageMessage::Passed { barriers }) => {
                    self.pages.note_pages_written(self.stream, barriers)
                }
                PageRecord::Note(note) => self.pages.handle_message(note, &self.paths)?,
                _ => return Err(ProtocolError::SourcesRecord.into()),
            }
        }
        Ok(())
    }
}

impl Decode for TargetMessages {
    fn push(&mut self, piece: Bytes) {
        self.decoder.push(piece);
    }

    fn step(
        &mut self,
        out: &mut VecDeque<Bytes>,
        _answers: &mut Vec<Bytes>,
        _patience: Patience,
    ) -> Result<Progress, DecodeError> {
        Ok(self.read(out).map(|()| Progress::Done)?)
    }

    fn torn_down(&mut self, why: &str) {
        self.pages.fail(SourceError::TornDown(why.to_owned()));
    }
}
