//! Asks the host of a session how many queues its NICs have, where that decides how many connections a path has.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use serde_json::Value;
use skein_dataplane::Dialer;
use skein_network::queues;
use tracing::debug;

use super::control_message::{Answer, Question};
use super::control_stream::{Asking, ControlStream};

/// Bounds the wait for an answer: the other host's kernel answers within milliseconds.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The question of a session. It is asked once: an agent of an older release does not know it.
#[derive(Default)]
pub(super) struct QueueQuestion(Option<Asked>);

struct Asked {
    /// The stream on which the question was asked, by its number.
    stream: u64,
    number: u64,
    answer: Receiver<Result<Value, String>>,
    at: Instant,
}

impl QueueQuestion {
    /// Asks if the dialer needs to know, and tells the dialer what was answered.
    pub(super) fn look(&mut self, dialer: &Dialer, stream: &ControlStream) {
        let Some(asked) = &self.0 else {
            if dialer.needs_remote_queues()
                && stream.greeting().is_some()
                && let Asking::Now(number, answer) = stream.ask(&Question::Network)
            {
                self.0 = Some(Asked { stream: stream.number(), number, answer, at: Instant::now() });
            }
            return;
        };
        let told = match asked.answer.try_recv() {
            Ok(Ok(answer)) => by_nic(answer),
            Ok(Err(reason)) => {
                debug!(peer = stream.peer(), "does not tell its NICs' queues: {reason}");
                BTreeMap::new()
            }
            Err(TryRecvError::Empty) if asked.at.elapsed() < ANSWER_TIME => return,
            Err(TryRecvError::Empty) => {
                if stream.number() == asked.stream {
                    stream.forget(asked.number);
                }
                BTreeMap::new()
            }
            // The stream broke off: the next one is asked.
            Err(TryRecvError::Disconnected) => return self.0 = None,
        };
        dialer.set_remote_queues(told);
        self.0 = None;
    }
}

/// Returns the queues of each NIC that an answer tells. What cannot be read tells none.
fn by_nic(answer: Value) -> BTreeMap<String, u32> {
    let Ok(Answer::Network(interfaces)) = serde_json::from_value(answer) else { return BTreeMap::new() };
    let of = |name: &String| queues(&interfaces, name);
    let names = interfaces.iter().map(|interface| interface.nic.name.clone());
    names.filter_map(|name| of(&name).map(|queues| (name, queues))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_tells_the_queues_of_what_carries_each_nic() {
        let recording = include_str!("../../../network/tests/recordings/bond-vlan-bridge.json");
        let recording: skein_network::Recording = serde_json::from_str(recording).unwrap();
        let answer = Answer::Network(skein_network::read(&recording).unwrap());
        let told = by_nic(serde_json::to_value(answer).unwrap());
        assert_eq!((told["vmbr7"], told["eth0"]), (2, 2), "{told:?}");
        for odd in [json!({"leader": {"acknowledged": true}}), json!({"network": [{"name": "eth0"}]}), json!(7)] {
            assert!(by_nic(odd.clone()).is_empty(), "{odd}");
        }
    }
}
