//! What subscribers are sent: a bounded ring of what changed, and a bounded queue for each subscriber.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::Mutex;
use skein_api::cluster::{ChangedObject, Event, UnixMs};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// How many events are remembered for subscribers that come back. An event mostly has some hundred bytes.
const RING_MAX: usize = 4096;
/// How many bytes they have together at most.
const RING_BYTES_MAX: usize = 32 << 20;
/// How many events a subscriber may be behind.
const QUEUE_MAX: usize = 1024;

/// Names an event: the store's revision that made it, and its place among that revision's events. All controllers of a
/// cluster give an event the same name, so that a subscriber can go on at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId {
    /// The revision.
    pub revision: u64,
    /// The place.
    pub place: u32,
}

/// An event, ready to be sent.
#[derive(Clone, Debug)]
pub struct Published {
    /// The id.
    pub id: EventId,
    /// The kind: `host`, `vm`, `operation`, `gone`, `reset`.
    pub kind: &'static str,
    /// The [`Event`] as JSON.
    pub data: Arc<str>,
}

/// The events of a controller.
#[derive(Debug)]
pub struct Events {
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Published>,
    bytes: usize,
    /// What came after this event is all in the ring.
    floor: EventId,
    last: EventId,
    /// `None`: there are no more events.
    sender: Option<broadcast::Sender<Published>>,
}

/// What a subscriber gets.
#[derive(Debug)]
pub struct Subscription {
    replay: VecDeque<Published>,
    live: broadcast::Receiver<Published>,
    /// The last event that the subscriber was given.
    last: EventId,
}

/// A text that is no event's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no id of an event: send back the `id` of the last event that was read")]
pub struct NoEventId;

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.revision, self.place)
    }
}

impl FromStr for EventId {
    type Err = NoEventId;

    fn from_str(text: &str) -> Result<EventId, NoEventId> {
        let (revision, place) = text.split_once('.').ok_or(NoEventId)?;
        let (revision, place) = (revision.parse().ok(), place.parse().ok());
        revision.zip(place).map(|(revision, place)| EventId { revision, place }).ok_or(NoEventId)
    }
}

impl Default for Events {
    fn default() -> Events {
        let none = EventId { revision: 0, place: 0 };
        let sender = Some(broadcast::Sender::new(QUEUE_MAX));
        Events { ring: Mutex::new(Ring { events: VecDeque::new(), bytes: 0, floor: none, last: none, sender }) }
    }
}

impl Events {
    /// Tells all subscribers what has changed.
    pub fn publish(&self, revision: u64, at: UnixMs, changed: ChangedObject) {
        let kind = kind(&changed);
        let mut ring = self.ring.lock();
        let last = ring.last;
        let id = match revision > last.revision {
            true => EventId { revision, place: 1 },
            false => EventId { place: last.place.saturating_add(1), ..last },
        };
        let published = Published { id, kind, data: json(&Event { at, changed }) };
        ring.last = id;
        ring.events.push_back(published.clone());
        ring.bytes += published.data.len();
        while (ring.events.len() > RING_MAX || ring.bytes > RING_BYTES_MAX)
            && let Some(oldest) = ring.events.pop_front()
        {
            ring.bytes -= oldest.data.len();
            ring.floor = oldest.id;
        }
        ring.send(published);
    }

    /// Begins anew at a revision, as all was read again: what changed before is not known.
    pub fn restart(&self, revision: u64, at: UnixMs) {
        let mut ring = self.ring.lock();
        let begin = EventId { revision: revision.max(ring.last.revision), place: 0 };
        if begin > ring.last {
            ring.last = begin;
        }
        ring.floor = ring.last;
        ring.events.clear();
        ring.bytes = 0;
        ring.send(reset(ring.last, at));
    }

    /// Returns the last event: its revision is the newest that is known.
    pub fn last(&self) -> EventId {
        self.ring.lock().last
    }

    /// Ends all subscriptions.
    pub fn close(&self) {
        self.ring.lock().sender = None;
    }

    /// Subscribes to what changes from now on or, with the last event that was read, from there on. Where that is too
    /// long ago, the first event says so.
    pub fn subscribe(&self, after: Option<EventId>, at: UnixMs) -> Subscription {
        let ring = self.ring.lock();
        let replay = match after {
            Some(after) if after >= ring.floor && after <= ring.last => {
                ring.events.iter().filter(|event| event.id > after).cloned().collect()
            }
            // An id beyond the last is another store's.
            Some(_) => VecDeque::from([reset(ring.last, at)]),
            None => VecDeque::new(),
        };
        let live = ring.sender.as_ref().map_or_else(|| broadcast::Sender::new(1).subscribe(), |of| of.subscribe());
        Subscription { replay, live, last: ring.last }
    }
}

impl Ring {
    fn send(&self, published: Published) {
        if let Some(sender) = &self.sender {
            // Without a subscriber there is nobody to tell.
            let _ = sender.send(published);
        }
    }
}

