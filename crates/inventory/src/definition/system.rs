//! `[system]`, `[rtc]` and `[display]`.

use serde::{Deserialize, Serialize};

use super::values::{Line, ROOT_KEYS, word};
use crate::toml_reader::{Reader, Table};

/// The longest text of the system's table: longer texts are no serial numbers.
const TEXT_BYTES_MAX: usize = 128;

/// What the guest's firmware says of the machine: SMBIOS' table of type 1. `None`: what QEMU says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct System {
    /// The machine's UUID: `8-4-4-4-12` hexadecimal digits, lower case.
    pub uuid: Option<String>,
    /// The manufacturer of the machine.
    pub manufacturer: Option<String>,
    /// The name of the product.
    pub product: Option<String>,
    /// The version of the product.
    pub version: Option<String>,
    /// The machine's serial number.
    pub serial: Option<String>,
    /// The product's number.
    pub sku: Option<String>,
    /// The product's family.
    pub family: Option<String>,
}

impl System {
    /// Returns the texts, by the names that a VM file and QEMU's `-smbios type=1` have for them.
    pub fn texts(&self) -> [(&'static str, Option<&String>); 6] {
        [
            ("manufacturer", self.manufacturer.as_ref()),
            ("product", self.product.as_ref()),
            ("version", self.version.as_ref()),
            ("serial", self.serial.as_ref()),
            ("sku", self.sku.as_ref()),
            ("family", self.family.as_ref()),
        ]
    }

    pub(super) fn write(&self, line: &mut Line) {
        let uuid = [("uuid", self.uuid.as_ref())];
        let mut said = uuid.into_iter().chain(self.texts()).filter_map(|(key, text)| Some((key, text?)));
        if let Some((key, text)) = said.next() {
            line(&format!("\n[system]\n{key}"), text.as_str().into());
        }
        said.for_each(|(key, text)| line(key, text.as_str().into()));
    }
}

/// Checks a UUID as QEMU takes it (qemu_uuid_parse of its util/uuid.c).
fn check_uuid(text: &str) -> Result<String, String> {
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_hexdigit());
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    if lengths != [8, 4, 4, 4, 12] || !text.split('-').all(digits) {
        return Err("write one such as \"4dea22b3-1d52-d8f3-2516-782e98ab3fa0\" (`uuidgen` makes one)".into());
    }
    Ok(text.to_ascii_lowercase())
}

pub(super) fn read_system(reader: &mut Reader, mut table: Table) -> System {
    let uuid = table.get("uuid").and_then(|value| value.parsed(reader, 64, check_uuid));
    let mut text = |key| table.get(key).and_then(|value| value.string(reader, TEXT_BYTES_MAX)).map(str::to_owned);
    let system = System {
        uuid,
        manufacturer: text("manufacturer"),
        product: text("product"),
        version: text("version"),
        serial: text("serial"),
        sku: text("sku"),
        family: text("family"),
    };
    table.finish(reader, &ROOT_KEYS);
    system
}

/// The guest's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rtc {
    /// What the clock shows.
    pub base: RtcBase,
    /// Whether ticks that the guest missed are made up for: QEMU's `driftfix=slew`, for Windows.
    pub slew: bool,
}

/// What a real time clock shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RtcBase {
    /// Universal time, which all guests but Windows expect.
    #[default]
    Utc,
    /// The host's local time, which Windows expects.
    Localtime,
}

const BASES: [(&str, RtcBase); 2] = [("utc", RtcBase::Utc), ("localtime", RtcBase::Localtime)];

impl Rtc {
    pub(super) fn write(self, line: &mut Line) {
        if self != Rtc::default() {
            line("\n[rtc]\nbase", word(&BASES, self.base).into());
            line("slew", self.slew.into());
        }
    }
}

pub(super) fn read_rtc(reader: &mut Reader, mut table: Table) -> Rtc {
    let base = table.get("base").and_then(|value| value.word(reader, &BASES)).unwrap_or_default();
    let slew = table.get("slew").and_then(|value| value.boolean(reader)).unwrap_or_default();
    table.finish(reader, &ROOT_KEYS);
    Rtc { base, slew }
}

/// A graphical console, at a unix socket that speaks VNC, with a tablet as its pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Display {
    /// The graphics card.
    pub video: Video,
}

/// A graphics card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Video {
    /// QEMU's standard VGA, for which every guest has a driver.
    #[default]
    Vga,
    /// virtio-gpu with VGA.
    Virtio,
}

const VIDEOS: [(&str, Video); 2] = [("vga", Video::Vga), ("virtio", Video::Virtio)];

impl Display {
    pub(super) fn write(self, line: &mut Line) {
        line("\n[display]\nvideo", word(&VIDEOS, self.video).into());
    }
}

pub(super) fn read_display(reader: &mut Reader, mut table: Table) -> Display {
    let video = table.get("video").and_then(|value| value.word(reader, &VIDEOS)).unwrap_or_default();
    table.finish(reader, &ROOT_KEYS);
    Display { video }
}
