//! Carries out what the controller that leads commands.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use skein_api::{ConsoleRequest, Refusal, Reply, Request, RequestLine, Term, ToController};
use tracing::{info, warn};

use super::host::ControlledHost;
use super::terms::{TermRefused, Terms};
use crate::error_chain;
use crate::permit::Permit;
use crate::waker::Waker;

/// Bounds the commands of a connection that are under way, or whose reply was not sent yet.
pub(crate) const COMMANDS_MAX: usize = 16;

/// Bounds what a connection's controller only wants to see at the same time: as many questions as may be open of a
/// host. Whoever looks takes no command's place.
const LOOKS_MAX: usize = 16;

/// Bounds what is asked of consoles on a connection at the same time: two requests of each that may be open. They wait
/// for what guests write, and so have places of their own, which commands do not need.
const CONSOLE_QUESTIONS_MAX: usize = 64;

/// A command.
pub(crate) struct Command {
    pub(crate) number: u64,
    pub(crate) term: Term,
    pub(crate) request_id: Option<String>,
    pub(crate) request: Request,
}

/// The commands of one connection.
pub(crate) struct Commands {
    host: Arc<dyn ControlledHost>,
    terms: Arc<Terms>,
    under_way: Arc<AtomicUsize>,
    /// The number of looks.
    looks: Arc<AtomicUsize>,
    /// The number of requests about consoles.
    of_consoles: Arc<AtomicUsize>,
    replies: Arc<Replies>,
}

/// The replies that wait to be sent, each with its permit.
pub(crate) struct Replies {
    waiting: Mutex<VecDeque<(ToController, Permit)>>,
    waker: Arc<Waker>,
}

impl Replies {
    fn add(&self, reply: ToController, permit: Permit) {
        self.waiting.lock().push_back((reply, permit));
        self.waker.wake();
    }

    /// Returns the next reply.
    pub(crate) fn take(&self) -> Option<ToController> {
        self.waiting.lock().pop_front().map(|(reply, _)| reply)
    }
}

impl Commands {
    /// `waker` is woken when there is a reply.
    pub(crate) fn new(host: Arc<dyn ControlledHost>, terms: Arc<Terms>, waker: Arc<Waker>) -> Commands {
        let replies = Arc::new(Replies { waiting: Mutex::default(), waker });
        Commands { host, terms, under_way: Arc::default(), looks: Arc::default(), of_consoles: Arc::default(), replies }
    }

    /// Returns whether no command is under way, and no reply waits to be sent.
    pub(crate) fn are_over(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) == 0
    }

    /// Returns where replies wait.
    pub(crate) fn replies(&self) -> &Replies {
        &self.replies
    }

    /// Begins a command of a controller, if its term allows that. Returns what can be said at once. A command that is
    /// begun goes on when the connection is over.
    pub(crate) fn begin(&self, controller: &str, command: Command) -> Option<ToController> {
        let Command { number, term, request_id, request } = command;
        let refuse = |message: String, cure: &str| {
            warn!(controller, "a command is refused: {message}");
            let refusal = Refusal { message, cure: cure.into() };
            Some(ToController::Reply { command: number, reply: Box::new(Reply::Error(refusal)) })
        };
        match self.terms.admit(term) {
            Ok(()) => {}
            Err(TermRefused::Deposed(highest)) => {
                warn!(controller, "a command of term {term} is refused: a later leader has {highest}");
                return Some(ToController::Deposed { command: number, highest });
            }
            Err(error @ TermRefused::Unknown { .. }) => {
                return refuse(error_chain(&error), "make sure which controller leads, and remove the file");
            }
            Err(error) => return refuse(error_chain(&error), "make room on that disk"),
        }
        let request = match request {
            Request::MigrationWatch { .. } => {
                return refuse("a controller does not watch a migration by a command".into(), "read the reports");
            }
            Request::Migrate { vm, to, options, detach: _ } => Request::Migrate { vm, to, options, detach: true },
            Request::MigrateHeld { vm, to, options, hold, detach: _ } => {
                Request::MigrateHeld { vm, to, options, hold, detach: true }
            }
            other => other,
        };
        let line = RequestLine { api: None, request_id, request };
        if let Err(Refusal { message, cure }) = line.check() {
            return refuse(message, &cure);
        }
        info!(controller, %term, "command {number}");
        let permit = Permit::take(&self.under_way, COMMANDS_MAX);
        let refused = self.run(line, permit, move |reply| ToController::Reply { command: number, reply });
        refused.and_then(|(message, cure)| refuse(message, cure))
    }

    /// Begins to answer what a controller only wants to see. Returns what can be said at once.
    pub(crate) fn look(&self, controller: &str, look: u64, request: Request) -> Option<ToController> {
        self.show(controller, look, request, Permit::take(&self.looks, LOOKS_MAX))
    }

    /// Begins to answer what is asked of a console. Returns what can be said at once.
    pub(crate) fn console(&self, controller: &str, look: u64, request: Box<ConsoleRequest>) -> Option<ToController> {
        let permit = Permit::take(&self.of_consoles, CONSOLE_QUESTIONS_MAX);
        self.show(controller, look, Request::VmConsole(request), permit)
    }

    fn show(&self, controller: &str, look: u64, request: Request, permit: Option<Permit>) -> Option<ToController> {
        let line = RequestLine { api: None, request_id: None, request };
        let refused = self.run(line, permit, move |reply| ToController::Seen { look, reply });
        refused.map(|(message, cure)| {
            warn!(controller, "a question is not answered: {message}");
            let refusal = Refusal { message, cure: cure.into() };
            ToController::Seen { look, reply: Box::new(Reply::Error(refusal)) }
        })
    }

    /// Has a thread answer a request, if there is a permit, and `say` say the reply. Returns why there is none, and
    /// what to do.
    fn run(
        &self,
        line: RequestLine,
        permit: Option<Permit>,
        say: impl FnOnce(Box<Reply>) -> ToController + Send + 'static,
    ) -> Option<(String, &'static str)> {
        let Some(permit) = permit else {
            return Some(("too many commands are under way".into(), "wait until some of them are over"));
        };
        let (host, replies) = (self.host.clone(), self.replies.clone());
        let work = move || replies.add(say(Box::new(host.run(line))), permit);
        match thread::Builder::new().name("command".into()).spawn(work) {
            Ok(_) => None,
            Err(error) => {
                let cure = "this host has no room for more: see its limits and its memory";
                Some((format!("the agent cannot start a thread: {error}"), cure))
            }
        }
    }
}
