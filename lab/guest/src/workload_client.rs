//! The command channel to the workload inside a guest: JSON lines over a unix socket. The commands are described in the
//! workload's `command_port` module.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// The longest answer that is read. The workload's longest has some 500 bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The time for commands that are done at once. An emulated guest on a busy host may not run for a second.
pub const QUICK_COMMAND_TIME: Duration = Duration::from_secs(15);

/// What the workload reports of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// Whether all memory is filled and all threads run.
    pub ready: bool,
    /// The guest's clock, in microseconds since it booted.
    pub time_us: u64,
    /// How many pages are filled so far.
    pub filled_pages: u64,
    /// How many pages are under test.
    #[serde(default)]
    pub pages: u64,
    /// How many rewrites are done so far. Two of these and two `time_us` give the rate reached.
    #[serde(default)]
    pub written: u64,
    /// Whether the rewriting is on.
    #[serde(default)]
    pub dirtying: bool,
    /// The wanted rate, in pages per second.
    #[serde(default)]
    pub rate: u32,
    /// How many pages were compared in the background.
    #[serde(default)]
    pub checked: u64,
    /// How many times a page was wrong.
    #[serde(default)]
    pub bad: u64,
    /// The first page that was wrong.
    #[serde(default)]
    pub first_bad: Option<u64>,
    /// The disk, if one is under test.
    #[serde(default)]
    pub disk: Option<DiskStatus>,
    /// The heartbeat, by the guest's clock.
    pub beat: BeatStatus,
}

/// The state of the disk under test.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DiskStatus {
    /// How many blocks of 4 KiB are under test.
    pub blocks: u64,
    /// How many blocks were written since the disk was filled.
    pub written: u64,
    /// How many blocks were read back and compared.
    pub checked: u64,
    /// How many of these blocks were wrong.
    pub bad: u64,
    /// The first error of the device.
    pub error: Option<String>,
}

/// The heartbeat by the guest's clock, since the last [`WorkloadClient::reset_gap`], in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BeatStatus {
    /// The number of beats.
    pub count: u64,
    /// The longest time between two beats.
    pub longest_us: u64,
    /// The second longest time.
    pub second_us: u64,
    /// The time that 99 % do not exceed.
    pub p99_us: u64,
}

/// The result of comparing everything under test with what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadCheck {
    /// How many pages of RAM were compared.
    pub pages: u64,
    /// How many of these pages were wrong.
    pub bad: u64,
    /// The first page that was wrong.
    pub first_bad: Option<u64>,
    /// How many blocks of the disk were compared.
    pub blocks: u64,
    /// How many of these blocks were wrong.
    pub bad_blocks: u64,
    /// How long the comparison took, in microseconds by the guest's clock.
    pub took_us: u64,
}

impl WorkloadCheck {
    /// Returns whether nothing was wrong.
    pub fn is_good(&self) -> bool {
        self.bad == 0 && self.bad_blocks == 0
    }
}

/// The command channel of one QEMU. After a migration, the target's answers.
#[derive(Debug)]
pub struct WorkloadClient {
    stream: UnixStream,
    received: Vec<u8>,
    next_id: u64,
}

