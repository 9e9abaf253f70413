//! The seam between a stream and its cargo: the stream carries bytes, a decoder knows what the bytes are.

use std::collections::VecDeque;
use std::error::Error;

use bytes::Bytes;
use skein_link::Patience;

/// Makes of the bytes that a stream brings what its local end is to get.
pub(crate) trait Decode: Send {
    /// Takes the next bytes of the stream. What waits in the decoder is bounded by the longest record and one piece.
    fn push(&mut self, piece: Bytes);

    /// Deals with the bytes that are there.
    ///
    /// `out` gets what the local end is to get, `answers` what the peer is to get on the same stream. With
    /// [`Patience::Wait`] the call may block for a moment before it returns [`Progress::Waits`].
    ///
    /// # Errors
    /// The bytes make no sense or cannot be dealt with: the stream is torn down, and the peer is told the error.
    fn step(
        &mut self,
        out: &mut VecDeque<Bytes>,
        answers: &mut Vec<Bytes>,
        patience: Patience,
    ) -> Result<Progress, DecodeError>;

    /// The peer has torn the stream down, for this reason.
    fn torn_down(&mut self, why: &str);
}

/// Why a stream cannot go on, of a type that only its cargo knows.
pub(crate) type DecodeError = Box<dyn Error + Send + Sync>;

/// How far a decoder has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The decoder needs more bytes of this stream.
    Done,
    /// The decoder waits for other streams.
    Waits,
}
