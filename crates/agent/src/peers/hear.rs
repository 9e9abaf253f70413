//! Serves control streams in sessions, and takes in what is said there.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use serde_json::Value;
use skein_api::LineError;
use skein_dataplane::target::TargetPages;
use skein_dataplane::{IncomingStream, ResetCode, RunningSession, StreamContent};
use skein_handover::Message;
use skein_inventory::printable;
use tracing::{debug, info, warn};

use super::control_message::{ControlMessage, Question};
use super::control_stream::{ControlStream, ControlStreamError, Ends};
use super::errors::DialError;
use super::event::PeerEvent;
use super::shared::{LOOK_PERIOD, PEER_TEXT_BYTES_MAX, Shared};
use super::state::{PeerControlStream, State};
use crate::error_chain;
use crate::migrations::{Offer, OfferError};
use crate::stream_destination::{self, Refusal, StreamDestination};

/// Says after how long the log repeats that a host does not understand this host.
const LOG_AGAIN_PERIOD: Duration = Duration::from_secs(600);
/// Bounds the messages that wait to be passed on; beyond, the peers' control streams wait.
const MESSAGES_MAX: usize = 1024;

impl Shared {
    /// Serves the streams that a peer opens, until the session is over.
    pub(super) fn serve(self: &Arc<Self>, session: &Arc<RunningSession>, streams: Receiver<IncomingStream>) {
        self.know_session(session);
        let allow = &self.settings.allow;
        stream_destination::serve(session, streams, &|session, incoming| match incoming.destination.parse() {
            Ok(StreamDestination::Control) => self.welcome(session, incoming).map(|()| None),
            Ok(StreamDestination::Migration(id)) => self.incoming.take(id, session, incoming.stream).map(Some),
            Ok(StreamDestination::Probe(order)) => self.serve_probe(session, incoming, order).map(|()| None),
            Ok(StreamDestination::Socket(path)) => stream_destination::allowed(allow, &path, StreamContent::Bytes),
            Ok(StreamDestination::Pages(path)) => {
                let pages = StreamContent::Target(TargetPages::new(None, None));
                stream_destination::allowed(allow, &path, pages)
            }
            Ok(StreamDestination::Network(to)) => {
                stream_destination::allowed_address(&self.network.refreshed().latest, session.peer(), to)
            }
            Err(reason) => Err((ResetCode::NoDestination, reason)),
        });
    }

    /// Takes the control stream that a peer opened.
    fn welcome(self: &Arc<Self>, session: &Arc<RunningSession>, incoming: &IncomingStream) -> Result<(), Refusal> {
        if session.peer() == self.identity.host() {
            let reason = format!("this is {}, and so are you: an agent needs no session with itself", session.peer());
            return Err((ResetCode::NotAllowed, reason));
        }
        // Each session has one: the last before is broken.
        let before: Vec<Arc<ControlStream>> = {
            let state = self.lock();
            let streams = state.hosts.get(session.peer()).into_iter().flat_map(|host| &host.streams);
            let streams = streams.map(|known| known.stream.clone());
            streams.filter(|stream| Arc::ptr_eq(stream.session(), session)).collect()
        };
        before.iter().for_each(|stream| stream.break_off());
        let begun = self.begin(session);
        let (_, far) = begun.map_err(|error| (ResetCode::Busy, format!("no control stream on that host: {error}")))?;
        session.join_socket(incoming.stream, far, StreamContent::Bytes);
        Ok(())
    }

    /// Begins a control stream in a session. The socket is to be joined to the stream.
    pub(super) fn begin(
        self: &Arc<Self>,
        session: &Arc<RunningSession>,
    ) -> io::Result<(Arc<ControlStream>, UnixStream)> {
        let (hearing, ending) = (self.clone(), self.clone());
        let mut state = self.lock();
        state.streams += 1;
        let ends = Ends {
            session: session.clone(),
            us: self.identity.host().to_owned(),
            versions: self.settings.versions,
            number: state.streams,
        };
        let (stream, far) = ControlStream::start(
            ends,
            move |stream, message| hearing.handle_message(stream, message),
            move |stream, error| ending.over(stream, error),
        )?;
        let known = PeerControlStream { stream: stream.clone(), silent_since: None };
        state.hosts.entry(session.peer().to_owned()).or_default().streams.push(known);
        Ok((stream, far))
    }

    /// Handles a message of a peer.
    fn handle_message(self: &Arc<Self>, stream: &Arc<ControlStream>, message: ControlMessage) {
        let peer = stream.peer();
        match message {
            ControlMessage::Hello { .. } => self.welcome_peer(stream),
            ControlMessage::Handover(message) => self.queue(stream, self.handover_event(stream, message)),
            ControlMessage::NotUnderstood => {
                let us = self.identity.host();
                let words =
                    format!("the agent of {peer} does not understand {us}'s messages: are both of one release?");
                self.not_understood(stream, words);
            }
            ControlMessage::Note { id, text } => {
                self.queue(stream, PeerEvent::Note(peer.to_owned(), id, printable(text, PEER_TEXT_BYTES_MAX)));
            }
            ControlMessage::Ask { number, question } => match serde_json::from_value::<Question>(question) {
                Ok(question) => {
                    let (answer, peer) = (self.answer.clone(), peer.to_owned());
                    stream.answer(number, move || answer(&peer, question));
                }
                Err(error) => stream.tell(number, Err(self.unknown_question(&error))),
            },
            ControlMessage::Answer { number, answer } => {
                stream.complete_question(number, answer.map_err(|reason| printable(reason, PEER_TEXT_BYTES_MAX)))
            }
        }
    }

