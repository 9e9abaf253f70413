//! Reads and writes values as lines of JSON.

use std::io::{self, BufRead, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bounds the line that is read: a thousand VMs with their definitions fit.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

/// The reason why a line cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LineError {
    #[error("the connection broke")]
    Io(#[source] io::Error),
    #[error("the other end hung up")]
    Closed,
    #[error("a line that is too long")]
    TooLong,
    #[error("not what was expected: {excerpt}")]
    Malformed {
        excerpt: String,
        #[source]
        source: serde_json::Error,
    },
}

/// Reads the next value.
pub fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<T, LineError> {
    parse_line(&read_bytes_within(from, LINE_BYTES_MAX)?)
}

/// Reads the next line, of `bytes_max` bytes at most, with its end.
///
/// # Errors
///
/// The connection broke or ended, or the line is longer.
pub fn read_bytes_within(from: &mut impl BufRead, bytes_max: u64) -> Result<Vec<u8>, LineError> {
    let mut line = Vec::new();
    from.take(bytes_max).read_until(b'\n', &mut line).map_err(LineError::Io)?;
    match line.last() {
        Some(b'\n') => Ok(line),
        _ if line.len() as u64 == bytes_max => Err(LineError::TooLong),
        _ => Err(LineError::Closed),
    }
}

/// Reads the value of a line.
///
/// # Errors
///
/// The line is no JSON, or another value.
pub fn parse_line<T: DeserializeOwned>(line: &[u8]) -> Result<T, LineError> {
    serde_json::from_slice(line).map_err(|source| {
        let excerpt = String::from_utf8_lossy(&line[..line.len().min(100)]);
        let excerpt = excerpt.trim_end().replace(char::is_control, "\u{fffd}");
        LineError::Malformed { excerpt, source }
    })
}

/// Writes a value.
pub fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).expect("plain data always serialises");
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
