//! Checks control streams, and passes on what is new.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Instant;

use tracing::debug;

use super::control_stream::{ControlStream, HELLO_TIME};
use super::event::PeerEvent;
use super::shared::{LOOK_PERIOD, Shared};
use super::state::State;

impl Shared {
    /// Checks whether control streams have paths.
    pub(super) fn check_contact(self: &Arc<Self>) {
        while !self.is_stopping() {
            let streams: Vec<Arc<ControlStream>> = {
                let state = self.lock();
                state.hosts.values().flat_map(|host| host.streams.iter().map(|known| known.stream.clone())).collect()
            };
            let mut silent = BTreeSet::new();
            for stream in streams {
                if !stream.session().snapshot().paths.iter().any(|path| path.status.usable) {
                    silent.insert(stream.number());
                }
            }
            let now = Instant::now();
            let mut state = self.lock();
            let State { hosts, .. } = &mut *state;
            let mut late = Vec::new();
            for known in hosts.values_mut().flat_map(|host| &mut host.streams) {
                let since = known.silent_since.unwrap_or(now);
                known.silent_since = silent.contains(&known.stream.number()).then_some(since);
                if known.stream.greeting().is_none() && known.stream.since.elapsed() >= HELLO_TIME {
                    late.push(known.stream.clone());
                }
            }
            let names: Vec<String> = hosts.keys().cloned().collect();
            let unserved: Vec<String> = hosts
                .iter()
                .filter(|(_, host)| host.wanted() && !host.dialling)
                .map(|(name, _)| name.clone())
                .collect();
            names.iter().for_each(|name| state.settle(name));
            drop(state);
            self.changed.notify_all();
            unserved.iter().for_each(|name| self.want(name, |_| {}));
            for stream in late {
                debug!(peer = stream.peer(), "no greeting within {} s", HELLO_TIME.as_secs());
                stream.break_off();
            }
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Passes on what is new.
    pub(super) fn tell(&self, events: &SyncSender<PeerEvent>) {
        let mut state = self.lock();
        while !self.is_stopping() {
            let event = if let Some(host) = state.news.pop_first() {
                let contact = state.hosts.get(&host).is_some_and(|host| host.contact);
                PeerEvent::Contact(host, contact)
            } else if let Some(event) = state.messages.pop_front() {
                event
            } else {
                self.wait(&mut state, LOOK_PERIOD);
                continue;
            };
            drop(state);
            self.changed.notify_all();
            let sent = events.send(event);
            state = self.lock();
            if sent.is_err() {
                break;
            }
        }
        state.deaf = true;
        state.messages.clear();
    }
}
