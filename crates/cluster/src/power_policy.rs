//! What is kept for the decisions on hosts that sleep, while this controller leads.

use skein_placement::policy::power::History;

/// What is kept for the decisions on hosts that sleep, while this controller leads.
#[derive(Debug, Default)]
pub(crate) struct PowerPolicy {
    /// When a decision was last asked for, by the clock that never jumps.
    pub(crate) asked_ms: Option<u64>,
    pub(crate) history: History,
}
