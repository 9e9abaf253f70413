//! Is a virtual clock: time passes when a thread waits.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

/// Something that lives in virtual time.
pub(crate) trait Timed: Send + Sync {
    /// Does everything that happens until `now`.
    fn live(&self, now: Duration);
}

/// A virtual clock: time passes when a thread waits. Clones are the same clock.
#[derive(Clone, Default)]
pub struct VirtualClock(Arc<State>);

#[derive(Default)]
struct State {
    now: Mutex<Duration>,
    timed: Mutex<Vec<Weak<dyn Timed>>>,
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VirtualClock").field(&self.now()).finish()
    }
}

impl VirtualClock {
    /// Returns a clock at time 0.
    pub fn new() -> VirtualClock {
        VirtualClock::default()
    }

    /// Returns the time since the clock began.
    pub fn now(&self) -> Duration {
        *self.0.now.lock()
    }

    /// Lets time pass: everything that lives by this clock lives until then. Nothing that lives by the clock may call
    /// this.
    pub fn advance(&self, time: Duration) {
        let now = {
            let mut now = self.0.now.lock();
            *now += time;
            *now
        };
        let timed: Vec<_> = self.0.timed.lock().iter().filter_map(Weak::upgrade).collect();
        timed.iter().for_each(|timed| timed.live(now));
    }

    /// Makes something live by this clock, as long as it exists.
    pub(crate) fn add(&self, timed: Weak<dyn Timed>) {
        self.0.timed.lock().push(timed);
    }
}
