//! See `skein_fuzz::facts`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::facts(bytes));
