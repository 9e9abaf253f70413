//! Is both rings of a connection with the endpoint: what is done with what completes.

use std::collections::VecDeque;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use skein_fabric::{Begun, Completion, Endpoint, FabricError, RemoteMemory, SharedEndpoint, Slice, Slot};

use super::layout::{SLOT_BYTES, SLOTS};
use super::messages::{MESSAGE_BYTES_MAX, Topic, decode, encode};
use super::receiving::Receiving;
use super::sending::{Breach, Sending};
use super::way::{Farewell, Way};
use crate::link::LinkEnd;

/// How long an end waits for what the other end wrote before its connection over TCP ended.
const LAST_WORDS_TIME: Duration = Duration::from_secs(10);
/// How long a rail that fails waits for the other end's word: a provider may notice first that the other end is gone.
const WORD_TIME: Duration = Duration::from_millis(250);
/// How long an end that is gone keeps its endpoint for the other end, which may still take completions. In tests a busy
/// machine may keep the other end's thread waiting.
const LINGER_TIME: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 2 });
/// How many slots are given back at once while there is more to read.
const GIVE_BACK_SLOTS: usize = SLOTS as usize / 4;
/// How long the rail's thread waits before it tries again what the endpoint did not take.
const RETRY_WAIT: Duration = Duration::from_millis(1);
/// Bounds a wait of the rail's thread, should a provider not tell of something.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// This end closed it.
    ClosedHere,
    /// This end gave it up.
    GivenUp,
    /// The other end is gone, since this time.
    Peer(Instant),
    /// The rail failed, or the other end broke the protocol.
    Failed(String),
}

/// What an operation was for. Tokens tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// A slot of the other end is written.
    Write(u16),
    /// A message of the other end is waited for.
    Receive(u16),
    /// A message is sent.
    Notice(u16),
}

impl Purpose {
    fn token(self) -> u64 {
        match self {
            Purpose::Write(at) => u64::from(at),
            Purpose::Receive(at) => 1 << 16 | u64::from(at),
            Purpose::Notice(at) => 2 << 16 | u64::from(at),
        }
    }

    fn of(token: u64) -> Option<Purpose> {
        let at = token as u16;
        match token >> 16 {
            0 => Some(Purpose::Write(at)),
            1 => Some(Purpose::Receive(at)),
            2 => Some(Purpose::Notice(at)),
            _ => None,
        }
    }
}

/// What both halves share, and the rail's thread.
pub(super) struct Ring {
    endpoint: SharedEndpoint,
    /// Where the other end's first slot is.
    there: RemoteMemory,
    state: Mutex<State>,
    /// Is told when a slot has become free, and at the end.
    room: Condvar,
    /// Is told when the other end has written a slot, and at the end.
    content: Condvar,
}

struct State {
    sending: Sending,
    receiving: Receiving,
    /// Where messages of the other end come.
    messages: Vec<Slot>,
    notices: Vec<Slot>,
    free_notices: Vec<u16>,
    /// Receives that could not be begun yet.
    to_receive: Vec<u16>,
    /// Messages that could not be sent yet: where they are, and how long.
    to_send: VecDeque<(u16, usize)>,
    /// How many slots the other end has written in all. It said so, and writes none any more.
    total: Option<u64>,
    over: Option<Over>,
    /// Whether the other end takes no completions any more: it said its last word, or its process has ended.
    is_peer_gone: bool,
    /// Why the rail fails, and since when.
    failing: Option<(String, Instant)>,
    /// What this end has to say last, and since when.
    farewell: Option<(Farewell, Instant)>,
    /// What it has said of that.
    said: Option<Farewell>,
    /// Whether nobody holds the connection any more.
    is_let_go: bool,
    /// What completed before the rail's thread began.
    early: Vec<Completion>,
}

