//! What can be asked about a host's network, and answers: a kernel's, or those of a recording.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A question about a host's network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    /// All interfaces: the payloads of `RTM_NEWLINK`.
    Links,
    /// All addresses: the payloads of `RTM_NEWADDR`.
    Addresses,
    /// All queueing disciplines: the payloads of `RTM_NEWQDISC`.
    Qdiscs,
    /// The classes of an interface's queueing disciplines, by its index: the payloads of `RTM_NEWTCLASS`.
    Classes(u32),
    /// The filters of an interface's queueing discipline, by the interface's index and the discipline's handle: the
    /// payloads of `RTM_NEWTFILTER`.
    Filters(u32, u32),
    /// The Data Center Bridging settings of an interface: the payload of the answer to `DCB_CMD_IEEE_GET`.
    Dcb(String),
    /// What a driver says of an interface, as the command's structure in `linux/ethtool.h`.
    Driver(String, DriverAsk),
    /// The counters that a driver has of an interface: for each a line of its name, a colon and its value.
    Counters(String),
    /// The options of a team, by its index: the payloads of the answer to `TEAM_CMD_OPTIONS_GET`.
    Team(u32),
    /// The configuration of the teamd that runs a team, by the team's name: a JSON object (`teamd.conf(5)`).
    Teamd(String),
    /// What Open vSwitch's database says to [`ovs_questions`](crate::ovs_questions): a JSON array of results.
    Ovs,
    /// The text of a small file of `/proc` or `/sys`.
    File(String),
    /// The names in a directory.
    Directory(String),
    /// The target of a symbolic link.
    Link(String),
}

/// A question to the driver of an interface, with its number in `linux/ethtool.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum DriverAsk {
    /// Speed and duplex (`struct ethtool_cmd`).
    Settings = 0x1,
    /// The driver's name and the firmware's version (`struct ethtool_drvinfo`).
    Info = 0x3,
    /// Rings (`struct ethtool_ringparam`).
    Rings = 0x10,
    /// Pause frames (`struct ethtool_pauseparam`).
    Pause = 0x12,
    /// Whether checksums of received packets are checked by the NIC (`struct ethtool_value`).
    RxChecksum = 0x14,
    /// Whether checksums of sent packets are made by the NIC (`struct ethtool_value`).
    TxChecksum = 0x16,
    /// TCP segmentation offload (`struct ethtool_value`).
    Tso = 0x1e,
    /// Generic segmentation offload (`struct ethtool_value`).
    Gso = 0x23,
    /// Flags, among them large receive offload (`struct ethtool_value`).
    Flags = 0x25,
    /// Generic receive offload (`struct ethtool_value`).
    Gro = 0x2b,
    /// Queues (`struct ethtool_channels`).
    Channels = 0x3c,
}

impl DriverAsk {
    /// Returns the size of the command's structure, in bytes.
    pub fn bytes(self) -> usize {
        match self {
            DriverAsk::Settings => 44,
            DriverAsk::Info => 196,
            DriverAsk::Rings | DriverAsk::Channels => 36,
            DriverAsk::Pause => 16,
            _ => 8,
        }
    }

    fn word(self) -> &'static str {
        match self {
            DriverAsk::Settings => "settings",
            DriverAsk::Info => "info",
            DriverAsk::Rings => "rings",
            DriverAsk::Pause => "pause",
            DriverAsk::RxChecksum => "rx-checksum",
            DriverAsk::TxChecksum => "tx-checksum",
            DriverAsk::Tso => "tso",
            DriverAsk::Gso => "gso",
            DriverAsk::Flags => "flags",
            DriverAsk::Gro => "gro",
            DriverAsk::Channels => "channels",
        }
    }
}

