//! See `skein_fuzz::pem`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::pem(bytes));
