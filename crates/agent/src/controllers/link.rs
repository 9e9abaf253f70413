//! Is the connection to one controller: dialled again and again, and used by one thread. Whatever the controller does,
//! the thread alone waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::{AlertDescription, ClientConfig};
use skein_api::{
    API_VERSION, Hello, HostReport, LineError, MigrationId, MigrationSample, Refusal, Term, ToAgent, ToController,
    Welcome, parse_line,
};
use skein_inventory::{HostAddress, printable};
use tracing::{debug, info, warn};

use super::acknowledged::{Acknowledged, SentReports, Word, now_ms};
use super::commands::{Command, Commands};
use super::dial::Dial;
use super::errors::LinkError;
use super::host::ControlledHost;
use super::leader_questions::{Contact, LeaderAnswer, LeaderQuestions};
use super::learnt::LearntControllers;
use super::observe::Observer;
use super::renewal::Renewal;
use super::report::Told;
use super::terms::Terms;
use super::wire::Wire;
use crate::error_chain;
use crate::host_files::boot_id;
use crate::random::random;
use crate::samples::Recorder;
use crate::waker::Waker;

/// Bounds the words of a controller in the log.
const WORDS_BYTES_MAX: usize = 300;
/// Bounds a wait, so that the thread sees that it is to end.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Bounds how long a connection that showed a certificate of before waits until its commands are over: those go on
/// without it, and are asked for again.
const RENEWED_WAIT_MAX: Duration = Duration::from_secs(60);

/// Says how long is waited for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkTimes {
    /// Until a connection is there.
    pub(crate) dial: Duration,
    /// For TLS, and for the first line.
    pub(crate) greeting: Duration,
    /// For a controller that takes nothing of what it is told.
    pub(crate) stall: Duration,
    /// Before the second attempt; doubled after each …
    pub(crate) redial_first: Duration,
    /// … up to this.
    pub(crate) redial_max: Duration,
    /// After a controller said that it does not take this host.
    pub(crate) refused: Duration,
}

impl Default for LinkTimes {
    fn default() -> LinkTimes {
        LinkTimes {
            dial: Duration::from_secs(3),
            greeting: Duration::from_secs(10),
            stall: Duration::from_secs(20),
            redial_first: Duration::from_millis(250),
            // A controller that is started again has all hosts within some seconds, and not all at once.
            redial_max: Duration::from_secs(4),
            refused: Duration::from_secs(10),
        }
    }
}

/// What all connections of an agent share.
pub(crate) struct LinkContext {
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) renewal: Renewal,
    pub(crate) host: Arc<dyn ControlledHost>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) terms: Arc<Terms>,
    pub(crate) acknowledged: Arc<Acknowledged>,
    pub(crate) questions: Arc<LeaderQuestions>,
    pub(crate) samples: Arc<Recorder>,
    pub(crate) learnt: Arc<LearntControllers>,
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) times: LinkTimes,
    /// A number that this start of the agent chose at random.
    pub(crate) instance: u64,
}

/// A connection, as others see it.
pub(crate) struct Link {
    address: HostAddress,
    waker: Arc<Waker>,
    is_over: AtomicBool,
    /// The name that the controller last showed in its certificate.
    name: Mutex<Option<String>>,
}

impl Link {
    /// # Errors
    ///
    /// The process has too many files open.
    pub(crate) fn new(address: HostAddress) -> std::io::Result<Arc<Link>> {
        Ok(Arc::new(Link {
            address,
            waker: Arc::new(Waker::new()?),
            is_over: AtomicBool::new(false),
            name: Mutex::default(),
        }))
    }

