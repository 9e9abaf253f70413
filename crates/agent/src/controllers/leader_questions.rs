//! Asks the controller that leads whether a VM may be started here for a person, or moved from here: the cluster may
//! have started the VM elsewhere while this host was off, or was not heard, and has to know where a guest may go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_api::{MigrationId, Refusal, ToController};
use skein_inventory::ControllersFile;
use tracing::warn;

use crate::waker::Waker;
use crate::watched_file::WatchedFile;

/// The most controllers of which is told why there is no connection.
const LOSSES_TOLD_MAX: usize = 3;

/// Says how long is waited for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuestionTimes {
    /// For the first answer. Another controller leads within less.
    pub(crate) answer: Duration,
    /// For another answer than one that may pass.
    pub(crate) again: Duration,
    /// Before a question is sent once more.
    pub(crate) resend: Duration,
}

impl Default for QuestionTimes {
    fn default() -> QuestionTimes {
        let (answer, again, resend) = (Duration::from_secs(15), Duration::from_secs(3), Duration::from_secs(1));
        QuestionTimes { answer, again, resend }
    }
}

/// What a person wants done with a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ByHand {
    /// A start here. `is_here`: this host has the VM, and keeps it until the caller's turn is over.
    Start { vm: String, is_here: bool },
    /// A migration from here, which will have this id. Without an id it is only asked whether it may begin.
    Move { vm: String, to: String, migration: Option<MigrationId> },
}

impl ByHand {
    /// Returns whether nothing is to be done yet.
    fn only_asks(&self) -> bool {
        matches!(self, ByHand::Move { migration: None, .. })
    }

    fn question(&self, ask: u64) -> ToController {
        match self.clone() {
            ByHand::Start { vm, is_here } => ToController::AskStart { ask, vm, is_here },
            ByHand::Move { vm, to, migration } => ToController::AskMove { ask, vm, to, migration },
        }
    }

    /// Says what nobody answers, and what a person has to make sure of who wants it all the same.
    fn unanswered(&self) -> (String, String) {
        match self {
            ByHand::Start { vm, .. } => (format!("whether '{vm}' runs elsewhere"), "it runs nowhere else".to_owned()),
            ByHand::Move { vm, to, .. } => (
                format!("whether '{vm}' may be moved to '{to}': should this host die, '{vm}' could be started twice"),
                format!("neither this host nor '{to}' is switched off or said to be off before controllers are back"),
            ),
        }
    }
}

/// The reason why what a person wants may not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotAllowed {
    /// A controller says so.
    Refused(Refusal),
    /// No controller has answered.
    Unanswered,
    /// No controller can be asked, and one says why it does not take this host.
    NotTaken(Refusal),
}

/// What was answered.
#[derive(Clone, Debug)]
pub(super) enum LeaderAnswer {
    May,
    /// Whether the reason may pass within seconds, and the reason.
    MayNot(bool, Refusal),
}

/// How the connection to one controller stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    /// The controller is dialled, and nothing is known yet.
    Dialled,
    Connected,
    /// There is no connection, and why.
    Lost(String),
    /// The controller does not take this host, and says why.
    Refuses(Refusal),
}

/// The questions that wait for an answer. All connections to controllers share them.
pub(crate) struct LeaderQuestions {
    /// Whether there are controllers.
    file: WatchedFile<ControllersFile>,
    times: QuestionTimes,
    state: Mutex<State>,
    /// Notified when a question is answered.
    answered: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    open: BTreeMap<u64, Question>,
    wakers: Vec<Weak<Waker>>,
    /// How the connections stand that are kept.
    contacts: Vec<Weak<Mutex<Contact>>>,
    /// The VMs that are being started for a person, moved, or forgotten.
    turns: BTreeSet<String>,
    /// The migrations that may begin, or have begun and were not seen yet.
    moves: BTreeSet<MigrationId>,
}

impl State {
    fn contacts(&self) -> Vec<Contact> {
        self.contacts.iter().filter_map(Weak::upgrade).map(|contact| contact.lock().clone()).collect()
    }

    /// Returns why a controller does not take this host, if none can be asked and one says so.
    fn refusal(&self) -> Option<Refusal> {
        self.is_out_of_reach().then(|| {
            self.contacts().into_iter().find_map(|contact| match contact {
                Contact::Refuses(refusal) => Some(refusal),
                Contact::Dialled | Contact::Connected | Contact::Lost(_) => None,
            })
        })?
    }

    /// Returns why there is no connection, of some controllers without one.
    fn losses(&self) -> Vec<String> {
        let losses = self.contacts().into_iter().filter_map(|contact| match contact {
            Contact::Lost(why) => Some(why),
            Contact::Dialled | Contact::Connected | Contact::Refuses(_) => None,
        });
        losses.take(LOSSES_TOLD_MAX).collect()
    }

