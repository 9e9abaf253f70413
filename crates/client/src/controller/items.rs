//! Lists, page by page.

use std::collections::VecDeque;

use serde::de::DeserializeOwned;
use skein_api::cluster::Page;

use super::error::ControllerError;
use super::request::{Sender, encoded};

/// How many items are asked for at once: the most that a controller gives.
const PAGE_ITEMS: u32 = 500;

/// The items of a list. The next page is asked for when the earlier ones are used up.
#[derive(Debug)]
pub struct Items<'a, T> {
    sender: &'a Sender,
    /// With a query.
    path: String,
    /// The parameter that names where a page begins.
    from: &'static str,
    /// Where the next page begins. `None`: there is no further page.
    next: Option<String>,
    ready: VecDeque<T>,
}

impl<'a, T> Items<'a, T> {
    pub(super) fn new(sender: &'a Sender, path: &str, from: &'static str, page: Option<u32>) -> Items<'a, T> {
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sign}limit={}", page.unwrap_or(PAGE_ITEMS));
        Items { sender, path, from, next: Some(String::new()), ready: VecDeque::new() }
    }
}

impl<T: DeserializeOwned> Iterator for Items<'_, T> {
    type Item = Result<T, ControllerError>;

    fn next(&mut self) -> Option<Result<T, ControllerError>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(Ok(item));
            }
            let begin = self.next.take()?;
            let path = match begin.is_empty() {
                true => self.path.clone(),
                false => format!("{}&{}={}", self.path, self.from, encoded(&begin)),
            };
            match self.sender.read::<Page<T>>(&path) {
                Ok(page) => {
                    // A page that begins where it began would be asked for without end.
                    self.next = page.next.filter(|next| *next != begin && !next.is_empty());
                    self.ready = page.items.into();
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