    /// Ends the connection. The call does not wait.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Returns the name that the controller last showed in its certificate.
    pub(crate) fn name(&self) -> Option<String> {
        self.name.lock().clone()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Keeps the connection until [`Link::end`].
    pub(crate) fn keep(&self, context: &LinkContext) {
        let mut pause = context.times.redial_first;
        let mut told: Option<String> = None;
        let contact = context.questions.contact();
        while !self.is_over() {
            // The first report has everything, so everything has to be known.
            if !context.observer.wait_first(WAIT_MAX) {
                continue;
            }
            let (begun, renewals) = (Instant::now(), context.renewal.renewals());
            let Err(error) = self.connect(context, &contact);
            if self.is_over() {
                return;
            }
            if context.renewal.renewals() != renewals {
                // Whatever ended the connection, it showed a certificate that is not taken for long any more.
                context.questions.note(&contact, Contact::Dialled);
                info!(controller = %self.address, "connects anew: {}", error_chain(&LinkError::Renewed));
                continue;
            }
            let reason = error_chain(&error);
            let words = match &error {
                LinkError::Tls(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => {
                    format!("{reason} ({})", context.renewal.dates(SystemTime::now()))
                }
                _ => reason.clone(),
            };
            let words = printable(words, WORDS_BYTES_MAX);
            let stands = match &error {
                LinkError::Refused(message, cure) => {
                    Contact::Refuses(Refusal { message: message.clone(), cure: cure.clone() })
                }
                _ => Contact::Lost(format!("{}: {words}", self.address)),
            };
            context.questions.note(&contact, stands);
            // The same reason again and again is worth one line.
            if told.as_ref() != Some(&reason) {
                warn!(controller = %self.address, "no contact: {words}");
                told = Some(reason);
            }
            if begun.elapsed() > context.times.redial_max {
                (pause, told) = (context.times.redial_first, None);
            }
            let is_refused = matches!(error, LinkError::Refused(..));
            self.wait(jittered(if is_refused { context.times.refused } else { pause }));
            pause = (pause * 2).min(context.times.redial_max);
        }
    }

    fn wait(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.is_over() && Instant::now() < end {
            std::thread::sleep(end.saturating_duration_since(Instant::now()).min(WAIT_MAX / 10));
        }
    }

    /// Connects, and serves the controller until the connection is over.
    fn connect(&self, context: &LinkContext, contact: &Mutex<Contact>) -> Result<std::convert::Infallible, LinkError> {
        let times = &context.times;
        let renewals = context.renewal.renewals();
        let socket = context.dial.dial(&self.address, times.dial)?;
        let mut wire = Wire::new(socket, context.tls.clone())?;
        let name = wire.shake_hands(times.greeting, &self.waker, &|| self.is_over())?;
        *self.name.lock() = Some(name.clone());
        wire.queue(&ToController::Hello(self.hello(context)))?;
        let welcome = self.greeted(&mut wire, times.greeting)?;
        let Welcome { cluster, release, .. } = &welcome;
        info!(controller = name, at = %self.address, "connected: cluster {cluster}, skein {release}");
        let period = Duration::from_millis(welcome.report_period_ms);
        let commands = Commands::new(context.host.clone(), context.terms.clone(), self.waker.clone());
        let _subscription = context.observer.subscribe(period, &self.waker);
        context.questions.subscribe(&self.waker);
        context.samples.subscribe(&self.waker);
        context.questions.note(contact, Contact::Connected);
        Serving {
            context,
            name: &name,
            wire,
            commands,
            told: Told::default(),
            sent: SentReports::default(),
            seen: 0,
            due: Instant::now(),
            period,
            led: None,
            watched: BTreeMap::new(),
            renewals,
            renewed: None,
        }
        .serve(self)
    }

    fn hello(&self, context: &LinkContext) -> Hello {
        Hello {
            host: context.host.name(),
            release: env!("CARGO_PKG_VERSION").into(),
            api: API_VERSION,
            instance: context.instance,
            boot_id: boot_id(),
            addresses: context.host.addresses(),
            highest_term: context.terms.highest(),
            moves_off: true,
        }
    }

    /// Waits for the controller's first line.
    fn greeted(&self, wire: &mut Wire, patience: Duration) -> Result<Welcome, LinkError> {
        let end = Instant::now() + patience;
        loop {
            if let Some(line) = wire.next_line()? {
                return match read(&line)? {
                    ToAgent::Welcome(welcome) => Ok(welcome),
                    ToAgent::Refused(refusal) => Err(LinkError::Refused(refusal.message, refusal.cure)),
                    _ => Err(LinkError::NoGreeting),
                };
            }
            let left = end.saturating_duration_since(Instant::now());
            if self.is_over() {
                return Err(LinkError::Over);
            }
            if left.is_zero() {
                return Err(LinkError::Silent(patience));
            }
            wire.step(left, &self.waker)?;
        }
    }
}

/// Reads and checks a line.
fn read(line: &[u8]) -> Result<ToAgent, LinkError> {
    let line: ToAgent = parse_line(line).map_err(LinkError::Line)?;
    match &line {
        // What a command may ask is checked when it is begun, and answered.
        ToAgent::Command { .. } => {}
        line => line.check().map_err(LinkError::not_allowed)?,
    }
    Ok(line)
}

/// A connection that is in use.
struct Serving<'a> {
    context: &'a LinkContext,
    /// The controller's name.
    name: &'a str,
    wire: Wire,
    commands: Commands,
    told: Told,
    sent: SentReports,
    /// The number of the snapshot that was told last.
    seen: u64,
    /// When the next report has to go out.
    due: Instant,
    period: Duration,
    /// The term in which the controller leads, as it last said.
    led: Option<Term>,
    /// The migrations that the controller watches, and the number of the sample that was sent last.
    watched: BTreeMap<MigrationId, u64>,
    /// How often the host's certificate had been renewed when the connection began.
    renewals: u64,
    /// Since when the host has another certificate than this connection showed.
    renewed: Option<Instant>,
}

impl Serving<'_> {
    fn serve(mut self, link: &Link) -> Result<std::convert::Infallible, LinkError> {
        loop {
            if link.is_over() {
                return Err(LinkError::Over);
            }
            self.listen()?;
            self.renew()?;
            self.speak()?;
            if self.wire.stalled_for() > self.context.times.stall {
                return Err(LinkError::Stalled(self.context.times.stall));
            }
            let left = self.due.saturating_duration_since(Instant::now());
            // While something waits to be sent no report is due.
            let patience = if self.wire.unsent() > 0 { WAIT_MAX } else { left.min(WAIT_MAX) };
            self.wire.step(patience, &link.waker)?;
        }
    }

