//! See `skein_fuzz::pages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| skein_fuzz::pages(bytes));
