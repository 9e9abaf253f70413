//! See `skein_fuzz::qemu_main`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::qemu_main(bytes));
