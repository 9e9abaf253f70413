//! What the sections of a VM's file have in common: how values are read and written.

use std::path::{Path, PathBuf};

use toml::Value as Toml;

use super::names::check_path;
use crate::toml_reader::{Reader, Value};

/// The longest extra argument, path, CPU model or kernel command line.
pub const VALUE_BYTES_MAX: usize = 4096;

/// Returns the word of a value. Each value is in its table.
pub(super) fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, other)| *other == value).map_or("", |(word, _)| word)
}

/// Writes a line, `KEY = VALUE`.
pub(super) type Line<'a> = dyn FnMut(&str, Toml) + 'a;

pub(super) fn path(path: &Path) -> Toml {
    path.to_string_lossy().into_owned().into()
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns whether a `-machine` is of the q35 family.
pub(super) fn is_q35(machine: &str) -> bool {
    let kind = machine.split(',').next().unwrap_or_default();
    kind == "q35" || kind.starts_with("pc-q35-")
}

/// The keys of the root table, which end up in a section when they are written below its header.
pub(super) const ROOT_KEYS: [&str; 11] =
    ["name", "memory", "cpus", "cpu", "machine", "accel", "hugepages", "shared_memory", "kernel", "initrd", "append"];

pub(super) fn read_path(reader: &mut Reader, value: Option<Value>) -> Option<PathBuf> {
    value?.parsed(reader, VALUE_BYTES_MAX, check_path)
}
