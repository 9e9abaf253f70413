//! Subscribers of the controller's events, which note how old what they are told is.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use skein_api::cluster::ChangedObject;
use skein_client::ControllerClient;

use crate::latencies::Gathered;

/// A subscriber, which goes on until the controller is gone.
pub(crate) struct Subscriber {
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    marks: BTreeSet<u64>,
    took: Gathered,
}

impl Subscriber {
    pub(crate) fn begin(client: ControllerClient) -> Subscriber {
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let notes = heard.clone();
        thread::spawn(move || {
            let Ok(mut events) = client.events() else { return };
            // The stream ends with the controller.
            while let Ok(event) = events.next_event() {
                if let ChangedObject::Vm { vm } = event.changed
                    && let Some((number, us)) = read_mark(&vm.note)
                {
                    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |of| of.as_micros() as u64);
                    let mut heard = notes.lock();
                    // A VM that changes again says the same again.
                    if heard.marks.insert(number) {
                        heard.took.add(Duration::from_micros(now_us.saturating_sub(us)));
                    }
                }
            }
        });
        Subscriber { heard }
    }

    /// Takes what was heard so far: how old it was, and how many of these marks it lacks.
    pub(crate) fn take(&self, marks: Range<u64>) -> (Gathered, u64) {
        let mut heard = self.heard.lock();
        let missed = marks.filter(|number| !heard.marks.contains(number)).count() as u64;
        (std::mem::take(&mut heard.took), missed)
    }
}

/// Returns the number of a mark, and when it was made, in microseconds since 1970.
fn read_mark(note: &str) -> Option<(u64, u64)> {
    let (number, us) = note.strip_prefix("mark ")?.split_once(' ')?;
    number.parse().ok().zip(us.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read() {
        assert_eq!(read_mark("mark 12 1764000000000000"), Some((12, 1_764_000_000_000_000)));
        assert_eq!((read_mark("mark 12"), read_mark("it ended")), (None, None));
    }
}
