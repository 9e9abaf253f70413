//! How a command shows what it has.

/// What a caller wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Words.
    Text,
    /// A line of JSON for each step.
    Json,
}

impl Output {
    /// Returns what `--json` asks for.
    pub fn of(json: bool) -> Output {
        if json { Output::Json } else { Output::Text }
    }
}