    /// Returns whether it is known that no controller can be asked.
    fn is_out_of_reach(&self) -> bool {
        let contacts = self.contacts();
        !contacts.is_empty() && contacts.iter().all(|contact| matches!(contact, Contact::Lost(_) | Contact::Refuses(_)))
    }
}

struct Question {
    what: ByHand,
    sent: Option<Instant>,
    answer: Option<LeaderAnswer>,
}

/// A VM that is being started for a person, moved, or forgotten, as long as this exists: one of these at a time.
pub(crate) struct Turn {
    questions: Arc<LeaderQuestions>,
    vm: String,
    /// The migration that may begin.
    migration: Option<MigrationId>,
}

impl Turn {
    /// Takes note that the migration has begun: it is told of as one that was asked for until it is seen.
    pub(crate) fn begun(mut self) {
        self.migration = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.questions.state.lock();
        state.turns.remove(&self.vm);
        if let Some(migration) = self.migration {
            state.moves.remove(&migration);
        }
    }
}

impl LeaderQuestions {
    /// Asks controllers if `file` names any.
    pub(crate) fn new(file: &Path, times: QuestionTimes) -> Arc<LeaderQuestions> {
        let file = WatchedFile::new(file, ControllersFile::parse);
        Arc::new(LeaderQuestions { file, times, state: Mutex::default(), answered: Condvar::new() })
    }

    /// Returns whether this host has controllers to ask. A file that cannot be read may name some.
    pub(crate) fn has_controllers(&self) -> bool {
        let content = self.file.refreshed();
        content.error.is_some() || !content.latest.addresses.is_empty()
    }

    /// Returns whether no controller is known: the file that names them was never read, and there is no connection.
    fn is_nobody_named(&self) -> bool {
        self.file.refreshed().latest.addresses.is_empty() && self.state.lock().contacts().is_empty()
    }

    /// Takes a VM for a start, for a migration, or for being forgotten.
    ///
    /// # Errors
    ///
    /// The VM is taken.
    pub(crate) fn take_turn(self: &Arc<Self>, vm: &str) -> Result<Turn, Refusal> {
        if self.state.lock().turns.insert(vm.to_owned()) {
            return Ok(Turn { questions: self.clone(), vm: vm.to_owned(), migration: None });
        }
        let message = format!("'{vm}' is being started, moved or forgotten");
        Err(Refusal { message, cure: "ask again when that is done".into() })
    }

    /// Takes a VM for this migration.
    ///
    /// # Errors
    ///
    /// The VM is taken.
    pub(crate) fn take_turn_to_move(self: &Arc<Self>, vm: &str, migration: MigrationId) -> Result<Turn, Refusal> {
        let mut turn = self.take_turn(vm)?;
        self.state.lock().moves.insert(migration);
        turn.migration = Some(migration);
        Ok(turn)
    }

    /// Returns the migrations that may begin, or have begun and were not seen yet.
    pub(super) fn moves_asked(&self) -> Vec<MigrationId> {
        self.state.lock().moves.iter().copied().collect()
    }

    /// Notes that migrations were seen: what is told of them is what is seen of them.
    pub(super) fn note_seen(&self, migrations: &[MigrationId]) {
        let mut state = self.state.lock();
        state.moves.retain(|migration| !migrations.contains(migration));
    }

    /// Has a connection woken when there is a question.
    pub(super) fn subscribe(&self, waker: &Arc<Waker>) {
        let mut state = self.state.lock();
        state.wakers.retain(|waker| waker.strong_count() > 0);
        state.wakers.push(Arc::downgrade(waker));
    }

    /// Returns how a new connection stands: it is noted as long as the connection is kept.
    pub(super) fn contact(&self) -> Arc<Mutex<Contact>> {
        let contact = Arc::new(Mutex::new(Contact::Dialled));
        let mut state = self.state.lock();
        state.contacts.retain(|contact| contact.strong_count() > 0);
        state.contacts.push(Arc::downgrade(&contact));
        contact
    }

    /// Notes how a connection stands now.
    pub(super) fn note(&self, contact: &Mutex<Contact>, now: Contact) {
        let _state = self.state.lock();
        *contact.lock() = now;
        self.answered.notify_all();
    }

