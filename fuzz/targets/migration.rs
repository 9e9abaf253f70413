//! See `skein_fuzz::migration`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::migration(bytes));
