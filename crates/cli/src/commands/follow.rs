//! Follows a migration until it is over: bars on a terminal, lines in a pipe, JSON for programs.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use skein_api::{
    Convergence, CopyProgress, EXCLUDED_PATH, KERNEL_KILLED, LogEntry, Migration, MigrationId, MigrationPhase, Outcome,
    PROGRESS_PERIOD, PathView, RateLimit, Reply, Request, Role, SourcePhase, TargetPhase,
};
use skein_client::{CallError, Client, Conversation};
use skein_units::measured::bps;
use skein_units::{about_bytes, decimal, duration};

use super::cluster::access::agent_asks_controllers;
use super::hold::{held_hints, held_text, hold_words};
use super::local::{
    AGENT_ANSWER_TIME, EXIT_BLOCKED, EXIT_CALLED_OFF, EXIT_IN_DOUBT, EXIT_INTERRUPTED, SAID_AFTER, check_text,
    exit_code, other_host, reason, unexpected,
};
use super::text::{clean_line, count, print};

/// How often it is checked whether a signal came.
const SIGNAL_CHECK_PERIOD: Duration = Duration::from_millis(100);
const RETRY_PERIOD: Duration = Duration::from_millis(500);
/// The time between two lines in a pipe while only figures change, by the migration's own clock.
const LINE_PERIOD_MS: u64 = 5000;
/// The most NICs that get a bar of their own.
const PATHS_SHOWN: usize = 16;
/// What is shown while the guest is in doubt.
const IN_DOUBT_TEXT: &str = "IN DOUBT, paused until the other host can be asked";

/// How long to wait for each thing.
#[derive(Clone, Copy)]
struct FollowTimes {
    /// For the first reply: a check is made before it.
    first: Duration,
    /// For each further reply.
    silence: Duration,
    /// For an agent that is started again (an upgrade, a crash).
    restart: Duration,
    /// For a doubt to settle by itself, as most do once the network is back. After this a person has to look.
    doubt: Duration,
}

const FOLLOW_TIMES: FollowTimes = FollowTimes {
    first: AGENT_ANSWER_TIME,
    silence: Duration::from_secs(10 * PROGRESS_PERIOD.as_secs()),
    restart: Duration::from_secs(60),
    doubt: Duration::from_secs(30),
};

/// The migration that is followed.
#[derive(Clone, Debug)]
pub enum Opening {
    /// A migration that is begun. The request has an id, by which it is asked for again if the answer is lost. `None`:
    /// no id could be made, and the request is made only once.
    Begin(Request, Option<String>),
    /// A migration that is under way.
    Watch(Request),
}

impl Opening {
    /// Returns a migration to begin, with an id of its own.
    pub fn begin(request: Request) -> Opening {
        // The kernel makes a new UUID for each reader of this file.
        let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").ok();
        Opening::Begin(request, id.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()))
    }

    fn ask(&self, client: &Client) -> Result<Conversation, CallError> {
        match self {
            Opening::Begin(request, Some(id)) => client.ask_once(request, id),
            Opening::Begin(request, None) | Opening::Watch(request) => client.ask(request),
        }
    }

    /// Returns whether the request may be made again though it is not known whether the first one was received.
    fn may_be_repeated(&self) -> bool {
        !matches!(self, Opening::Begin(_, None))
    }
}

/// Until when a migration is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Over,
    /// Until its guest is held, or it is over.
    Held,
}

/// Asks for a migration, to begin or to watch it, and shows it until it is over, or held.
pub fn follow(client: &Client, opening: Opening, until: Until, json: bool) -> anyhow::Result<ExitCode> {
    Follower::new(client, opening, until, json, FOLLOW_TIMES)?.run()
}

/// A follower of one migration.
struct Follower<'a> {
    client: &'a Client,
    opening: Opening,
    until: Until,
    json: bool,
    waits: FollowTimes,
    screen: Screen,
    /// The conversation with the agent. `None`: the agent is gone.
    conversation: Option<Conversation>,
    /// When the agent last sent something.
    heard: Instant,
    /// Since when the agent is gone. It counts as gone until it sends something: that it takes a connection is not
    /// enough.
    lost: Option<Instant>,
    /// The last state of the migration that was received.
    known: Option<Box<Migration>>,
    /// Since when the guest is in doubt.
    doubt: Option<Instant>,
    /// Whether it was said what the agent does before it begins.
    has_said_why: bool,
}