impl Ring {
    /// The size of the memory of a message.
    pub(super) const MESSAGE_SLOT_BYTES: usize = MESSAGE_BYTES_MAX.next_multiple_of(64);
    /// How many messages of the other end may come at once: one for each slot that it writes, and one for each that it
    /// gives back. The notice of a write takes one, too.
    pub(super) const MESSAGES: usize = 3 * SLOTS as usize;
    /// How many messages may be on their way to the other end at once.
    pub(super) const NOTICES: usize = 16;

    /// Makes the ring of an endpoint that is connected, and that has begun [`Self::receive_all`]. `early` is what has
    /// completed already.
    pub(super) fn new(
        endpoint: SharedEndpoint,
        messages: Vec<Slot>,
        notices: Vec<Slot>,
        there: RemoteMemory,
        early: Vec<Completion>,
    ) -> Ring {
        let tells = !endpoint.abilities().has_immediates();
        let state = State {
            sending: Sending::new(SLOTS, tells),
            receiving: Receiving::new(SLOTS),
            free_notices: (0..notices.len() as u16).collect(),
            messages,
            notices,
            to_receive: Vec::new(),
            to_send: VecDeque::new(),
            total: None,
            over: None,
            is_peer_gone: false,
            failing: None,
            farewell: None,
            said: None,
            is_let_go: false,
            early,
        };
        let (room, content) = (Condvar::new(), Condvar::new());
        Ring { endpoint, there, state: Mutex::new(state), room, content }
    }

    /// Begins to receive into each of `messages`.
    pub(super) fn receive_all(endpoint: &dyn Endpoint, messages: &[Slot]) -> Result<(), FabricError> {
        for (at, slot) in messages.iter().enumerate() {
            let token = Purpose::Receive(at as u16).token();
            if endpoint.receive(&slot.first(Ring::MESSAGE_SLOT_BYTES), token)? == Begun::Busy {
                return Err(FabricError::Misbehaves(format!("it takes no more than {at} receives")));
            }
        }
        Ok(())
    }

