//! Asks the controller that leads whether a VM may be started here for a person: the cluster may have started the VM
//! elsewhere while this host was off, or was not heard.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_api::{Refusal, ToController};
use skein_inventory::ControllersFile;

use super::waker::Waker;
use crate::watched_file::WatchedFile;

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

/// The reason why a VM may not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotAllowed {
    /// A controller says so.
    Refused(Refusal),
    /// No controller has answered.
    Unanswered,
}

/// What was answered.
#[derive(Clone, Debug)]
pub(super) enum StartAnswer {
    May,
    /// Whether that may pass within seconds, and the reason.
    MayNot(bool, Refusal),
}

/// The questions that wait for an answer. All connections to controllers share them.
pub(crate) struct StartQuestions {
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
    /// The VMs that are being started for a person, or forgotten.
    turns: BTreeSet<String>,
}

struct Question {
    vm: String,
    is_here: bool,
    sent: Option<Instant>,
    answer: Option<StartAnswer>,
}

/// A VM that is being started for a person, or forgotten, as long as this exists: one of both at a time.
pub(crate) struct Turn {
    questions: Arc<StartQuestions>,
    vm: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.questions.state.lock().turns.remove(&self.vm);
    }
}

impl StartQuestions {
    /// Asks controllers if `file` names any.
    pub(crate) fn new(file: &Path, times: QuestionTimes) -> Arc<StartQuestions> {
        let file = WatchedFile::new(file, ControllersFile::parse);
        Arc::new(StartQuestions { file, times, state: Mutex::default(), answered: Condvar::new() })
    }

    /// Returns whether this host has controllers to ask. A file that cannot be read may name some.
    pub(crate) fn has_controllers(&self) -> bool {
        let content = self.file.refreshed();
        content.error.is_some() || !content.latest.addresses.is_empty()
    }

    /// Returns the file that names controllers.
    pub(crate) fn file(&self) -> &Path {
        self.file.path()
    }

    /// Takes a VM for a start or for being forgotten. `None`: it is taken.
    pub(crate) fn take_turn(self: &Arc<Self>, vm: &str) -> Option<Turn> {
        let is_free = self.state.lock().turns.insert(vm.to_owned());
        is_free.then(|| Turn { questions: self.clone(), vm: vm.to_owned() })
    }

    /// Has a connection woken when there is a question.
    pub(super) fn subscribe(&self, waker: &Arc<Waker>) {
        let mut state = self.state.lock();
        state.wakers.retain(|waker| waker.strong_count() > 0);
        state.wakers.push(Arc::downgrade(waker));
    }

    /// Asks whether a VM may be started here, and waits for the answer. `is_here`: this host has the VM, and keeps it
    /// until the caller's turn is over.
    ///
    /// # Errors
    ///
    /// It may not, or nobody says that it may.
    pub(crate) fn ask(&self, vm: &str, is_here: bool) -> Result<(), NotAllowed> {
        let number = {
            let mut state = self.state.lock();
            state.last += 1;
            let number = state.last;
            state.open.insert(number, Question { vm: vm.to_owned(), is_here, sent: None, answer: None });
            number
        };
        let answer = self.wait(number);
        self.state.lock().open.remove(&number);
        answer
    }

    fn wait(&self, number: u64) -> Result<(), NotAllowed> {
        let begun = Instant::now();
        let mut until = begun + self.times.answer;
        let mut last = None;
        self.wake();
        while let Some(answer) = self.wait_answer(number, until) {
            match answer {
                StartAnswer::May => return Ok(()),
                StartAnswer::MayNot(false, refusal) => return Err(NotAllowed::Refused(refusal)),
                StartAnswer::MayNot(true, refusal) => {
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

    fn wait_answer(&self, number: u64, until: Instant) -> Option<StartAnswer> {
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = state.open.get_mut(&number)?.answer.take() {
                return Some(answer);
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
            ToController::AskStart { ask: *number, vm: question.vm.clone(), is_here: question.is_here }
        });
        lines.collect()
    }

    /// Takes the leader's answer to a question.
    pub(super) fn answer(&self, number: u64, answer: StartAnswer) {
        let mut state = self.state.lock();
        // Nobody waits any more for the answer to an older question.
        let Some(question) = state.open.get_mut(&number) else { return };
        question.answer.get_or_insert(answer);
        self.answered.notify_all();
    }
}
