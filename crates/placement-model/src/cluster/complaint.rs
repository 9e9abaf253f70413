//! A complaint: something that is broken, in the user's words.

use serde::Serialize;

/// Something that is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    /// A key that is the same for the same trouble, whatever its extent.
    pub key: String,
    /// Whether it must not be. A soft complaint only costs.
    pub hard: bool,
    /// How bad the complaint is: [`Score::broken`](skein_placement::score::Score::broken) for a hard one, microseconds
    /// of traffic for a soft one. The larger of two hard or two soft ones is worse.
    pub gravity: i64,
    /// What is broken, in the words of the file.
    pub what: String,
    /// The rule, as the user called it. `None`: the complaint is about what hosts have.
    pub rule: Option<String>,
    /// The guests that are concerned.
    pub guests: Vec<String>,
    /// The hosts that are concerned.
    pub hosts: Vec<String>,
    /// When it was first found, in the unit of [`check`](super::check())'s `now`.
    pub since: u64,
}