    /// Begins once more to receive where a message came, of which `token` tells.
    pub(super) fn receive_again(endpoint: &dyn Endpoint, messages: &[Slot], token: u64) -> Result<(), FabricError> {
        let slot = match Purpose::of(token) {
            Some(Purpose::Receive(at)) => messages.get(usize::from(at)),
            _ => None,
        };
        let slot = slot.ok_or_else(|| FabricError::Misbehaves("a message that nobody waited for".into()))?;
        match endpoint.receive(&slot.first(Ring::MESSAGE_SLOT_BYTES), token)? {
            Begun::Yes => Ok(()),
            Begun::Busy => Err(FabricError::Misbehaves("it takes no receive in place of another".into())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Ends the connection, if it was not over, and wakes both halves.
    pub(super) fn end(&self, over: Over) {
        let mut state = self.lock();
        // Whatever else has ended it, an end that is given up is given up, and one that is closed here is closed.
        let is_own = matches!(over, Over::GivenUp | Over::ClosedHere);
        if state.over.is_none() || (is_own && state.over != Some(Over::GivenUp)) {
            state.over = Some(over);
        }
        drop(state);
        self.room.notify_all();
        self.content.notify_all();
    }

    /// Takes in that the other end is gone: how this end then finds the connection.
    pub(super) fn end_by_peer(&self, over: Over) {
        self.lock().is_peer_gone = true;
        self.end(over);
    }

    /// Takes in that the other end has written so many slots in all, and writes no more.
    pub(super) fn set_total(&self, total: u64) {
        self.lock().total = Some(total);
        self.content.notify_all();
    }

    /// Takes what completes, until nobody holds the connection any more. This is the rail's own thread: whether a
    /// half's thread is busy or not, the other end gets on.
    pub(super) fn run(&self, way: &Way) {
        let mut completions = std::mem::take(&mut self.lock().early);
        loop {
            let polled = self.endpoint.poll(&mut completions);
            let is_idle = completions.is_empty();
            let mut state = self.lock();
            if let Err(error) = polled {
                state.fail(&error.to_string());
            }
            for completion in completions.drain(..) {
                if let Err(why) = state.take(&*self.endpoint, completion) {
                    state.fail(&why);
                }
            }
            if let Err(error) = state.catch_up(&*self.endpoint) {
                state.fail(&error.to_string());
            }
            let failed = state.failing.as_ref().filter(|(_, since)| since.elapsed() >= WORD_TIME);
            let failed = failed.map(|(why, _)| Over::Failed(why.clone()));
            let patience = if state.is_behind() || state.is_parting() { RETRY_WAIT } else { IDLE_WAIT };
            let (farewell, total, is_done) = (state.due_farewell(), state.sending.numbered(), state.is_done());
            let is_failing = state.failing.is_some();
            drop(state);
            if farewell == Some(Farewell::Gone) {
                self.endpoint.rest();
            }
            match farewell {
                // The other end need not wait for what was under way.
                Some(_) if is_failing => way.abort(),
                Some(farewell) => way.say(farewell, total),
                None => {}
            }
            if is_done {
                if self.linger() {
                    way.close();
                }
                return;
            }
            match failed {
                Some(failed) => self.end(failed),
                None => {
                    self.room.notify_all();
                    self.content.notify_all();
                }
            }
            if is_failing {
                // The wait of an endpoint whose process is gone returns at once.
                thread::sleep(RETRY_WAIT);
            } else if is_idle {
                self.endpoint.wait(patience);
            }
        }
    }

    /// Keeps the endpoint for the other end, until that is gone, too. Returns whether the connection ends in order.
    fn linger(&self) -> bool {
        let deadline = Instant::now() + LINGER_TIME;
        let mut state = self.lock();
        while !state.is_peer_gone && state.over != Some(Over::GivenUp) && Instant::now() < deadline {
            self.content.wait_until(&mut state, deadline);
        }
        state.over != Some(Over::GivenUp)
    }

    /// Says a last word to the other end, once what was sent is there.
    pub(super) fn part(&self, farewell: Farewell) {
        let mut state = self.lock();
        let is_news = state.farewell.is_none_or(|(before, _)| before < farewell);
        if is_news && state.over != Some(Over::GivenUp) {
            state.farewell = Some((farewell, Instant::now()));
        }
        drop(state);
        self.endpoint.wake();
    }

    /// Notes that nobody holds the connection any more. What was sent still arrives, as with a socket.
    pub(super) fn let_go(&self) {
        self.part(Farewell::Gone);
        self.lock().is_let_go = true;
        self.endpoint.wake();
    }

    /// Returns a free slot with the number of what is put into it. `None`: there is none now.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn free_slot(&self) -> Result<Option<(u16, u64)>, LinkEnd> {
        let mut state = self.lock();
        state.writer_end()?;
        Ok(state.sending.take())
    }

    /// Waits for a free slot.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn wait_for_room(&self) -> Result<(), LinkEnd> {
        let mut state = self.lock();
        while !state.sending.has_free() {
            state.writer_end()?;
            self.room.wait(&mut state);
        }
        Ok(())
    }

    /// Begins to write what `from` holds into a slot of the other end.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn write(&self, slot: u16, from: &Slice) -> Result<Begun, LinkEnd> {
        self.lock().writer_end()?;
        let address = self.there.address + u64::from(slot) * SLOT_BYTES as u64;
        let immediate = self.endpoint.abilities().has_immediates().then_some(slot.into());
        let to = RemoteMemory { address, key: self.there.key };
        let begun = self.endpoint.write(from, to, immediate, Purpose::Write(slot).token());
        Ok(begun.unwrap_or_else(|error| {
            self.lock().fail(&error.to_string());
            self.endpoint.wake();
            Begun::Busy
        }))
    }

    /// Waits for a slot that the other end has written.
    ///
    /// # Errors
    /// The end of the connection. What has arrived is read before.
    pub(super) fn arrived(&self) -> Result<u16, LinkEnd> {
        let mut state = self.lock();
        loop {
            if let Some(slot) = state.receiving.take() {
                return Ok(slot);
            }
            // The other end may be waiting for these.
            self.give_back(&mut state, 1);
            match state.reader_patience()? {
                Some(patience) => drop(self.content.wait_for(&mut state, patience)),
                None => self.content.wait(&mut state),
            }
        }
    }