    /// Obeys what was read.
    fn listen(&mut self) -> Result<(), LinkError> {
        while let Some(line) = self.wire.next_line()? {
            match read(&line)? {
                ToAgent::Command { command, term, request_id, request } => {
                    let command = Command { number: command, term, request_id, request: *request };
                    if let Some(answer) = self.commands.begin(self.name, command) {
                        self.wire.queue(&answer)?;
                    }
                }
                ToAgent::Leads { term } => match self.context.terms.admit(term) {
                    Ok(()) => self.led = Some(term),
                    Err(error) => debug!(controller = self.name, "leads in term {term}: {}", error_chain(&error)),
                },
                ToAgent::Hosts { addresses } => self.context.host.learn_hosts(&addresses),
                ToAgent::Controllers { addresses } => self.context.learnt.learn(&addresses),
                ToAgent::Refused(refusal) => return Err(LinkError::Refused(refusal.message, refusal.cure)),
                // A controller may say another period.
                ToAgent::Welcome(welcome) => self.period = Duration::from_millis(welcome.report_period_ms),
                ToAgent::Renewed { certificate } => self.context.renewal.take(&certificate),
                ToAgent::NotRenewed(refusal) => self.context.renewal.refuse(refusal),
                ToAgent::May { ask } if self.leads() => self.context.questions.answer(ask, LeaderAnswer::May),
                ToAgent::MayNot { ask, again, refusal } if self.leads() => {
                    self.context.questions.answer(ask, LeaderAnswer::MayNot(again, refusal));
                }
                // A later leader is asked.
                ToAgent::May { .. } | ToAgent::MayNot { .. } => {}
                ToAgent::Heard { term, number, sequence, voters, hosts } => {
                    let word = Word { term, number, sequence, voters, hosts };
                    self.context.acknowledged.take(now_ms(), &mut self.sent, word);
                }
                ToAgent::Watch { migrations } => {
                    let seen = |id: &MigrationId| self.watched.get(id).copied().unwrap_or(0);
                    self.watched = migrations.iter().map(|id| (*id, seen(id))).collect();
                }
                ToAgent::Look { look, request } => {
                    if let Some(answer) = self.commands.look(self.name, look, *request) {
                        self.wire.queue(&answer)?;
                    }
                }
                ToAgent::Console { look, request } => {
                    if let Some(answer) = self.commands.console(self.name, look, request) {
                        self.wire.queue(&answer)?;
                    }
                }
                ToAgent::Other => {}
            }
        }
        Ok(())
    }

