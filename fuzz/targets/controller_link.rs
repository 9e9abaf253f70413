//! See `skein_fuzz::controller_link`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::controller_link(bytes));
