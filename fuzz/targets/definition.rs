//! See `skein_fuzz::definition`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::definition(bytes));
