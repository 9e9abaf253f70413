//! Pages of lists.

use serde::Deserialize;
use skein_api::cluster::Page;
use utoipa::IntoParams;

use super::problem::Problem;

/// How many items a page has unless something else is asked for.
const ITEMS: u32 = 100;
/// How many items a page has at most.
const ITEMS_MAX: u32 = 500;

/// Which page.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct After {
    /// The page begins after this name: `next` of the page before
    pub after: Option<String>,
    /// The most items, 100 if not given
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
}

/// Returns how many items a page has.
pub(crate) fn items(limit: Option<u32>) -> Result<usize, Problem> {
    match limit.unwrap_or(ITEMS) {
        limit @ 1..=ITEMS_MAX => Ok(limit as usize),
        limit => Err(Problem::bad_request(format!("a limit of {limit}"), format!("it may be 1 to {ITEMS_MAX}"))),
    }
}

/// Makes a page of one item more than a page has, if there are so many.
pub(crate) fn page<T>(mut found: Vec<T>, items: usize, name: impl Fn(&T) -> &str) -> Page<T> {
    let is_last = found.len() <= items;
    found.truncate(items);
    let next = found.last().filter(|_| !is_last).map(|last| name(last).to_owned());
    Page { items: found, next }
}
