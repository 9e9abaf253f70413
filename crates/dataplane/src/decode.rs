//! Is the seam between a stream and its cargo: the stream carries bytes, a decoder knows what the bytes are.

use std::collections::VecDeque;
use std::error::Error;

use bytes::Bytes;
use skein_link::Patience;

/// Makes what a stream's local end gets from the bytes that the stream brings.
pub(crate) trait Decode: Send {
    /// Takes the next bytes of the stream. The longest record and one piece bound what waits in the decoder.
    fn push(&mut self, piece: Bytes);

    /// Decodes the bytes that are there.
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

    /// Notes that the peer has torn the stream down, and the peer's reason.
    fn torn_down(&mut self, why: &str);
}

/// The reason why a stream cannot go on, of a type that only the stream's cargo knows.
pub(crate) type DecodeError = Box<dyn Error + Send + Sync>;

/// How far a decoder has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The decoder needs more bytes of this stream.
    Done,
    /// The decoder waits for other streams.
    Waits,
}