    /// Tells the other end of slots that it gets back, if there are as many.
    fn give_back(&self, state: &mut State, at_least: usize) {
        if state.receiving.to_give_back() < at_least {
            return;
        }
        if let Err(error) = state.send(&*self.endpoint, Topic::GivenBack) {
            state.fail(&error.to_string());
        }
        // The rail's thread tries again what could not be sent.
        if state.is_behind() {
            self.endpoint.wake();
        }
    }

    /// Takes in the number of what was in a slot.
    ///
    /// # Errors
    /// The number has come before.
    pub(super) fn number(&self, number: u64) -> Result<(), LinkEnd> {
        self.lock().receiving.number(number).map_err(|Breach| failed("a content that has come before"))
    }

    /// Gives a slot back that is read.
    pub(super) fn read(&self, slot: u16) {
        let mut state = self.lock();
        state.receiving.read(slot);
        self.give_back(&mut state, GIVE_BACK_SLOTS);
    }
}

impl State {
    /// Takes a completion.
    ///
    /// # Errors
    /// Why the connection is over.
    fn take(&mut self, endpoint: &dyn Endpoint, completion: Completion) -> Result<(), String> {
        let breach = |Breach| "the other end wrote or gave back what it may not".to_owned();
        match completion {
            Completion::Failed { why, .. } => return Err(why.to_string()),
            Completion::Done { token } => match Purpose::of(token) {
                Some(Purpose::Write(slot)) => self.sending.written(slot).map_err(breach)?,
                Some(Purpose::Notice(at)) => self.free_notices.push(at),
                _ => return Err("the provider misbehaves: a receive that is done".into()),
            },
            Completion::Written { token, immediate } => {
                if let Some(Purpose::Receive(at)) = token.and_then(Purpose::of) {
                    self.receive(endpoint, at).map_err(|error| error.to_string())?;
                }
                self.receiving.written(immediate).map_err(breach)?;
            }
            Completion::Received { token, bytes } => {
                let Some(Purpose::Receive(at)) = Purpose::of(token) else {
                    return Err("the provider misbehaves: a message that nobody waited for".into());
                };
                let slot = self.messages.get(usize::from(at));
                let message = slot.and_then(|slot| slot.bytes().get(..bytes));
                let (topic, slots) = message.and_then(decode).ok_or("the other end's message is none")?;
                let slots: Vec<u16> = slots.collect();
                // Before the other end can send the next.
                self.receive(endpoint, at).map_err(|error| error.to_string())?;
                for slot in slots {
                    match topic {
                        Topic::GivenBack => self.sending.given_back(slot),
                        Topic::Written => self.receiving.written(slot.into()),
                    }
                    .map_err(breach)?;
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, endpoint: &dyn Endpoint, at: u16) -> Result<(), FabricError> {
        let into = self.messages[usize::from(at)].first(Ring::MESSAGE_SLOT_BYTES);
        if endpoint.receive(&into, Purpose::Receive(at).token())? == Begun::Busy {
            self.to_receive.push(at);
        }
        Ok(())
    }

    /// Begins what could not be begun before.
    fn catch_up(&mut self, endpoint: &dyn Endpoint) -> Result<(), FabricError> {
        for at in std::mem::take(&mut self.to_receive) {
            self.receive(endpoint, at)?;
        }
        while let Some((at, bytes)) = self.to_send.front().copied() {
            if self.try_send(endpoint, at, bytes)? == Begun::Busy {
                return Ok(());
            }
            self.to_send.pop_front();
        }
        self.send(endpoint, Topic::Written)?;
        match self.receiving.to_give_back() >= GIVE_BACK_SLOTS {
            true => self.send(endpoint, Topic::GivenBack),
            false => Ok(()),
        }
    }

    /// Returns the last word that is to be said now, once: when what was sent is in the other end's memory, or will not
    /// be.
    fn due_farewell(&mut self) -> Option<Farewell> {
        let (farewell, since) = self.farewell.filter(|_| self.is_parting())?;
        // What a rail that fails had under way does not get there.
        let is_cut =
            self.failing.is_some() || matches!(self.over, Some(Over::GivenUp | Over::Failed(_) | Over::Peer(_)));
        // Also the notices, without which the other end does not know of a write.
        let is_there = !self.sending.is_busy() && self.free_notices.len() == self.notices.len();
        if !is_cut && !is_there && since.elapsed() < LAST_WORDS_TIME {
            return None;
        }
        self.said = Some(farewell);
        Some(farewell)
    }

    /// Returns whether a last word is to be said.
    fn is_parting(&self) -> bool {
        self.farewell.is_some_and(|(farewell, _)| self.said < Some(farewell))
    }

    /// Returns whether nobody needs the endpoint any more.
    fn is_done(&self) -> bool {
        self.is_let_go && (self.said == Some(Farewell::Gone) || self.over == Some(Over::GivenUp))
    }

    /// Takes in that the rail fails.
    fn fail(&mut self, why: &str) {
        self.failing.get_or_insert_with(|| (why.to_owned(), Instant::now()));
    }

    /// Returns whether something could not be begun, or a failure waits for the other end's word.
    fn is_behind(&self) -> bool {
        let is_failing = self.failing.is_some() && self.over.is_none();
        !self.to_receive.is_empty() || !self.to_send.is_empty() || is_failing
    }

    /// Sends messages on a topic, as long as there are slots to tell of and memory for messages.
    fn send(&mut self, endpoint: &dyn Endpoint, topic: Topic) -> Result<(), FabricError> {
        while let Some(at) = self.free_notices.pop() {
            let slots = match topic {
                Topic::GivenBack => self.receiving.take_given_back(SLOTS.into()),
                Topic::Written => self.sending.take_untold(SLOTS.into()),
            };
            if slots.is_empty() {
                self.free_notices.push(at);
                return Ok(());
            }
            let bytes = encode(topic, &slots, self.notices[usize::from(at)].bytes_mut());
            if !self.to_send.is_empty() || self.try_send(endpoint, at, bytes)? == Begun::Busy {
                self.to_send.push_back((at, bytes));
            }
        }
        Ok(())
    }

    fn try_send(&mut self, endpoint: &dyn Endpoint, at: u16, bytes: usize) -> Result<Begun, FabricError> {
        endpoint.send(&self.notices[usize::from(at)].first(bytes), Purpose::Notice(at).token())
    }

    /// Returns the end as the writer finds it.
    fn writer_end(&self) -> Result<(), LinkEnd> {
        match &self.over {
            None => Ok(()),
            Some(Over::ClosedHere) => Err(LinkEnd::Closed),
            Some(Over::GivenUp) => Err(LinkEnd::GivenUp),
            Some(Over::Peer(_)) if self.total.is_some() => Err(LinkEnd::Closed),
            Some(Over::Peer(_)) => Err(LinkEnd::Reset),
            Some(Over::Failed(why)) => Err(failed(why)),
        }
    }

    /// Returns how long the reader waits for what comes; `None`: for as long as that takes.
    ///
    /// # Errors
    /// The end as the reader finds it, when nothing more comes.
    fn reader_patience(&self) -> Result<Option<Duration>, LinkEnd> {
        match (&self.over, self.total) {
            (None | Some(Over::Peer(_)), Some(total)) if self.receiving.has_all(total) => Err(LinkEnd::Closed),
            (Some(Over::Peer(at)), Some(_)) => {
                LAST_WORDS_TIME.checked_sub(at.elapsed()).map(Some).ok_or(LinkEnd::Reset)
            }
            (Some(Over::Peer(_)), None) => Err(LinkEnd::Reset),
            _ => self.writer_end().map(|()| None),
        }
    }
}

/// Returns the end of a connection that broke.
pub(super) fn failed(why: &str) -> LinkEnd {
    LinkEnd::Failed(io::Error::other(why.to_owned()))
}
