//! Errors in words.

use std::error::Error;

/// Returns an error with its causes, in one line.
pub fn error_chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(of) = cause {
        words += &format!(": {of}");
        cause = of.source();
    }
    words
}
