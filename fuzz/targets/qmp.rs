//! See `skein_fuzz::qmp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::qmp(bytes));
