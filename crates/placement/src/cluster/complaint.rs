//! Something that is broken, in the user's words.

use serde::Serialize;

/// Something that is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    /// The same for the same trouble, whatever its extent.
    pub key: String,
    /// It must not be. Otherwise it only costs.
    pub hard: bool,
    /// Of two hard ones, or two soft ones, the larger is worse: [`Score::broken`](crate::score::Score::broken), or
    /// microseconds of traffic.
    pub gravity: i64,
    /// In the words of the file.
    pub what: String,
    /// Which rule, as the user called it; none where it is about what hosts have.
    pub rule: Option<String>,
    /// Who is concerned.
    pub guests: Vec<String>,
    /// And where.
    pub hosts: Vec<String>,
    /// When it was found first, in the unit of [`check`](super::check())'s `now`.
    pub since: u64,
}
