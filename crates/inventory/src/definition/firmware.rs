//! `[firmware]`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::values::{Line, ROOT_KEYS, is_q35, path, read_path, word};
use crate::toml_reader::{Reader, Table};

/// What runs before the guest's own software. Without this section the VM has the BIOS that QEMU brings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firmware {
    /// The kind of firmware.
    pub kind: FirmwareKind,
    /// The absolute path of its code. `None`: the host's firmware for `kind` and `secure_boot`, whose path is written
    /// here when the VM first starts.
    pub image: Option<PathBuf>,
    /// The file that a new variable store is a copy of. `None`: the file that belongs to the image.
    pub template: Option<PathBuf>,
    /// UEFI's variable store, on storage that source and target share. `None`: the agent keeps the store, and the store
    /// moves with the guest.
    pub vars: Option<PathBuf>,
    /// Whether only signed software boots.
    pub secure_boot: bool,
}

/// A kind of firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirmwareKind {
    /// UEFI in flash memory: code, and a store of variables.
    Uefi,
    /// An image of a BIOS, QEMU's `-bios`.
    Bios,
}

const KINDS: [(&str, FirmwareKind); 2] = [("uefi", FirmwareKind::Uefi), ("bios", FirmwareKind::Bios)];

impl Firmware {
    pub(super) fn write(&self, line: &mut Line) {
        line("\n[firmware]\ntype", word(&KINDS, self.kind).into());
        self.image.iter().for_each(|image| line("image", path(image)));
        self.template.iter().for_each(|template| line("template", path(template)));
        self.vars.iter().for_each(|vars| line("vars", path(vars)));
        if self.secure_boot {
            line("secure_boot", true.into());
        }
    }
}

/// Reads the section. `machine` is the VM's `-machine`.
pub(super) fn read(reader: &mut Reader, mut table: Table, machine: &str) -> Firmware {
    let kind = table.get("type").and_then(|value| value.word(reader, &KINDS)).unwrap_or(FirmwareKind::Uefi);
    let image = table.get("image");
    if kind == FirmwareKind::Bios && image.is_none() {
        let cure = "add image = \"/usr/share/seabios/bios-256k.bin\", or leave [firmware] out for the BIOS of QEMU";
        reader.report_at(table.span.clone(), "a [firmware] of type \"bios\" without an image", cure);
    }
    let (template, vars, secure_boot) = (table.get("template"), table.get("vars"), table.get("secure_boot"));
    for value in [&template, &vars, &secure_boot].into_iter().flatten().filter(|_| kind == FirmwareKind::Bios) {
        value.report_at(reader, format!("a BIOS has no {}", value.key), "remove this line, or write type = \"uefi\"");
    }
    let secure = secure_boot.as_ref().and_then(|value| value.boolean(reader)).unwrap_or_default();
    if let Some(value) = secure_boot.filter(|_| secure) {
        // The variables are protected by the CPU's system management mode, which QEMU has on q35 only.
        let without_smm = machine.split(',').any(|option| option == "smm=off");
        if !is_q35(machine) || without_smm {
            let cure = "write machine = \"q35\", without smm=off, or remove this line";
            value.report_at(reader, "secure boot needs a q35 machine with system management mode", cure);
        }
    }
    let firmware = Firmware {
        kind,
        image: read_path(reader, image),
        template: read_path(reader, template),
        vars: read_path(reader, vars),
        secure_boot: secure,
    };
    table.finish(reader, &ROOT_KEYS);
    firmware
}
