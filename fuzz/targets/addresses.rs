//! See `skein_fuzz::addresses`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::addresses(bytes));