    /// Asks the controller that leads for another certificate, if that is due; ends the connection if the host has one
    /// that this connection did not show, once no command is under way.
    fn renew(&mut self) -> Result<(), LinkError> {
        let renewal = &self.context.renewal;
        if renewal.renewals() != self.renewals {
            let since = *self.renewed.get_or_insert_with(Instant::now);
            if self.commands.are_over() && self.wire.unsent() == 0 || since.elapsed() > RENEWED_WAIT_MAX {
                return Err(LinkError::Renewed);
            }
        } else if self.leads() && renewal.wants() {
            self.wire.queue(&ToController::Renew)?;
        }
        Ok(())
    }

    /// Returns whether the controller leads, as far as this host has heard.
    fn leads(&self) -> bool {
        self.led == Some(self.context.terms.highest())
    }

    /// Says what there is to say, if what was said before is on its way: a slow controller gets one report of all that
    /// has changed meanwhile.
    fn speak(&mut self) -> Result<(), LinkError> {
        while self.wire.unsent() == 0 {
            if let Some(reply) = self.commands.replies().take() {
                self.reply(reply)?;
                continue;
            }
            // Read before what is seen: once another connection has told of one, only what is seen has it.
            let asked = self.context.questions.moves_asked();
            let (version, snapshot) = self.context.observer.latest();
            let now = Instant::now();
            if version == self.seen && now < self.due {
                self.ask_starts(now)?;
                return self.show_watched();
            }
            let mut report = self.told.report(&snapshot, now);
            let (seen, unseen): (Vec<_>, Vec<_>) =
                asked.into_iter().partition(|migration| snapshot.migrations.contains_key(migration));
            self.context.questions.note_seen(&seen);
            report.moves_asked = unseen;
            report.led = self.led;
            report.heard = self.context.acknowledged.last();
            report.watchdog = self.told.new_watchdog(self.context.acknowledged.watchdog());
            self.sent.note(report.sequence, now_ms());
            (self.seen, self.due) = (version, now + self.period);
            self.report(report)?;
        }
        Ok(())
    }

    /// Asks the controller, if it leads, which VMs may be started. It has a report before.
    fn ask_starts(&mut self, now: Instant) -> Result<(), LinkError> {
        if self.leads() {
            self.context.questions.due(now).iter().try_for_each(|line| self.wire.queue(line))?;
        }
        Ok(())
    }

    /// Sends the newest sample of each migration that the controller watches. A controller that reads slowly is sent
    /// fewer of them.
    fn show_watched(&mut self) -> Result<(), LinkError> {
        for (id, seen) in &mut self.watched {
            if let Some((number, sample)) = self.context.samples.newer(*id, *seen) {
                *seen = number;
                self.wire.queue(&ToController::Sample(Box::new(MigrationSample::clone(&sample))))?;
            }
        }
        Ok(())
    }

    fn reply(&mut self, reply: ToController) -> Result<(), LinkError> {
        match self.wire.queue(&reply) {
            Err(LinkError::Line(LineError::TooLong)) => {
                let (message, cure) = ("the reply is too long for a line".into(), "ask for less at once".into());
                let refused = Box::new(skein_api::Reply::Error(Refusal { message, cure }));
                match reply {
                    ToController::Reply { command, .. } => {
                        self.wire.queue(&ToController::Reply { command, reply: refused })
                    }
                    ToController::Seen { look, .. } => self.wire.queue(&ToController::Seen { look, reply: refused }),
                    _ => Ok(()),
                }
            }
            queued => queued,
        }
    }

    /// Sends a report; if it is too long, without the definitions of VMs, which `vm-show` shows.
    fn report(&mut self, mut report: HostReport) -> Result<(), LinkError> {
        let is_too_long = |queued: &Result<(), LinkError>| matches!(queued, Err(LinkError::Line(LineError::TooLong)));
        let line = ToController::Report(Box::new(report.clone()));
        debug_assert_eq!(line.check(), Ok(()));
        let queued = self.wire.queue(&line);
        if !is_too_long(&queued) {
            return queued;
        }
        warn!(controller = self.name, "a report is too long: it goes without the VMs' definitions");
        report.vms.iter_mut().for_each(|vm| vm.definition = None);
        self.wire.queue(&ToController::Report(Box::new(report)))
    }
}

/// Returns half of a time to all of it, so that hosts do not dial at once.
fn jittered(time: Duration) -> Duration {
    let share = f64::from(u32::from_ne_bytes(random())) / f64::from(u32::MAX);
    time.mul_f64(0.5 + share / 2.0)
}
