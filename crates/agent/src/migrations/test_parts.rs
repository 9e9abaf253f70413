//! Holds what the tests of both ends' workers share.

use std::time::Duration;

use skein_fake_guest::VirtualClock;

use super::offer::Offer;
use crate::clock::Clock;

/// The clock of a worker, which shows the fake guest's time.
pub(super) struct TestClock(pub(super) VirtualClock);

impl Clock for TestClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn sleep(&self, time: Duration) {
        self.0.advance(time);
    }
}

/// Returns an offer with a downtime limit of 300 ms, and nothing else of note.
pub(super) fn offer() -> Offer {
    let text = "name = 'web'\nmemory = '1 GiB'\ncpus = 1\nmachine = 'pc-q35-10.0'\naccel = 'tcg'\n";
    let definition = skein_inventory::Definition::parse(text, "web.toml").unwrap();
    Offer::from_json(&serde_json::json!({
        "launch": {"definition": {"definition": definition, "odd_ram": false}},
        "channels": 2, "downtime_limit_ms": 300, "transport": "auto", "priority": 50,
    }))
    .unwrap()
}