impl WorkloadClient {
    /// Makes a client over a connection to QEMU's end of the workload's control port.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, received: Vec::new(), next_id: 1 }
    }

    /// Asks how the workload is doing.
    ///
    /// # Errors
    ///
    /// Those of [`WorkloadClient::request`].
    pub fn status(&mut self) -> Result<Status, Error> {
        self.ask("status", QUICK_COMMAND_TIME)
    }

    /// Compares everything, within `deadline`.
    ///
    /// # Errors
    ///
    /// Those of [`WorkloadClient::request`].
    pub fn verify(&mut self, deadline: Duration) -> Result<WorkloadCheck, Error> {
        self.ask("verify", deadline)
    }

    /// Stops the rewriting of RAM. It has stopped when this returns.
    ///
    /// # Errors
    ///
    /// Those of [`WorkloadClient::request`].
    pub fn quiet(&mut self) -> Result<(), Error> {
        self.request("quiet", QUICK_COMMAND_TIME).map(drop)
    }

    /// Starts the rewriting of RAM again.
    ///
    /// # Errors
    ///
    /// Those of [`WorkloadClient::request`].
    pub fn dirty(&mut self) -> Result<(), Error> {
        self.request("dirty", QUICK_COMMAND_TIME).map(drop)
    }

    /// Sets the rate of rewriting, in pages per second.
    ///
    /// # Errors
    ///
    /// Those of [`WorkloadClient::request`].
    pub fn set_rate(&mut self, rate: u32) -> Result<(), Error> {
        self.request(&format!("rate {rate}"), QUICK_COMMAND_TIME).map(drop)
    }

    /// Forgets the gaps of the heartbeat, so that the next status only has those that follow.
    ///
    /// # Errors
    ///
    /// Those of [`WorkloadClient::request`].
    pub fn reset_gap(&mut self) -> Result<(), Error> {
        self.request("reset-gap", QUICK_COMMAND_TIME).map(drop)
    }

    /// Returns a hash of all pages under test. It can be compared only while the rewriting is stopped.
    ///
    /// # Errors
    ///
    /// Those of [`WorkloadClient::request`].
    pub fn hash(&mut self, deadline: Duration) -> Result<u64, Error> {
        let answer = self.request("hash", deadline)?;
        let text = answer["hash"].as_str().unwrap_or_default();
        u64::from_str_radix(text, 16).map_err(|_| Error::Agent(format!("the workload's hash is not one: {answer}")))
    }

    /// Flips a bit of a page, by default of the last, so that verification has to find it. Returns the page.
    ///
    /// # Errors
    ///
    /// Those of [`WorkloadClient::request`].
    pub fn corrupt(&mut self, page: Option<u64>) -> Result<u64, Error> {
        let command = page.map_or("corrupt".into(), |page| format!("corrupt {page}"));
        let answer = self.request(&command, QUICK_COMMAND_TIME)?;
        answer["page"].as_u64().ok_or_else(|| Error::Agent(format!("the workload named no page: {answer}")))
    }

    /// Sends a command and returns the answer, within `deadline`.
    ///
    /// # Errors
    ///
    /// [`Error::Agent`] if there is no answer in time or the channel fails, [`Error::Refused`] if the workload refuses.
    pub fn request(&mut self, command: &str, deadline: Duration) -> Result<Value, Error> {
        let id = self.send(command)?;
        self.answer(id, deadline)?.ok_or_else(|| {
            Error::Agent(format!("the guest did not answer {command} within {} ms", deadline.as_millis()))
        })
    }

    fn ask<T: for<'de> Deserialize<'de>>(&mut self, command: &str, deadline: Duration) -> Result<T, Error> {
        let answer = self.request(command, deadline)?;
        parse(command, answer)
    }

    /// Sends a command and returns its id.
    pub(crate) fn send(&mut self, command: &str) -> Result<u64, Error> {
        let id = self.next_id;
        self.next_id += 1;
        // QEMU holds what the guest does not read yet, up to a socket buffer. If that stays full, the guest never
        // reads.
        self.stream.set_write_timeout(Some(QUICK_COMMAND_TIME)).map_err(talking)?;
        self.stream.write_all(format!("{id} {command}\n").as_bytes()).map_err(talking)?;
        Ok(id)
    }

    /// Returns the answer to the command `id`, if it comes within `deadline`.
    pub(crate) fn answer(&mut self, id: u64, deadline: Duration) -> Result<Option<Value>, Error> {
        let end = Instant::now() + deadline;
        loop {
            while let Some(length) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=length).collect();
                // The first line after a migration may lack its beginning, which went to the source's socket.
                let Ok(answer) = serde_json::from_slice::<Value>(&line) else { continue };
                if answer["id"].as_u64() != Some(id) {
                    continue;
                }
                return match answer["error"].as_str() {
                    Some(error) => Err(Error::Refused(error.into())),
                    None => Ok(Some(answer)),
                };
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(Error::Agent(format!("the guest sent a line of more than {LINE_BYTES_MAX} bytes")));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left)).map_err(talking)?;
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Error::Agent("QEMU closed the guest's command channel: it has ended".into())),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(talking(error)),
            }
        }
    }
}

pub(crate) fn parse<T: for<'de> Deserialize<'de>>(command: &str, answer: Value) -> Result<T, Error> {
    serde_json::from_value(answer).map_err(|e| Error::Agent(format!("the workload's answer to {command}: {e}")))
}

fn talking(error: io::Error) -> Error {
    Error::Agent(format!("the guest's command channel: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (WorkloadClient, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (WorkloadClient::new(ours), theirs)
    }

    /// A time that an answer never takes, also on a busy machine.
    const AMPLE: Duration = Duration::from_secs(60);

    #[test]
    fn answers_are_matched() {
        let (mut agent, mut guest) = pair();
        // The rest of a line whose beginning went to the source, an old answer, then the wanted one.
        guest.write_all(b"\"bad\":0}\n{\"id\":9}\n{\"id\":1,\"hash\":\"00000000000000ff\"}\n").unwrap();
        assert_eq!(agent.hash(AMPLE).unwrap(), 255);
        let mut sent = [0; 7];
        guest.read_exact(&mut sent).unwrap();
        assert_eq!(&sent, b"1 hash\n");
    }

    #[test]
    fn refusals_silence_and_floods_are_told() {
        let (mut agent, mut guest) = pair();
        guest.write_all(b"{\"id\":1,\"error\":\"not ready\"}\n").unwrap();
        assert_eq!(agent.verify(AMPLE).unwrap_err().to_string(), "the guest refuses: not ready");
        let silent = agent.request("status", Duration::from_millis(20)).unwrap_err();
        assert_eq!(silent.to_string(), "the guest did not answer status within 20 ms");
        // The guest's end stays open: a command to a channel that is closed would fail before the flood is read.
        let flood = std::thread::spawn(move || {
            let _ = guest.write_all(&vec![b'a'; LINE_BYTES_MAX + 5000]);
            guest
        });
        assert!(agent.request("status", AMPLE).unwrap_err().to_string().contains("a line of more than"));
        drop(agent);
        drop(flood.join());
        let (mut agent, guest) = pair();
        drop(guest);
        assert!(agent.status().is_err());
    }

    #[test]
    fn reads_a_status() {
        let filling = concat!(
            r#"{"id":1,"ready":false,"time_us":5,"filled_pages":3,"#,
            r#""beat":{"count":1,"longest_us":2,"second_us":0,"p99_us":2}}"#
        );
        let status: Status = parse("status", serde_json::from_str(filling).unwrap()).unwrap();
        assert!(!status.ready && status.disk.is_none());
    }
}
