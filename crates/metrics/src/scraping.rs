//! What agents and controllers tell of being scraped.

use crate::family::families;
use crate::{Bound, Kind::*, Label};

const ANSWER: Label = Label { name: "answer", bound: Bound::OneOf(ANSWERS) };

/// The answers that scrapers got, and `none` for those that were cut.
pub const ANSWERS: &[&str] = &["200", "400", "404", "405", "431", "none"];

families! {
    /// The families of every program that is scraped.
    FAMILIES;
    SCRAPES = Counter, "skein_scrapes_total", Count, "Connections of scrapers, by what they were answered", [ANSWER];
    COLLECT_SECONDS = Gauge, "skein_scrape_collect_seconds", Seconds,
        "How long it took to compute the values before these", [];
    LEFT_OUT = Gauge, "skein_scrape_left_out_series", Count,
        "Series that are left out, as their metrics have too many", [];
}
