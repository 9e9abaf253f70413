//! Bytes that nobody can guess.

use std::io::Read;

pub(crate) fn random<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    // The kernel's; there is no machine where this fails once it has booted.
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| Read::read_exact(&mut file, &mut bytes));
    read.expect("/dev/urandom can be read");
    bytes
}
