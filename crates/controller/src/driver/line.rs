//! A line of JSON for an agent.

use std::sync::Arc;

use skein_api::ToAgent;

/// A line of JSON, with its end.
pub(crate) type Line = Arc<[u8]>;

/// Returns a line's bytes.
pub(crate) fn bytes(line: &ToAgent) -> Line {
    // Plain data always serialises; an agent would hang up on an empty line.
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    bytes.into()
}