/// As it is written in a recording.
impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Links => f.write_str("links"),
            Ask::Addresses => f.write_str("addresses"),
            Ask::Qdiscs => f.write_str("qdiscs"),
            Ask::Classes(index) => write!(f, "classes {index}"),
            Ask::Filters(index, handle) => write!(f, "filters {index} {handle:x}"),
            Ask::Dcb(nic) => write!(f, "dcb {nic}"),
            Ask::Driver(nic, what) => write!(f, "driver {nic} {}", what.word()),
            Ask::Counters(nic) => write!(f, "counters {nic}"),
            Ask::Team(index) => write!(f, "team {index}"),
            Ask::Teamd(team) => write!(f, "teamd {team}"),
            Ask::Ovs => f.write_str("ovs"),
            Ask::File(path) => write!(f, "file {path}"),
            Ask::Directory(path) => write!(f, "directory {path}"),
            Ask::Link(path) => write!(f, "link {path}"),
        }
    }
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Payloads of netlink messages, without their headers.
    Messages(#[serde(with = "hex_list")] Vec<Vec<u8>>),
    /// A structure.
    Bytes(#[serde(with = "hex")] Vec<u8>),
    /// A file's text, a program's answer, or where a symbolic link leads.
    Text(String),
    /// The names in a directory, in order.
    Names(Vec<String>),
    /// The error's number: there is no such thing, or the kernel refuses.
    Refused(i32),
}

impl Answer {
    /// Returns the payloads; none if it was refused.
    pub fn messages(self) -> Vec<Vec<u8>> {
        if let Answer::Messages(messages) = self { messages } else { Vec::new() }
    }

    /// Returns the structure.
    pub fn bytes(self) -> Option<Vec<u8>> {
        if let Answer::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// Returns the text.
    pub fn text(self) -> Option<String> {
        if let Answer::Text(text) = self { Some(text) } else { None }
    }

    /// Returns the names; none if it was refused.
    pub fn names(self) -> Vec<String> {
        if let Answer::Names(names) = self { names } else { Vec::new() }
    }
}

/// Whoever answers: a kernel, or a recording.
pub trait Source {
    /// Answers a question. Whoever does not know refuses with `ENOENT`.
    fn ask(&self, ask: &Ask) -> Answer;
}

/// The error's number of what is not there (`errno(3)`).
pub const ENOENT: i32 = 2;

/// What was asked of a kernel, and what it answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording(BTreeMap<String, Answer>);

impl Source for Recording {
    fn ask(&self, ask: &Ask) -> Answer {
        self.0.get(&ask.to_string()).cloned().unwrap_or(Answer::Refused(ENOENT))
    }
}

/// Asks another source, and keeps what it answers.
pub struct Recorder<'a> {
    of: &'a dyn Source,
    recording: RefCell<Recording>,
}

impl<'a> Recorder<'a> {
    /// Returns a recorder without answers yet.
    pub fn new(of: &'a dyn Source) -> Recorder<'a> {
        Recorder { of, recording: RefCell::default() }
    }

    /// Returns what was answered so far.
    pub fn into_recording(self) -> Recording {
        self.recording.into_inner()
    }
}

impl Source for Recorder<'_> {
    fn ask(&self, ask: &Ask) -> Answer {
        let answer = self.of.ask(ask);
        self.recording.borrow_mut().0.insert(ask.to_string(), answer.clone());
        answer
    }
}

/// Bytes as hexadecimal digits, so that a recording can be looked at.
pub(crate) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        bytes(&String::deserialize(from)?).ok_or_else(|| de::Error::custom("no hexadecimal digits"))
    }

    pub fn text(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn bytes(text: &str) -> Option<Vec<u8>> {
        let digits: Option<Vec<u8>> = text.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
        let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
        Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
    }
}

mod hex_list {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::hex;

    pub fn serialize<S: Serializer>(list: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|bytes| hex::text(bytes)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let list: Option<Vec<_>> = Vec::<String>::deserialize(from)?.iter().map(|text| hex::bytes(text)).collect();
        list.ok_or_else(|| de::Error::custom("no hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_answers_as_what_it_recorded() {
        struct Fixed;
        impl Source for Fixed {
            fn ask(&self, ask: &Ask) -> Answer {
                match ask {
                    Ask::Links => Answer::Messages(vec![vec![0, 0xff, 0x10], vec![]]),
                    Ask::Driver(_, DriverAsk::Tso) => Answer::Bytes(vec![1, 2]),
                    Ask::File(path) => Answer::Text(format!("of {path}\n")),
                    Ask::Directory(_) => Answer::Names(vec!["a".into(), "b".into()]),
                    _ => Answer::Refused(95),
                }
            }
        }
        let asked = [
            Ask::Links,
            Ask::Driver("eth0".into(), DriverAsk::Tso),
            Ask::File("/proc/interrupts".into()),
            Ask::Directory("/sys/class/infiniband".into()),
            Ask::Dcb("eth0".into()),
        ];
        let recorder = Recorder::new(&Fixed);
        let answers = asked.each_ref().map(|ask| recorder.ask(ask));
        let written = serde_json::to_string(&recorder.into_recording()).unwrap();
        assert!(written.contains(r#""links":{"messages":["00ff10",""]}"#), "{written}");
        let read: Recording = serde_json::from_str(&written).unwrap();
        assert_eq!(asked.each_ref().map(|ask| read.ask(ask)), answers);
        assert_eq!(read.ask(&Ask::Qdiscs), Answer::Refused(ENOENT), "nobody asked that");
        assert!(serde_json::from_str::<Recording>(&written.replace("00ff10", "00ff1")).is_err());
    }
}