    /// Handles a peer's greeting.
    fn welcome_peer(&self, stream: &ControlStream) {
        let peer = stream.peer();
        let mut state = self.lock();
        if let Some(host) = state.hosts.get_mut(peer) {
            host.problem = None;
        }
        state.news.insert(peer.to_owned());
        state.settle(peer);
        drop(state);
        if let Some(greeting) = stream.greeting() {
            info!(peer, "in contact (skein {}, version {} of the protocol)", greeting.release, greeting.version);
        }
        self.changed.notify_all();
    }

    fn unknown_question(&self, error: &serde_json::Error) -> String {
        let (us, release) = (self.identity.host(), env!("CARGO_PKG_VERSION"));
        format!("skein {release} on {us} does not know what it is asked ({error}): upgrade skein on {us}")
    }

    /// Reads a peer's message about a migration.
    fn handover_event(&self, stream: &ControlStream, message: Message<Value>) -> PeerEvent {
        let peer = stream.peer();
        let (id, vm) = match &message {
            Message::Intent { id, vm, .. } => (*id, vm.clone()),
            Message::Report { id, .. } => (*id, String::new()),
        };
        match message.try_map_offer(|offer| Offer::from_json(&offer).map(Arc::new)) {
            Ok(message) => PeerEvent::Message(peer.to_owned(), fit_to_print(message)),
            Err(error) => {
                let reason = printable(self.unreadable_words(stream, &error), PEER_TEXT_BYTES_MAX);
                PeerEvent::UnreadableOffer { host: peer.to_owned(), id, vm, reason }
            }
        }
    }

    fn unreadable_words(&self, stream: &ControlStream, error: &OfferError) -> String {
        let (us, peer, own_release) = (self.identity.host(), stream.peer(), env!("CARGO_PKG_VERSION"));
        let release = stream.greeting().map_or("", |greeting| &greeting.release);
        let cure = match release == own_release {
            true => "run the same build of skein on both".to_owned(),
            false => format!("upgrade skein on {us}"),
        };
        format!(
            "{us} (skein {own_release}) cannot read what {peer} (skein {release}) offers: {}: {cure}",
            error_chain(error)
        )
    }

    /// Queues what a peer said for its reader. The peer's control stream waits while the queue is full.
    fn queue(&self, stream: &ControlStream, event: PeerEvent) {
        let mut state = self.lock();
        while state.messages.len() >= MESSAGES_MAX && !stream.is_over() && !self.is_stopping() {
            self.wait(&mut state, LOOK_PERIOD);
        }
        if !state.deaf && state.messages.len() < MESSAGES_MAX {
            state.messages.push_back(event);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Tells once, and not again and again, that the two agents cannot read each other's messages.
    fn not_understood(&self, stream: &ControlStream, words: String) {
        let peer = stream.peer().to_owned();
        let now = Instant::now();
        let mut state = self.lock();
        let told =
            state.not_understood.get(&peer).map(|(told, _)| *told).filter(|told| told.elapsed() < LOG_AGAIN_PERIOD);
        state.not_understood.insert(peer.clone(), (told.unwrap_or(now), now));
        drop(state);
        if told.is_none() {
            warn!(peer, "{words}");
        }
        self.queue(stream, PeerEvent::NotUnderstood(peer, words));
    }

    /// Handles the end of a control stream.
    fn over(&self, stream: &Arc<ControlStream>, error: Option<ControlStreamError>) {
        let peer = stream.peer();
        let is_malformed = matches!(&error, Some(ControlStreamError::Line(LineError::Malformed { .. })));
        let words = error.as_ref().map(|error| error_chain(error));
        let mut state = self.lock();
        self.forget(&mut state, stream, error);
        state.settle(peer);
        state.tidy(peer);
        drop(state);
        self.changed.notify_all();
        let Some(words) = words else { return };
        if is_malformed {
            let us = self.identity.host();
            let text = format!("the agent of {us} does not understand {peer}'s messages: are both of one release?");
            self.not_understood(stream, text);
            debug!(peer, "its session is closed: {words}");
        } else {
            warn!(peer, "its session is closed: {words}");
        }
        stream.session().close("the other agent does not keep to the protocol");
    }

    /// Forgets a control stream that is over, and keeps the reason why there is none.
    fn forget(&self, state: &mut State, stream: &ControlStream, error: Option<ControlStreamError>) {
        let Some(host) = state.hosts.get_mut(stream.peer()) else { return };
        let known = host.streams.iter().position(|known| known.stream.number() == stream.number());
        let was_known = known.map(|at| host.streams.remove(at)).is_some();
        let is_dialled = host.dialer.as_ref().is_some_and(|dialer| Arc::ptr_eq(dialer.live(), stream.session()));
        let problem = match error {
            Some(error) => DialError::Protocol(error),
            // The stream was in a session that this end dialled and that goes on.
            None if was_known && stream.greeting().is_none() && is_dialled && stream.session().ended().is_none() => {
                DialError::ControlStreamRefused
            }
            None => return,
        };
        if !self.is_stopping() {
            host.failures += 1;
            host.problem = Some(Arc::new(problem));
        }
    }
}

/// Returns the message with words that can be shown.
fn fit_to_print<O>(mut message: Message<O>) -> Message<O> {
    let fit = |text: &mut String| *text = printable(std::mem::take(text), PEER_TEXT_BYTES_MAX);
    match &mut message {
        Message::Intent { detail, .. } => fit(detail),
        Message::Report { detail, last_words, .. } => [detail, last_words].into_iter().for_each(fit),
    }
    message
}
