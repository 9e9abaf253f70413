//! Puts a command line together, option by option.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// An option of QEMU and its value.
pub(crate) type Argument = (&'static str, OsString);

/// The options and their values so far.
pub(super) struct Arguments(pub(super) Vec<OsString>);

impl Arguments {
    pub(super) fn option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.extend([name.into(), value.as_ref().into()]);
    }

    pub(super) fn flags<const N: usize>(&mut self, names: [&str; N]) {
        self.0.extend(names.map(OsString::from));
    }

    pub(super) fn chardev(&mut self, kind: &str, id: &str, path: &Path, options: &str) {
        let mut value = OsString::from(format!("{kind},id={id},path="));
        value.push(escape(path));
        value.push(options);
        self.option("-chardev", value);
    }
}

/// Doubles commas in a value, as QEMU's option parser wants.
pub(crate) fn escape(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut escaped = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        escaped.extend(std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }));
    }
    OsString::from_vec(escaped)
}
