//! The YAML parser, with the limits of a cluster file.

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, NonFiniteFloatPolicy, Options};

/// The most nodes of a file. This is more than any cluster has that is placed within a minute: 200,000 guests with 50
/// values each.
const NODES_MAX: usize = 20_000_000;

/// Parses a text as a value of a type.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_saphyr::from_str_with_options(text, options())
}

/// Parses a text as anything. Invalid numbers are let through, since whoever reads them reports them.
pub(super) fn parse_as_any<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    let mut options = options();
    options.non_finite_float_policy = NonFiniteFloatPolicy::AsString;
    serde_saphyr::from_str_with_options(text, options)
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: NODES_MAX,
            max_events: 2 * NODES_MAX,
            max_total_scalar_bytes: 1 << 30,
        },
        with_snippet: false,
    }
}
