//! `[[disk]]`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::names::check_path;
use super::{Line, ROOT_KEYS, VALUE_BYTES_MAX, path, word};
use crate::reader::{Reader, Table};

/// Most disks.
pub const DISKS_MAX: usize = 64;

/// An image's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// As it is.
    Raw,
    /// QEMU's.
    Qcow2,
}

/// How QEMU uses the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Past it (O_DIRECT): two hosts see the same bytes.
    #[default]
    None,
    /// Through it, for file systems without O_DIRECT.
    Writeback,
}

const FORMATS: [(&str, DiskFormat); 2] = [("raw", DiskFormat::Raw), ("qcow2", DiskFormat::Qcow2)];
const CACHES: [(&str, Cache); 2] = [("none", Cache::None), ("writeback", Cache::Writeback)];

/// A disk on storage that source and target share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The image or the block device, absolute.
    pub path: PathBuf,
    /// What is in it.
    pub format: DiskFormat,
    /// Whether the guest may only read.
    pub readonly: bool,
    /// How it is cached.
    pub cache: Cache,
}

impl Disk {
    pub(super) fn write(&self, line: &mut Line) {
        line("\n[[disk]]\npath", path(&self.path));
        line("format", word(&FORMATS, self.format).into());
        line("readonly", self.readonly.into());
        line("cache", word(&CACHES, self.cache).into());
    }
}

pub(super) fn read(reader: &mut Reader, tables: Vec<Table>) -> Vec<Disk> {
    let (mut disks, mut seen) = (Vec::new(), BTreeSet::new());
    for mut table in tables {
        let value = table.require(reader, "path", "path = \"/srv/images/web1.qcow2\"");
        let path = value.as_ref().and_then(|value| value.parsed(reader, VALUE_BYTES_MAX, check_path));
        // As components, so that a doubled slash hides nothing.
        let again = path.as_ref().is_some_and(|path| !seen.insert(path.components().collect::<PathBuf>()));
        if let Some(value) = value.filter(|_| again) {
            value.fault(reader, "this disk is there already", "remove one: two disks on one file destroy it");
        }
        let format = table.require(reader, "format", "format = \"qcow2\" or format = \"raw\"");
        let format = format.and_then(|value| value.word(reader, &FORMATS));
        let readonly = table.get("readonly").and_then(|value| value.boolean(reader)).unwrap_or_default();
        let cache = table.get("cache").and_then(|value| value.word(reader, &CACHES)).unwrap_or_default();
        table.finish(reader, &ROOT_KEYS);
        if let (Some(path), Some(format)) = (path, format) {
            disks.push(Disk { path, format, readonly, cache });
        }
    }
    disks
}
