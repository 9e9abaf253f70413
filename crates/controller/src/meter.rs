//! Counts what a controller does, for metrics: where changes are told and logged, where the store is written, and where
//! requests are answered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use skein_api::cluster::{Operation, OperationKind, OperationState};
use skein_metrics::{Histogram, Samples, controller};

/// What was counted since the controller was started.
pub(crate) struct Meter {
    events: Mutex<BTreeMap<&'static str, u64>>,
    ended: Mutex<Ended>,
    writes: Histogram,
    failures: AtomicU64,
    /// The answers by the first digit of their status.
    answers: [AtomicU64; 5],
    answer_times: Histogram,
}

/// The operations that ended.
#[derive(Default)]
struct Ended {
    counts: BTreeMap<(&'static str, &'static str), u64>,
    /// The ids of the last that did: what is over may change once more, and ends once.
    last: VecDeque<String>,
}

/// Bounds the ids that are remembered. Changes of what is over come within seconds.
const LAST_MAX: usize = 1024;

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            events: Mutex::default(),
            ended: Mutex::default(),
            writes: Histogram::of(&controller::STORE_WRITES),
            failures: AtomicU64::new(0),
            answers: Default::default(),
            answer_times: Histogram::of(&controller::REQUEST_SECONDS),
        }
    }
}

impl Meter {
    /// Counts a change that subscribers are told, by what has changed.
    pub(crate) fn event(&self, kind: &'static str) {
        *self.events.lock().entry(kind).or_default() += 1;
    }

    /// Counts an operation that is over. Returns whether that is new.
    pub(crate) fn ended(&self, operation: &Operation) -> bool {
        let mut ended = self.ended.lock();
        if ended.last.contains(&operation.id) {
            return false;
        }
        if ended.last.len() >= LAST_MAX {
            ended.last.pop_front();
        }
        ended.last.push_back(operation.id.clone());
        *ended.counts.entry((operation_word(&operation.kind), state_word(operation.state))).or_default() += 1;
        true
    }

    /// Counts a write of the store, and how long the store took.
    pub(crate) fn wrote(&self, took: Duration, is_written: bool) {
        if is_written {
            self.writes.observe(took.as_secs_f64());
        } else {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a request that is answered with an HTTP status, and how long that took.
    pub(crate) fn answered(&self, status: u16, took: Duration) {
        if let Some(answers) = self.answers.get(usize::from(status / 100).wrapping_sub(1)) {
            answers.fetch_add(1, Ordering::Relaxed);
        }
        self.answer_times.observe(took.as_secs_f64());
    }

    /// Tells what was counted.
    pub(crate) fn collect(&self, samples: &mut Samples) {
        [&controller::EVENTS, &controller::OPERATIONS_ENDED].into_iter().for_each(|family| samples.begin(family));
        for (kind, count) in &*self.events.lock() {
            samples.set(&controller::EVENTS, &[kind], *count);
        }
        for ((kind, state), count) in &self.ended.lock().counts {
            samples.set(&controller::OPERATIONS_ENDED, &[kind, state], *count);
        }
        samples.counts(&controller::STORE_WRITES, &[], &self.writes);
        samples.set(&controller::STORE_FAILURES, &[], self.failures.load(Ordering::Relaxed));
        for (class, answers) in ["1xx", "2xx", "3xx", "4xx", "5xx"].iter().zip(&self.answers) {
            samples.set(&controller::REQUESTS_ANSWERED, &[class], answers.load(Ordering::Relaxed));
        }
        samples.counts(&controller::REQUEST_SECONDS, &[], &self.answer_times);
    }
}

/// Returns what an operation does in a word: its `kind` in the API.
pub(crate) fn operation_word(kind: &OperationKind) -> &'static str {
    match kind {
        OperationKind::Migrate { .. } => "migrate",
        OperationKind::Drain { .. } => "drain",
        OperationKind::Optimize { .. } => "optimize",
        OperationKind::Failover { .. } => "failover",
        OperationKind::Start { .. } => "start",
        OperationKind::Stop { .. } => "stop",
        OperationKind::Delete { .. } => "delete",
        OperationKind::Autostart { .. } => "autostart",
        OperationKind::Fence { .. } => "fence",
        OperationKind::Sleep { .. } => "sleep",
        OperationKind::Wake { .. } => "wake",
        OperationKind::Update { .. } => "update",
        OperationKind::Resume { .. } => "resume",
    }
}

/// Returns how far an operation is in a word: its `state` in the API.
pub(crate) fn state_word(state: OperationState) -> &'static str {
    match state {
        OperationState::Planning => "planning",
        OperationState::Running => "running",
        OperationState::Cancelling => "cancelling",
        OperationState::Done => "done",
        OperationState::Failed => "failed",
        OperationState::Cancelled => "cancelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_api() {
        use OperationState::{Cancelled, Cancelling, Done, Failed, Planning, Running};
        for state in [Planning, Running, Cancelling, Done, Failed, Cancelled] {
            assert_eq!(serde_json::to_value(state).unwrap(), state_word(state));
        }
        let host = "hosta".to_owned();
        for kind in [
            OperationKind::Failover { host: host.clone() },
            OperationKind::Autostart { host: host.clone(), vms: vec![] },
            OperationKind::Wake { host: host.clone(), automatic: true },
            OperationKind::Resume { host, drain: "1".into() },
        ] {
            assert_eq!(serde_json::to_value(&kind).unwrap()["kind"], operation_word(&kind));
            assert!(controller::OPERATIONS.contains(&operation_word(&kind)));
        }
    }

    #[test]
    fn what_has_not_happened_yet_is_told_as_none() {
        let meter = Meter::default();
        meter.event("host");
        let mut samples = Samples::default();
        meter.collect(&mut samples);
        let text = samples.into_text();
        for line in [
            "skein_controller_events_total{kind=\"host\"} 1",
            "skein_controller_events_total{kind=\"vm\"} 0",
            "skein_cluster_operations_ended_total{operation=\"drain\",state=\"failed\"} 0",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} is not in {text}");
        }
        assert_eq!(text.matches("skein_cluster_operations_ended_total{").count(), controller::OPERATIONS.len() * 3);
    }

    #[test]
    fn every_class_of_answers_is_counted_and_odd_ones_harm_nobody() {
        let meter = Meter::default();
        for status in [200, 204, 404, 503, 0, 99, 600, 999] {
            meter.answered(status, Duration::from_millis(3));
        }
        let mut samples = Samples::default();
        meter.collect(&mut samples);
        let text = samples.into_text();
        for (class, count) in [("1xx", 0), ("2xx", 2), ("3xx", 0), ("4xx", 1), ("5xx", 1)] {
            let line = format!("\nskein_controller_requests_total{{status=\"{class}\"}} {count}\n");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }
}