impl Subscription {
    /// Waits for the next event. `None`: there are no more.
    pub async fn next(&mut self, at: impl Fn() -> UnixMs) -> Option<Published> {
        if let Some(event) = self.replay.pop_front() {
            return Some(event);
        }
        match self.live.recv().await {
            Ok(event) => {
                self.last = self.last.max(event.id);
                Some(event)
            }
            // The subscriber goes on with what is still there, and knows that it has to read everything anew.
            Err(RecvError::Lagged(_)) => Some(reset(self.last, at())),
            Err(RecvError::Closed) => None,
        }
    }
}

fn reset(id: EventId, at: UnixMs) -> Published {
    Published { id, kind: "reset", data: json(&Event { at, changed: ChangedObject::Reset }) }
}

/// Returns what has changed in a word, as subscribers get it.
pub(super) fn kind(changed: &ChangedObject) -> &'static str {
    match changed {
        ChangedObject::Host { .. } => "host",
        ChangedObject::Vm { .. } => "vm",
        ChangedObject::Operation { .. } => "operation",
        ChangedObject::Gone { .. } => "gone",
        ChangedObject::Reset => "reset",
    }
}

fn json(event: &Event) -> Arc<str> {
    // Plain data always serialises; an empty text would be passed over.
    serde_json::to_string(event).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(name: &str) -> ChangedObject {
        ChangedObject::Gone { kind: "vm".into(), name: name.into() }
    }

    fn id(revision: u64, place: u32) -> EventId {
        EventId { revision, place }
    }

    fn read(subscription: &mut Subscription) -> Vec<(EventId, &'static str)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut all = Vec::new();
        runtime.block_on(async {
            while let Ok(Some(event)) =
                tokio::time::timeout(std::time::Duration::ZERO, subscription.next(|| UnixMs(0))).await
            {
                all.push((event.id, event.kind));
            }
        });
        all
    }

    #[test]
    fn a_subscriber_goes_on_where_it_was() {
        let events = Events::default();
        events.restart(5, UnixMs(0));
        for (revision, name) in [(6, "a"), (6, "b"), (7, "c")] {
            events.publish(revision, UnixMs(0), gone(name));
        }
        let mut late = events.subscribe(Some(id(6, 1)), UnixMs(0));
        assert_eq!(read(&mut late), [(id(6, 2), "gone"), (id(7, 1), "gone")]);
        events.publish(9, UnixMs(0), gone("d"));
        assert_eq!(read(&mut late), [(id(9, 1), "gone")]);
        assert_eq!(read(&mut events.subscribe(None, UnixMs(0))), []);
        assert_eq!(read(&mut events.subscribe(Some(id(5, 0)), UnixMs(0))).len(), 4);
    }

    #[test]
    fn a_subscriber_that_was_away_too_long_is_told_so() {
        let events = Events::default();
        events.restart(5, UnixMs(0));
        events.publish(6, UnixMs(0), gone("a"));
        for unknown in [id(4, 1), id(60, 1)] {
            assert_eq!(read(&mut events.subscribe(Some(unknown), UnixMs(0))), [(id(6, 1), "reset")]);
        }
        let mut there = events.subscribe(None, UnixMs(0));
        events.restart(8, UnixMs(0));
        assert_eq!(read(&mut there), [(id(8, 0), "reset")]);
        assert_eq!(read(&mut events.subscribe(Some(id(6, 1)), UnixMs(0))), [(id(8, 0), "reset")]);
    }

    #[test]
    fn a_slow_subscriber_holds_up_nobody_and_is_told() {
        let events = Events::default();
        events.restart(1, UnixMs(0));
        let mut slow = events.subscribe(None, UnixMs(0));
        for revision in 2..QUEUE_MAX as u64 + 100 {
            events.publish(revision, UnixMs(0), gone("a"));
        }
        let got = read(&mut slow);
        assert_eq!(got[0].1, "reset");
        assert_eq!(got.len(), QUEUE_MAX + 1);
        assert!(events.ring.lock().events.len() <= RING_MAX);
    }

    #[test]
    fn large_events_are_forgotten_earlier() {
        let events = Events::default();
        events.restart(1, UnixMs(0));
        for revision in 2..100 {
            events.publish(revision, UnixMs(0), gone(&"x".repeat(1 << 20)));
        }
        let ring = events.ring.lock();
        assert!(ring.bytes <= RING_BYTES_MAX && ring.events.len() == 31, "{}", ring.events.len());
        assert_eq!(ring.bytes, ring.events.iter().map(|event| event.data.len()).sum::<usize>());
    }

    #[test]
    fn ids_are_read_back() {
        assert_eq!("12.3".parse(), Ok(id(12, 3)));
        for text in ["", "12", "12.", ".1", "a.b", "-1.0", "1.2.3"] {
            assert_eq!(text.parse::<EventId>(), Err(NoEventId), "{text}");
        }
    }
}
