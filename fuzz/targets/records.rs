//! See `skein_fuzz::records`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::records(bytes));