impl<'a> Follower<'a> {
    fn new(
        client: &'a Client,
        opening: Opening,
        until: Until,
        json: bool,
        waits: FollowTimes,
    ) -> Result<Follower<'a>, CallError> {
        let (screen, conversation) = (Screen::new(json), Some(opening.ask(client)?));
        let (lost, known, doubt) = (None, None, None);
        Ok(Follower {
            client,
            opening,
            until,
            json,
            waits,
            screen,
            conversation,
            heard: Instant::now(),
            lost,
            known,
            doubt,
            has_said_why: false,
        })
    }

    fn run(mut self) -> anyhow::Result<ExitCode> {
        let interrupt = skein_terminal::interrupt_flag()?;
        loop {
            if interrupt.load(Ordering::Relaxed) {
                return Ok(self.interrupted());
            }
            if self.doubt.is_some_and(|since| since.elapsed() >= self.waits.doubt) {
                return self.left_in_doubt();
            }
            let next = match &mut self.conversation {
                Some(conversation) => conversation.next(SIGNAL_CHECK_PERIOD),
                None => Ok(None),
            };
            match next {
                Ok(Some(reply)) => {
                    if let Some(code) = self.hear(reply)? {
                        return Ok(code);
                    }
                }
                Ok(None) => self.hear_nothing()?,
                Err(error) if error.may_pass() => self.lose(error)?,
                Err(CallError::Refused(refusal)) if self.was_called_off() => {
                    return Ok(self.gave_up(&format!("{}: {}", refusal.message, refusal.cure)));
                }
                Err(error) => {
                    self.screen.close();
                    return Err(error.into());
                }
            }
        }
    }

    fn interrupted(&mut self) -> ExitCode {
        self.screen.close();
        match &self.known {
            Some(migration) => {
                eprintln!("\nThe migration of {} goes on.\n{}", clean_line(&migration.vm), hints(migration.id))
            }
            None => eprintln!("\nWhat was begun goes on; `skein migration list` shows it."),
        }
        ExitCode::from(EXIT_INTERRUPTED)
    }

    /// Returns whether the last migration that was received was called off, so that another attempt was to follow.
    fn was_called_off(&self) -> bool {
        self.known.as_ref().is_some_and(|migration| migration.outcome == Some(Outcome::CalledOff))
    }

    /// Says why no further attempt follows one that was called off.
    fn gave_up(&mut self, why: &str) -> ExitCode {
        self.screen.close();
        if let Some(migration) = &self.known {
            let (vm, source) = (clean_line(&migration.vm), clean_line(&migration.source));
            eprintln!("{vm} stays on {source}; it was not tried again: {}", clean_line(why));
        }
        ExitCode::from(EXIT_CALLED_OFF)
    }

    fn left_in_doubt(&mut self) -> anyhow::Result<ExitCode> {
        self.screen.close();
        if let Some(migration) = self.known.as_ref().filter(|_| !self.json) {
            print(&doubt_text(migration))?;
        }
        Ok(ExitCode::from(EXIT_IN_DOUBT))
    }

    /// Looks for an agent that was gone.
    ///
    /// # Errors
    ///
    /// An error if the agent is gone, or silent, for too long.
    fn hear_nothing(&mut self) -> anyhow::Result<()> {
        let patience = if self.known.is_some() { self.waits.silence } else { self.waits.first };
        match self.lost {
            Some(since) if self.conversation.is_none() => {
                if since.elapsed() >= self.waits.restart {
                    self.screen.close();
                    match &self.known {
                        Some(migration) => anyhow::bail!(
                            "the agent is gone, and with it the view of the migration, not the migration: start the \
                             agent, then `skein migration watch {}`",
                            migration.id
                        ),
                        None => anyhow::bail!(
                            "the agent is gone, and did not say whether it began: start the agent, then see `skein \
                             migration list`"
                        ),
                    }
                }
                std::thread::sleep(RETRY_PERIOD);
                self.ask_again()?;
                self.heard = Instant::now();
            }
            None if self.known.is_none() && !self.has_said_why && self.heard.elapsed() >= SAID_AFTER => {
                self.has_said_why = true;
                if matches!(self.opening, Opening::Begin(..)) && agent_asks_controllers() {
                    eprintln!("the agent checks the move, and asks the cluster's controllers whether it may begin");
                }
            }
            _ if self.heard.elapsed() >= patience => return Err(CallError::Silent(patience).into()),
            _ => {}
        }
        Ok(())
    }

    /// Asks an agent that was gone for the rest, or for the whole migration once more. If the agent is not back, there
    /// is no conversation yet.
    fn ask_again(&mut self) -> Result<(), CallError> {
        let asked = match &self.known {
            Some(migration) => self.client.ask(&Request::MigrationWatch { id: migration.id.to_string() }),
            None => self.opening.ask(self.client),
        };
        match asked {
            Ok(conversation) => self.conversation = Some(conversation),
            Err(error) if error.may_pass() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Handles that the agent closed the connection.
    fn lose(&mut self, error: CallError) -> anyhow::Result<()> {
        let text = "the agent is gone; waiting for it to come back";
        match &self.known {
            Some(migration) if self.lost.is_none() => self.screen.note(migration, text),
            Some(_) => {}
            None if !self.opening.may_be_repeated() => {
                return Err(anyhow::Error::new(error)
                    .context("the agent hung up before it said whether it began: see `skein migration list`"));
            }
            None if self.lost.is_none() => eprintln!("{text}"),
            None => {}
        }
        self.conversation = None;
        self.lost.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Shows a reply. Returns the exit code if the reply was the last.
    fn hear(&mut self, reply: Reply) -> anyhow::Result<Option<ExitCode>> {
        self.heard = Instant::now();
        self.lost = None;
        if self.json {
            print(&(serde_json::to_string(&reply)? + "\n"))?;
        }
        match reply {
            Reply::Progress(migration) => {
                if self.until == Until::Held && is_held(&migration) {
                    self.screen.close();
                    if !self.json {
                        print(&held_text(&migration, &held_hints(&migration)))?;
                    }
                    return Ok(Some(ExitCode::SUCCESS));
                }
                self.progress(migration)?;
                Ok(None)
            }
            Reply::Check(check) => {
                let blocks = check.blocks();
                if !self.json && (blocks || !check.problems.is_empty() || check.forecast.is_some()) {
                    self.screen.line(check_text(&check).trim_end())?;
                }
                Ok(match blocks {
                    true if self.was_called_off() => Some(self.gave_up("something blocks it now")),
                    true => Some(ExitCode::from(EXIT_BLOCKED)),
                    false => None,
                })
            }
            Reply::Migration(migration) => {
                self.screen.close();
                if !self.json {
                    print(&(end_text(&migration) + &killed_text(&migration)))?;
                }
                Ok(Some(exit_code(&migration)))
            }
            other => {
                self.screen.close();
                Err(unexpected(&other).into())
            }
        }
    }

    fn progress(&mut self, migration: Box<Migration>) -> anyhow::Result<()> {
        if migration.in_doubt && self.doubt.is_none() && !self.screen.tells_lines() {
            self.screen.note(&migration, IN_DOUBT_TEXT);
        }
        self.doubt = migration.in_doubt.then(|| self.doubt.unwrap_or_else(Instant::now));
        let is_same = |before: &Migration| before.id == migration.id;
        if self.known.as_ref().is_some_and(|before| !is_same(before)) {
            self.screen.note(&migration, &format!("begun again, as {}", migration.id));
        }
        if migration.outcome == Some(Outcome::CalledOff) {
            // The agent sends this again and again until the next attempt has begun.
            let is_told = |before: &Migration| is_same(before) && before.outcome == migration.outcome;
            if !self.known.as_ref().is_some_and(|before| is_told(before)) {
                self.screen.note(&migration, &format!("called off: {}", clean_line(&reason(&migration))));
            }
        } else {
            self.screen.show(&migration)?;
        }
        self.known = Some(migration);
        Ok(())
    }
}

fn hints(id: MigrationId) -> String {
    format!("  to watch it      skein migration watch {id}\n  to call it off   skein migration cancel {id}")
}

fn doubt_text(migration: &Migration) -> String {
    let (vm, other, id) = (clean_line(&migration.vm), clean_line(other_host(migration)), migration.id);
    format!(
        "{vm} is IN DOUBT: it is paused, since this host cannot know whether it runs on {other}.\n\
         It settles by itself once the two agents can talk: mend the network, or start the agent on {other}.\n\
         If {other} is off, and you have made sure that it is:\n  \
         skein migration resolve {id} --other-host-is-off\n"
    )
}

/// Returns the last sentence about a migration.
pub fn end_text(migration: &Migration) -> String {
    let (vm, source, target) =
        (clean_line(&migration.vm), clean_line(&migration.source), clean_line(&migration.target));
    let took = duration(migration.elapsed_ms);
    let reason = super::text::clean_line(&reason(migration));
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    match (migration.outcome, migration.in_doubt) {
        (Some(Outcome::Moved), _) => {
            let downtime =
                migration.downtime_ms.map(|ms| format!(", stood still for {}", duration(ms))).unwrap_or_default();
            let copied = match &migration.copy {
                Some(copy) => {
                    let rounds = count(usize::try_from(copy.round).unwrap_or(usize::MAX), "round");
                    let wire = wire_words(copy).map(|share| format!(", {share} of it on the wire")).unwrap_or_default();
                    format!("; {} copied in {rounds}{wire}", about_bytes(copy.transferred_bytes))
                }
                None => String::new(),
            };
            format!("{vm} runs on {target}: moved in {took}{downtime}{copied}\n")
        }
        (Some(Outcome::CalledOff), _) => {
            format!(
                "{vm} stays on {source}, after {took}{reason}\n  what happened: skein migration show {} --events\n",
                migration.id
            )
        }
        (Some(Outcome::Ended), _) => format!("{vm} ended during the migration, after {took}{reason}\n"),
        (None, true) => doubt_text(migration),
        (None, false) => {
            let stage = migration.stage.map_or("under way", |stage| stage.words().1);
            format!("{vm}: migration {} from {source} to {target}, {stage}\n{}\n", migration.id, hints(migration.id))
        }
    }
}

/// Returns a line for each guest that the kernel killed during the migration, at either host.
fn killed_text(migration: &Migration) -> String {
    let notes = migration.events.iter().filter_map(|logged| match &logged.event {
        LogEntry::Note { text } if text.starts_with(KERNEL_KILLED) => Some(clean_line(text)),
        _ => None,
    });
    notes.map(|text| format!("meanwhile {text}\n")).collect()
}

/// Returns `attempt 2 of 4`, `attempt 2 of 4, 3 not begun`, or `None` if there is only one.
pub fn attempt_words(migration: &Migration) -> Option<String> {
    let attempt = migration.attempt.filter(|attempt| attempt.of > 1)?;
    let not_begun = attempt.not_begun.map(|number| format!(", {number} not begun")).unwrap_or_default();
    Some(format!("attempt {} of {}{not_begun}", attempt.number, attempt.of))
}

fn is_held(migration: &Migration) -> bool {
    migration.stage == Some(MigrationPhase::Source(SourcePhase::Held)) && migration.outcome.is_none()
}

/// Returns whether the figures of the copy mean something now.
fn copies(migration: &Migration) -> bool {
    use MigrationPhase::{Source, Target};
    let stage = migration.stage;
    use SourcePhase::{Held, Precopy, Switchover};
    matches!(stage, Some(Source(Precopy | Held | Switchover) | Target(TargetPhase::Ready)))
}

/// Returns `round 2, 1.2 GiB of 4 GiB left`.
fn left_words(copy: &CopyProgress) -> String {
    format!("round {}, {} of {} left", copy.round, about_bytes(copy.remaining_bytes), about_bytes(copy.total_bytes))
}

/// Returns `dirties 21 MB/s`, or `None` if the rate is unknown or part of the forecast.
pub fn dirties(copy: &CopyProgress) -> Option<String> {
    let is_news = copy.dirty_bytes_per_s > 0 && !matches!(copy.converges, Some(Convergence::Never(_)));
    is_news.then(|| format!("dirties {}/s", decimal(copy.dirty_bytes_per_s as f64, "B")))
}

/// Returns `4.83 Gb/s of RAM (wire: eth0 940 Mb/s, eth1 943 Mb/s), dirties 21 MB/s`. QEMU's figures are of the last
/// round or of the last moments. Figures that QEMU does not have yet are left out.
fn rate_words(copy: &CopyProgress, nics: &[(String, f64)], limit: Option<&RateLimit>, stopped: bool) -> String {
    let nics = nics.iter().map(|(nic, rate)| format!("{nic} {}", bps(*rate))).collect::<Vec<_>>().join(", ");
    let mut words = match (copy.bits_per_s, nics.is_empty()) {
        (0, true) => vec![],
        (0, false) => vec![nics],
        (rate, true) => vec![bps(rate as f64)],
        (rate, false) => vec![format!("{} of RAM (wire: {nics})", bps(rate as f64))],
    };
    words.extend(limit.map(limit_words));
    // A guest that stands still dirties nothing any more.
    if copy.bits_per_s > 0 && !stopped {
        words.extend(dirties(copy));
    }
    words.join(", ")
}

/// Returns `limited to 1 Gbit/s, by its host's limit`.
pub fn limit_words(limit: &RateLimit) -> String {
    format!("limited to {limit}")
}

/// Returns `converges in about 5 s`, `guest throttled by 45 %`.
pub fn copy_words(copy: &CopyProgress) -> Vec<String> {
    let throttled = (copy.throttle_percent > 0).then(|| format!("guest throttled by {} %", copy.throttle_percent));
    copy.converges.iter().map(Convergence::to_string).chain(throttled).collect()
}

/// Returns `round 2, 1.2 GiB of 4 GiB left, 940 Mb/s, dirties 21 MB/s, converges in about 5 s`.
pub fn copied_words(copy: &CopyProgress) -> String {
    let rate = (copy.bits_per_s > 0).then(|| bps(copy.bits_per_s as f64));
    let words = std::iter::once(left_words(copy)).chain(rate).chain(dirties(copy)).chain(copy_words(copy));
    words.collect::<Vec<_>>().join(", ")
}

/// Returns `57 %`, the part of the copied bytes that is on the wire, or `None` if next to nothing is saved.
fn wire_words(copy: &CopyProgress) -> Option<String> {
    let share = copy.pages.as_ref()?.counts.wire_per_guest_byte()?;
    (share < 0.99).then(|| format!("{:.0} %", share * 100.0))
}

/// Returns `57 % on the wire (20 % zero, 59 % compressed 3.4:1, 21 % as it is)`, or `None` if next to nothing is saved.
fn kinds_words(copy: &CopyProgress) -> Option<String> {
    let wire = wire_words(copy)?;
    let counts = &copy.pages.as_ref()?.counts;
    let part = |bytes: u64| format!("{:.0} %", bytes as f64 * 100.0 / counts.guest_bytes() as f64);
    let kinds = [
        Some(format!("{} zero", part(counts.zero_bytes()))),
        Some(counts.changed_bytes() + counts.unchanged_bytes())
            .filter(|bytes| *bytes > 0)
            .map(|bytes| format!("{} as what changed", part(bytes))),
        counts.ratio().map(|ratio| format!("{} compressed {ratio:.1}:1", part(counts.unpacked_bytes()))),
        Some(counts.written_bytes()).filter(|bytes| *bytes > 0).map(|bytes| format!("{} by NICs", part(bytes))),
        Some(format!("{} as it is", part(counts.stored_bytes()))),
    ];
    Some(format!("{wire} on the wire ({})", kinds.into_iter().flatten().collect::<Vec<_>>().join(", ")))
}

/// Returns what each NIC carries, over all its paths, and whether by RDMA.
fn nics(paths: &[PathView]) -> Vec<(String, f64)> {
    let mut nics: Vec<(String, f64)> = Vec::new();
    for path in paths.iter().filter(|path| path.usable) {
        let over = if path.rdma_connections > 0 { " (RDMA)" } else { "" };
        let name = format!("{}{over}", clean_line(&path.nic));
        match nics.iter_mut().find(|(known, _)| *known == name) {
            Some((_, rate)) => *rate += path.bits_per_s as f64,
            None => nics.push((name, path.bits_per_s as f64)),
        }
    }
    nics.sort_by(|(a, _), (b, _)| a.cmp(b));
    nics
}

/// Returns `waits: no path may carry data (eth0 → 10.7.0.2 carries no data: its network is excluded)`, or `None` if a
/// path may, or if none is up.
fn waits_words(paths: &[PathView]) -> Option<String> {
    let up: Vec<&PathView> = paths.iter().filter(|path| path.usable).collect();
    let waits = !up.is_empty() && up.iter().all(|path| path.note == EXCLUDED_PATH);
    let of = |path: &PathView| format!("{} → {} {EXCLUDED_PATH}", clean_line(&path.nic), clean_line(&path.remote));
    let more = |up: &[&PathView]| match up.len() - 1 {
        0 => String::new(),
        more => format!("; so it is of {more} more"),
    };
    waits.then(|| format!("waits: no path may carry data ({}{})", of(up[0]), more(&up)))
}

/// Returns a line of a migration's progress: `   3.2 s  web1: copying while it runs, round 2 ...`.
fn progress_line(migration: &Migration) -> String {
    let mut words = vec![match migration.stage {
        _ if migration.in_doubt => IN_DOUBT_TEXT.to_owned(),
        Some(stage) => stage.words().1.to_owned(),
        None => "beginning".to_owned(),
    }];
    words.extend(attempt_words(migration));
    words.extend(waits_words(&migration.paths));
    words.extend(migration.hold.iter().filter(|_| is_held(migration)).flat_map(hold_words));
    if let Some(copy) = migration.copy.as_ref().filter(|_| copies(migration)) {
        let stopped = migration.stage == Some(MigrationPhase::Source(SourcePhase::Switchover));
        let limit = migration.rate_limit.as_ref();
        words.extend([left_words(copy), rate_words(copy, &nics(&migration.paths), limit, stopped)]);
        words.extend(if stopped { Vec::new() } else { copy_words(copy) });
        words.extend(kinds_words(copy));
        words.retain(|part| !part.is_empty());
    }
    format!("{}{}", stamp(migration), words.join(", "))
}

fn stamp(migration: &Migration) -> String {
    format!("{:>12}  {}: ", duration(migration.elapsed_ms), clean_line(&migration.vm))
}

/// Where progress is shown.
struct Screen {
    json: bool,
    bars: Option<Bars>,
    /// What was shown last, and how many milliseconds the migration had taken.
    last_shown: Option<(Standing, u64)>,
}

/// Where a migration stands: a change is shown at once.
type Standing = (MigrationId, Option<MigrationPhase>, bool);

struct Bars {
    all: MultiProgress,
    head: ProgressBar,
    ram: ProgressBar,
    rate: ProgressBar,
    /// Whether the migration converges, once that is known.
    forecast: Option<ProgressBar>,
    /// What became of the bytes, once there is something to show.
    pages: Option<ProgressBar>,
    paths: Vec<ProgressBar>,
    /// The highest rate that a path has had: the full length of all paths' bars.
    fastest: u64,
}

impl Screen {
    fn new(json: bool) -> Screen {
        let terminal = !json && std::io::IsTerminal::is_terminal(&std::io::stdout());
        Screen { json, bars: terminal.then(Bars::new), last_shown: None }
    }

    /// Returns whether each change of phase is printed as a line anyway.
    fn tells_lines(&self) -> bool {
        !self.json && self.bars.is_none()
    }

    /// Prints a line that stays.
    fn line(&self, text: &str) -> anyhow::Result<()> {
        match &self.bars {
            // This fails only if the terminal is gone.
            Some(bars) => {
                let _ = bars.all.println(text);
                Ok(())
            }
            None => print(&format!("{text}\n")),
        }
    }

    /// Prints something out of the ordinary. With JSON it goes to standard error.
    fn note(&self, migration: &Migration, text: &str) {
        let line = stamp(migration) + text;
        if self.json {
            eprintln!("{line}");
        } else {
            let _ = self.line(&line);
        }
    }

    fn show(&mut self, migration: &Migration) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        if let Some(bars) = &mut self.bars {
            bars.show(migration);
            return Ok(());
        }
        let (now, at_ms): (Standing, u64) = ((migration.id, migration.stage, migration.in_doubt), migration.elapsed_ms);
        let due = self.last_shown.is_none_or(|(last, ms)| now != last || at_ms.abs_diff(ms) >= LINE_PERIOD_MS);
        if due {
            self.last_shown = Some((now, at_ms));
            self.line(&progress_line(migration))?;
        }
        Ok(())
    }

    /// Removes the bars.
    fn close(&mut self) {
        let Some(bars) = self.bars.take() else { return };
        // A bar that is only dropped would be drawn once more.
        let lines = [bars.head, bars.ram, bars.rate].into_iter().chain(bars.forecast).chain(bars.pages);
        lines.chain(bars.paths).for_each(|line| line.finish_and_clear());
        let _ = bars.all.clear();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

impl Bars {
    fn new() -> Bars {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let add = |template, characters| {
            let style = ProgressStyle::with_template(template).expect("is a template").progress_chars(characters);
            all.add(ProgressBar::new(1).with_style(style))
        };
        let head = add("{wide_msg}", "=> ");
        let ram = add("  RAM   [{bar:20}] {wide_msg}", "=> ");
        let rate = add("  rate  {wide_msg}", "=> ");
        Bars { all, head, ram, rate, forecast: None, pages: None, paths: Vec::new(), fastest: 1 }
    }

    fn show(&mut self, migration: &Migration) {
        let (source, target) = (clean_line(&migration.source), clean_line(&migration.target));
        let vm = clean_line(&migration.vm);
        let stage = match migration.stage {
            _ if migration.in_doubt => IN_DOUBT_TEXT,
            Some(stage) => stage.words().1,
            None => "beginning",
        };
        let attempt = attempt_words(migration).map(|words| format!(", {words}")).unwrap_or_default();
        let elapsed = duration(migration.elapsed_ms);
        self.head.set_message(format!("{vm}  {source} → {target}  {stage}{attempt}, {elapsed}"));
        if let Some(copy) = &migration.copy {
            self.ram.set_length(copy.total_bytes.max(1));
            self.ram.set_position(copy.total_bytes.saturating_sub(copy.remaining_bytes));
            self.ram.set_message(left_words(copy));
            let limit = migration.rate_limit.as_ref();
            let waits = waits_words(&migration.paths);
            self.rate.set_message(waits.unwrap_or_else(|| rate_words(copy, &[], limit, !copies(migration))));
            let line = |template| {
                let style = ProgressStyle::with_template(template).expect("is a template");
                self.all.insert_after(&self.rate, ProgressBar::new(1).with_style(style))
            };
            if let Some(words) = kinds_words(copy) {
                self.pages.get_or_insert_with(|| line("  pages {wide_msg}")).set_message(words);
            }
            let mut words = if copies(migration) { copy_words(copy) } else { Vec::new() };
            words.extend(migration.hold.iter().filter(|_| is_held(migration)).flat_map(hold_words));
            if !words.is_empty() || self.forecast.is_some() {
                self.forecast.get_or_insert_with(|| line("        {wide_msg}")).set_message(words.join(", "));
            }
        }
        let paths = &migration.paths[..migration.paths.len().min(PATHS_SHOWN)];
        while self.paths.len() < paths.len() {
            let style = ProgressStyle::with_template("        [{bar:20}] {wide_msg}").expect("is a template");
            self.paths.push(self.all.add(ProgressBar::new(1).with_style(style.progress_chars("# "))));
        }
        while self.paths.len() > paths.len() {
            if let Some(bar) = self.paths.pop() {
                bar.finish_and_clear();
                self.all.remove(&bar);
            }
        }
        self.fastest = paths.iter().map(|path| path.bits_per_s).fold(self.fastest, u64::max);
        for (bar, path) in self.paths.iter().zip(paths) {
            bar.set_length(self.fastest);
            bar.set_position(if path.usable { path.bits_per_s } else { 0 });
            let rate = match path.usable {
                true if path.note.is_empty() && path.rdma_connections > 0 => bps(path.bits_per_s as f64) + ", RDMA",
                true if path.note.is_empty() => bps(path.bits_per_s as f64),
                true => clean_line(&path.note).to_string(),
                false => "DOWN".into(),
            };
            bar.set_message(format!("{} → {}  {rate}", clean_line(&path.nic), clean_line(&path.remote)));
        }
        for bar in [&self.head, &self.ram, &self.rate] {
            bar.tick();
        }
    }
}

/// Returns the word for a host's part in a migration.
pub fn role(role: Role) -> &'static str {
    match role {
        Role::Source => "source",
        Role::Target => "target",
    }
}

#[cfg(test)]
mod tests {
    use skein_api::CopyRates;

    use super::*;

    fn copy(remaining_bytes: u64, bits_per_s: u64, dirty_bytes_per_s: u64) -> CopyProgress {
        let total_bytes = 4 << 30;
        let (transferred_bytes, round) = (total_bytes - remaining_bytes, 2);
        CopyProgress {
            total_bytes,
            remaining_bytes,
            remaining_wire_bytes: None,
            transferred_bytes,
            round,
            dirty_bytes_per_s,
            bits_per_s,
            converges: None,
            throttle_percent: 0,
            pages: None,
        }
    }

    #[test]
    fn a_copy_is_in_words() {
        let words = |converges, throttle_percent| {
            let copy = CopyProgress { converges, throttle_percent, ..copy(1_000_000_000, 800_000_000, 50_000_000) };
            (rate_words(&copy, &[], None, false), copy_words(&copy).join(", "))
        };
        let both = |rate: &str, forecast: &str| (rate.to_owned(), forecast.to_owned());
        assert_eq!(words(None, 0), both("800 Mb/s, dirties 50 MB/s", ""));
        let soon = Convergence::In { seconds: 12.2 };
        assert_eq!(words(Some(soon), 0), both("800 Mb/s, dirties 50 MB/s", "converges in about 12 s"));
        let pace = CopyRates { dirties_bytes_per_s: 310_000_000, moves_bytes_per_s: 230_000_000 };
        let never = "will not converge: dirties 310 MB/s, moves 230 MB/s, guest throttled by 45 %";
        assert_eq!(words(Some(Convergence::Never(pace)), 45), both("800 Mb/s", never));
    }

    /// Makes an agent that plays `script` to a connection, and then stays silent or ends.
    fn agent(dir: &std::path::Path, script: &'static [&'static str], stays: bool) -> Client {
        use std::io::Write;
        let path = dir.join("agent.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for line in script {
                writeln!(stream, "{line}").unwrap();
            }
            if stays {
                std::thread::park_timeout(Duration::from_secs(60));
            }
        });
        Client::new(&path)
    }

    const PROGRESS: &str = r#"{"reply":"progress","id":"00000000000000aa","vm":"web1","role":"source","source":"a",
        "target":"b","stage":{"source":"grant"},"outcome":null,"why":null,"detail":"","in_doubt":false,"begun":"",
        "elapsed_ms":1,"downtime_ms":null,"copy":null,"paths":[]}"#;

    const SHORT: Duration = Duration::from_millis(150);
    /// Longer than any test takes, also on a busy machine.
    const LONG: Duration = Duration::from_secs(600);
    /// No time is short.
    const PATIENT: FollowTimes = FollowTimes { first: LONG, silence: LONG, restart: LONG, doubt: LONG };

    fn followed(script: &'static [&'static str], stays: bool, waits: FollowTimes) -> anyhow::Result<ExitCode> {
        let dir = tempfile::tempdir().unwrap();
        let client = agent(dir.path(), script, stays);
        let request = Request::MigrationWatch { id: "web1".into() };
        Follower::new(&client, Opening::Watch(request), Until::Over, true, waits)?.run()
    }

    #[test]
    fn no_wait_is_for_ever() {
        let line = |text: &str| -> &'static [&'static str] { vec![&*text.replace('\n', "").leak()].leak() };
        let silent = FollowTimes { first: SHORT, silence: SHORT, ..PATIENT };
        for script in [&[][..], line(PROGRESS)] {
            let error = followed(script, true, silent).unwrap_err().to_string();
            assert!(error.contains("has not said a word"), "{error}");
        }
        let error = followed(line(PROGRESS), false, FollowTimes { restart: SHORT, ..PATIENT }).unwrap_err().to_string();
        assert!(error.contains("skein migration watch 00000000000000aa"), "{error}");
        let doubt = PROGRESS.replace("\"in_doubt\":false", "\"in_doubt\":true");
        let doubtful = FollowTimes { doubt: SHORT, ..PATIENT };
        assert_eq!(followed(line(&doubt), true, doubtful).unwrap(), ExitCode::from(EXIT_IN_DOUBT));
    }

    #[test]
    fn a_guest_that_is_not_tried_again_stays_where_it_is() {
        let line = |text: &str| -> &'static str { text.replace('\n', "").leak() };
        let called_off = PROGRESS.replace("\"outcome\":null", "\"outcome\":\"kept\"");
        let refused = r#"{"reply":"error","message":"b does not answer","cure":"start its agent"}"#;
        let blocked = r#"{"reply":"check","vm":"web1","to":"b","problems":[
            {"kind":"ram","severity":"blocks","what":"full","cure":"wait"}],"forecast":null}"#;
        for last in [refused, blocked] {
            let script: &'static [&'static str] = vec![line(&called_off), line(last)].leak();
            assert_eq!(followed(script, true, PATIENT).unwrap(), ExitCode::from(EXIT_CALLED_OFF), "{last}");
        }
        // Nothing was begun.
        assert!(followed(vec![line(refused)].leak(), true, PATIENT).is_err());
        assert_eq!(followed(vec![line(blocked)].leak(), true, PATIENT).unwrap(), ExitCode::from(EXIT_BLOCKED));
    }

    #[test]
    fn what_is_not_known_yet_is_left_out() {
        let eth0 = [("eth0".to_owned(), 5e8)];
        assert_eq!(rate_words(&copy(1, 0, 0), &[], None, false), "");
        assert_eq!(rate_words(&copy(1, 0, 0), &eth0, None, false), "eth0 500 Mb/s");
        assert_eq!(rate_words(&copy(1, 8_000_000, 0), &eth0, None, true), "8.00 Mb/s of RAM (wire: eth0 500 Mb/s)");
    }

    fn path(nic: &str, usable: bool, bits_per_s: u64) -> PathView {
        PathView {
            nic: nic.into(),
            remote: "r".into(),
            usable,
            sent_bytes: 0,
            rdma_connections: 0,
            rdma: None,
            bits_per_s,
            note: String::new(),
            connections: String::new(),
        }
    }

    #[test]
    fn a_migration_that_no_path_may_carry_says_that_it_waits() {
        let excluded = |nic: &str| PathView { note: EXCLUDED_PATH.into(), ..path(nic, true, 0) };
        let words = waits_words(&[excluded("eth0"), excluded("eth1"), path("eth2", false, 0)]).unwrap();
        assert_eq!(
            words,
            "waits: no path may carry data (eth0 → r carries no data: its network is excluded; so it is of 1 more)"
        );
        assert_eq!(waits_words(&[excluded("eth0"), path("eth1", true, 0)]), None);
        assert_eq!(waits_words(&[path("eth2", false, 0)]), None);
    }

    #[test]
    fn a_nics_paths_are_summed() {
        let mut paths = [path("eth1", true, 5), path("eth0", true, 3), path("eth1", true, 2), path("eth2", false, 9)];
        assert_eq!(nics(&paths), [("eth0".to_owned(), 3.0), ("eth1".to_owned(), 7.0)]);
        paths[1].rdma_connections = 1;
        assert_eq!(nics(&paths)[0].0, "eth0 (RDMA)");
    }
}
