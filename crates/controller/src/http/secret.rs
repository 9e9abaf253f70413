//! Secrets: random, and kept only as their SHA-256.

use std::fmt::Write;

use aws_lc_rs::{digest, rand};
use axum::http::StatusCode;

use super::problem::Problem;

/// Returns the SHA-256 of bytes, in hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// Returns random bytes in hexadecimal digits.
fn random_hex<const BYTES: usize>() -> Option<String> {
    let mut bytes = [0; BYTES];
    rand::fill(&mut bytes).ok()?;
    Some(hex(&bytes))
}

/// Returns the secret of a token: 256 random bits. `None`: the system has no random numbers.
pub fn token_secret() -> Option<String> {
    random_hex::<32>().map(|digits| format!("skein-token-{digits}"))
}

/// Returns an id, and a secret of 256 random bits. `None`: the system has no random numbers.
pub fn new_secrets() -> Option<(String, String)> {
    random_hex::<8>().zip(random_hex::<32>())
}

pub(crate) fn no_random() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the system has no random numbers", "ask again in some seconds")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