    /// Asks whether something may be done, and waits for the answer. Where no controller answers, `is_without` has it
    /// done all the same, at once if no controller can be asked. What is only asked does not wait for one either.
    ///
    /// # Errors
    ///
    /// It may not be done, or nobody says that it may.
    pub(crate) fn allow(&self, what: ByHand, is_without: bool) -> Result<(), Refusal> {
        let (nobody_says, made_sure) = what.unanswered();
        let at_once = is_without || what.only_asks();
        let answer = match at_once && self.is_nobody_named() {
            true => Err(NotAllowed::Unanswered),
            false => self.ask(what, at_once),
        };
        match answer {
            Ok(()) => Ok(()),
            Err(NotAllowed::Refused(why)) => Err(why),
            Err(NotAllowed::Unanswered | NotAllowed::NotTaken(_)) if is_without => {
                warn!("no controller answers {nobody_says}, and a person wants it all the same");
                Ok(())
            }
            Err(NotAllowed::NotTaken(Refusal { message, cure })) => {
                let message = format!("no controller says {nobody_says}, as this host is refused: {message}");
                let cure = format!("{cure}; or make sure yourself that {made_sure}, and say --without-controller");
                Err(Refusal { message, cure })
            }
            Err(NotAllowed::Unanswered) => {
                let losses = self.state.lock().losses().join("; ");
                let losses = if losses.is_empty() { losses } else { format!(" ({losses})") };
                let message = format!("no controller of the cluster answers {nobody_says}{losses}");
                let file = self.file.path().display();
                let cure = format!(
                    "see that the controllers of {file} run and are reached (skein cluster status), and that they are \
                     not older than this agent; or make sure yourself that {made_sure}, and say --without-controller"
                );
                Err(Refusal { message, cure })
            }
        }
    }

    /// Asks whether something may be done, and waits for the answer. With `at_once` nobody waits for a controller that
    /// cannot be asked.
    pub(super) fn ask(&self, what: ByHand, at_once: bool) -> Result<(), NotAllowed> {
        let number = {
            let mut state = self.state.lock();
            state.last += 1;
            let number = state.last;
            state.open.insert(number, Question { what, sent: None, answer: None });
            number
        };
        let answer = self.wait(number, at_once);
        let mut state = self.state.lock();
        state.open.remove(&number);
        match answer {
            Err(NotAllowed::Unanswered) => Err(state.refusal().map_or(NotAllowed::Unanswered, NotAllowed::NotTaken)),
            answer => answer,
        }
    }

    fn wait(&self, number: u64, at_once: bool) -> Result<(), NotAllowed> {
        let begun = Instant::now();
        let mut until = begun + self.times.answer;
        let mut last = None;
        self.wake();
        while let Some(answer) = self.wait_answer(number, until, at_once) {
            match answer {
                LeaderAnswer::May => return Ok(()),
                LeaderAnswer::MayNot(false, refusal) => return Err(NotAllowed::Refused(refusal)),
                LeaderAnswer::MayNot(true, refusal) => {
                    if last.replace(refusal).is_none() {
                        until = Instant::now() + self.times.again;
                    }
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep((self.times.resend / 2).min(left));
            if let Some(question) = self.state.lock().open.get_mut(&number) {
                question.sent = None;
            }
            self.wake();
        }
        Err(last.map_or(NotAllowed::Unanswered, NotAllowed::Refused))
    }

    /// Returns the next answer. `None`: there is none in time, or nobody who could give it.
    fn wait_answer(&self, number: u64, until: Instant, at_once: bool) -> Option<LeaderAnswer> {
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = state.open.get_mut(&number)?.answer.take() {
                return Some(answer);
            }
            if at_once && state.is_out_of_reach() || state.refusal().is_some() {
                return None;
            }
            if self.answered.wait_until(&mut state, until).timed_out() {
                return state.open.get_mut(&number)?.answer.take();
            }
        }
    }

    fn wake(&self) {
        let wakers = self.state.lock().wakers.clone();
        wakers.iter().filter_map(Weak::upgrade).for_each(|waker| waker.wake());
    }

    /// Returns the questions that are to be sent now to the controller that leads.
    pub(super) fn due(&self, now: Instant) -> Vec<ToController> {
        let mut state = self.state.lock();
        let is_due = |question: &Question| {
            let is_old = |sent: Instant| now.saturating_duration_since(sent) >= self.times.resend;
            question.answer.is_none() && question.sent.is_none_or(is_old)
        };
        let due = state.open.iter_mut().filter(|(_, question)| is_due(question));
        let lines = due.map(|(number, question)| {
            question.sent = Some(now);
            question.what.question(*number)
        });
        lines.collect()
    }

    /// Takes the leader's answer to a question.
    pub(super) fn answer(&self, number: u64, answer: LeaderAnswer) {
        let mut state = self.state.lock();
        // Nobody waits any more for the answer to an older question.
        let Some(question) = state.open.get_mut(&number) else { return };
        question.answer.get_or_insert(answer);
        self.answered.notify_all();
    }
}
