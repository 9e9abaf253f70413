//! See `skein_fuzz::qemu_multifd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::qemu_multifd(bytes));
