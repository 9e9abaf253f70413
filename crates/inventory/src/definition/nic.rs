//! `[[nic]]`.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::names::check_interface;
use super::values::{Line, ROOT_KEYS, VALUE_BYTES_MAX, word};
use crate::toml_reader::{Reader, Table, Value, quote};

/// The most NICs.
pub const NICS_MAX: usize = 32;

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// What the card is plugged into.
    #[serde(flatten)]
    pub attachment: Attachment,
    /// The card's address.
    pub mac: MacAddress,
    /// What the guest sees. Left out where it is the default, as older versions know it.
    #[serde(default, skip_serializing_if = "NicOptions::is_default")]
    pub options: NicOptions,
}

/// What a guest sees of a network card.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NicOptions {
    /// The model of card.
    pub model: NicModel,
    /// The number of pairs of queues of a virtio card, at most one for each CPU. `None`: one.
    pub queues: Option<u8>,
    /// Whether the kernel moves the packets of a virtio card (`/dev/vhost-net`), not QEMU.
    pub vhost: bool,
}

impl NicOptions {
    fn is_default(&self) -> bool {
        *self == NicOptions::default()
    }
}

/// A model of network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NicModel {
    /// virtio-net.
    #[default]
    Virtio,
    /// Intel's 82574L, PCI Express.
    E1000e,
    /// Intel's 82540EM.
    E1000,
    /// Realtek's card.
    Rtl8139,
    /// VMware's card.
    Vmxnet3,
}

const MODELS: [(&str, NicModel); 5] = [
    ("virtio", NicModel::Virtio),
    ("e1000e", NicModel::E1000e),
    ("e1000", NicModel::E1000),
    ("rtl8139", NicModel::Rtl8139),
    ("vmxnet3", NicModel::Vmxnet3),
];
/// The numbers of pairs of queues. A tap has at most 256 queues (MAX_TAP_QUEUES of drivers/net/tun.c).
const QUEUES: std::ops::RangeInclusive<u64> = 1..=64;

/// What a NIC is plugged into.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attachment {
    /// A bridge of the host. The agent makes and names the tap between them.
    Bridge(String),
    /// A tap device of this name.
    Tap(String),
}

/// The address of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Derives the address of a VM's NIC from their names, the same on every host and in every version. 40 bits differ:
    /// under QEMU's 52:54:00 it would be 24, and of a thousand NICs two would meet with a probability of 3 %. The first
    /// byte, 52, says "locally administered, one card" (IEEE 802, 8.2).
    pub fn derived(vm: &str, nic: usize) -> MacAddress {
        // The hash is FNV-1a with the finaliser of splitmix64, so that names that differ in the last letter differ in
        // all bytes.
        let bytes = vm.bytes().chain([0]).chain((nic as u64).to_le_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let [a, b, c, d, e, ..] = (hash ^ hash >> 31).to_le_bytes();
        MacAddress([0x52, a, b, c, d, e])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl std::str::FromStr for MacAddress {
    type Err = String;

    /// Reads six bytes in hexadecimal with colons, the address of one card.
    ///
    /// # Errors
    ///
    /// What to write instead.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let byte = |part: &&str| {
            let hexadecimal = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            hexadecimal.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = parts.iter().map(byte).collect();
        let bytes: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or("write six bytes, such as \"52:54:00:12:34:56\", or leave the line out")?;
        if bytes[0] & 1 == 1 || bytes == [0; 6] {
            return Err("that is no address of one card: begin with 52:54:00, or leave the line out".into());
        }
        Ok(MacAddress(bytes))
    }
}

impl Serialize for MacAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Nic {
    pub(super) fn write(&self, line: &mut Line) {
        match &self.attachment {
            Attachment::Bridge(name) => line("\n[[nic]]\nbridge", name.as_str().into()),
            Attachment::Tap(name) => line("\n[[nic]]\ntap", name.as_str().into()),
        }
        line("mac", self.mac.to_string().into());
        if self.options.model != NicModel::default() {
            line("model", word(&MODELS, self.options.model).into());
        }
        self.options.queues.iter().for_each(|queues| line("queues", i64::from(*queues).into()));
        if self.options.vhost {
            line("vhost", true.into());
        }
    }
}

pub(super) fn read(reader: &mut Reader, tables: Vec<Table>, vm: &str) -> Vec<Nic> {
    let (mut nics, mut macs, mut taps) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (number, mut table) in tables.into_iter().enumerate() {
        let (bridge, tap) = (table.get("bridge"), table.get("tap"));
        let mut interface = |value: &Value| value.parsed(reader, VALUE_BYTES_MAX, check_interface);
        let attachment = match (&bridge, &tap) {
            (Some(value), None) => interface(value).map(Attachment::Bridge),
            (None, Some(value)) => interface(value).map(|name| {
                if !taps.insert(name.clone()) {
                    value.report_at(reader, format!("tap {} is there already", quote(&name)), "give each NIC its own");
                }
                Attachment::Tap(name)
            }),
            (None, None) => {
                let cure = "add bridge = \"br0\" or tap = \"tap7\"";
                reader.report_at(table.span.clone(), "this [[nic]] is plugged into nothing", cure);
                None
            }
            (Some(_), Some(value)) => {
                value.report_at(reader, "this [[nic]] has both a bridge and a tap", "remove one");
                None
            }
        };
        let value = table.get("mac");
        let mac = match &value {
            Some(value) => value.parsed(reader, 64, |text| text.parse::<MacAddress>()),
            None => Some(MacAddress::derived(vm, number)),
        };
        if mac.is_some_and(|mac| !macs.insert(mac)) {
            let span = value.map_or(table.span.clone(), |value| value.span);
            reader.report_at(span, "another NIC has this mac already", "give each NIC its own, or leave the line out");
        }
        let options = read_options(reader, &mut table);
        table.finish(reader, &ROOT_KEYS);
        if let (Some(attachment), Some(mac)) = (attachment, mac) {
            nics.push(Nic { attachment, mac, options });
        }
    }
    nics
}

fn read_options(reader: &mut Reader, table: &mut Table) -> NicOptions {
    let model = table.get("model").and_then(|value| value.word(reader, &MODELS)).unwrap_or_default();
    let (queues, vhost) = (table.get("queues"), table.get("vhost"));
    for value in [&queues, &vhost].into_iter().flatten().filter(|_| model != NicModel::Virtio) {
        let cure = "remove this line, or write model = \"virtio\"";
        value.report_at(reader, format!("{} is of virtio cards only", value.key), cure);
    }
    let queues = queues.and_then(|value| value.integer(reader, QUEUES)).map(|queues| queues as u8);
    let vhost = vhost.and_then(|value| value.boolean(reader)).unwrap_or_default();
    NicOptions { model, queues, vhost }
}
