//! What changes, as it changes: server-sent events (the HTML standard, section 9.2), with resume.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use skein_api::cluster::Event;
use ureq::BodyReader;

use super::error::ControllerError;
use super::request::{Ask, Sender};

/// How many bytes an event has at most: a drain of some thousand VMs.
const EVENT_BYTES_MAX: usize = 16 << 20;
/// The most tries in a row to subscribe again.
const TRIES_MAX: u32 = 40;
/// The time between two tries.
const RETRY_PERIOD: Duration = Duration::from_millis(250);

/// What changes. After a break the stream goes on where it was; where that is too long ago, a
/// [`Reset`](skein_api::cluster::ChangedObject::Reset) comes first.
pub struct Events<'a> {
    sender: &'a Sender,
    /// The id of the last event.
    last: Option<String>,
    stream: Option<Stream>,
}

impl std::fmt::Debug for Events<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("last", &self.last).finish_non_exhaustive()
    }
}

struct Stream {
    at: String,
    lines: Lines<BufReader<BodyReader<'static>>>,
}

impl<'a> Events<'a> {
    pub(super) fn open(sender: &'a Sender) -> Result<Events<'a>, ControllerError> {
        Ok(Events { sender, last: None, stream: Some(subscribe(sender, None)?) })
    }

    /// Returns the next event, and waits for it. A stream that breaks is taken up again.
    ///
    /// # Errors
    ///
    /// No controller takes the subscriber any more, or what comes is no event.
    pub fn next_event(&mut self) -> Result<Event, ControllerError> {
        let mut tries = 0;
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                none => match subscribe(self.sender, self.last.as_deref()) {
                    Ok(stream) => none.insert(stream),
                    Err(error) if error.may_pass() && tries < TRIES_MAX => {
                        tries += 1;
                        std::thread::sleep(RETRY_PERIOD);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            match stream.lines.next_message() {
                Ok(Some(message)) => {
                    self.last = message.id.or(self.last.take());
                    let malformed = |source| ControllerError::Malformed { at: stream.at.clone(), source };
                    return serde_json::from_slice(&message.data).map_err(malformed);
                }
                Ok(None) => self.stream = None,
                Err(TooLong) => {
                    return Err(ControllerError::LongEvent { at: stream.at.clone(), most: EVENT_BYTES_MAX });
                }
            }
        }
    }
}

fn subscribe(sender: &Sender, last: Option<&str>) -> Result<Stream, ControllerError> {
    let mut ask = Ask::get("/events");
    ask.headers.push(("accept", "text/event-stream".into()));
    ask.headers.extend(last.map(|id| ("last-event-id", id.to_owned())));
    let (at, response) = sender.send(&ask)?;
    Ok(Stream { at, lines: Lines { input: BufReader::new(response.into_body().into_reader()) } })
}

/// A message has more bytes than are worth reading.
struct TooLong;

#[derive(Debug, Default, PartialEq)]
struct Message {
    id: Option<String>,
    data: Vec<u8>,
}

struct Lines<R> {
    input: R,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next message with data. `None`: the stream has broken.
    fn next_message(&mut self) -> Result<Option<Message>, TooLong> {
        let (mut message, mut has_data) = (Message::default(), false);
        loop {
            let mut line = Vec::new();
            match (&mut self.input).take(EVENT_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line) {
                Ok(_) if line.len() > EVENT_BYTES_MAX || message.data.len() + line.len() > EVENT_BYTES_MAX => {
                    return Err(TooLong);
                }
                // A message that is cut is not one: it comes again.
                Ok(_) if line.last() != Some(&b'\n') => return Ok(None),
                Err(_) => return Ok(None),
                Ok(_) => {}
            }
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if has_data {
                    return Ok(Some(message));
                }
                message = Message::default();
                continue;
            }
            let (field, value) = match line.iter().position(|byte| *byte == b':') {
                Some(colon) => (&line[..colon], &line[colon + 1..]),
                None => (line, &b""[..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match field {
                b"id" => message.id = Some(String::from_utf8_lossy(value).into_owned()),
                b"data" => {
                    if has_data {
                        message.data.push(b'\n');
                    }
                    message.data.extend_from_slice(value);
                    has_data = true;
                }
                // A comment, or what is not needed.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_the_standard_says() {
        let text = ":\n\nid: 4.1\nevent: vm\ndata: {\"a\":\ndata: 1}\n\n: still here\n\n\
                    id:5.0\r\ndata:x\r\n\r\nid: 6\ndata: cut";
        let mut lines = Lines { input: text.as_bytes() };
        let mut next = || lines.next_message().ok().unwrap();
        assert_eq!(next(), Some(Message { id: Some("4.1".into()), data: b"{\"a\":\n1}".to_vec() }));
        assert_eq!(next(), Some(Message { id: Some("5.0".into()), data: b"x".to_vec() }));
        assert_eq!(next(), None);
    }

    #[test]
    fn an_endless_message_is_refused() {
        let mut line = Lines { input: BufReader::new(std::io::repeat(b'x')) };
        assert!(matches!(line.next_message(), Err(TooLong)));
        let data = "data: 0123456789\n".repeat(EVENT_BYTES_MAX / 10 + 10);
        assert!(matches!(Lines { input: data.as_bytes() }.next_message(), Err(TooLong)));
    }
}
