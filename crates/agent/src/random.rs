//! Draws bytes that nobody can guess.

use std::io::Read;

pub(crate) fn random<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    // The bytes are the kernel's. On no host does this fail once the host has booted.
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| Read::read_exact(&mut file, &mut bytes));
    read.expect("/dev/urandom can be read");
    bytes
}
