//! Follows an operation until it is over: bars on a terminal, lines in a pipe, JSON for programs.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use skein_api::cluster::{Move, MoveState, Operation, OperationKind, OperationState, VmMigration};
use skein_api::{Migration, Outcome, Reply, Role};
use skein_client::{ControllerClient, ControllerError};
use skein_units::duration;

use super::output::Output;
use super::plan::moves_from;
use super::words::{is_moveless, kind, made, move_state, progress, way};
use crate::commands::follow::copied_words;
use crate::commands::hold::{as_told, held_text};
use crate::commands::local::{EXIT_BLOCKED, EXIT_CALLED_OFF, EXIT_INTERRUPTED};
use crate::commands::text::{clean_line, print};

/// How often the operation is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// How often it is checked whether a signal came.
const SIGNAL_CHECK_PERIOD: Duration = Duration::from_millis(50);
/// How long controllers may be out of reach.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two lines in a pipe while only figures change.
const LINE_PERIOD: Duration = Duration::from_secs(5);
/// The most moves that get a line of their own on a terminal.
const MOVES_SHOWN: usize = 16;

/// After how long without a line it is said that an operation goes on.
const QUIET_MAX: Duration = Duration::from_secs(10);

/// Returns the part of `--help` that scripts are written from, of a command that has its own meaning for 3, or none.
pub fn exit_codes(blocked: Option<&str>) -> String {
    let is_blocked = |line: &&str| line.starts_with("    3  ");
    let lines = EXIT_CODES.lines().filter_map(|line| match blocked {
        _ if !is_blocked(&line) => Some(line.to_owned()),
        blocked => blocked.map(|meaning| format!("    3  {meaning}")),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The part of `--help` that scripts are written from.
pub const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  a part of it was not done, or an error; what it was is said
    2  wrong arguments
    3  no host can take the VM: nothing was begun
    4  somebody called it off
  130  interrupted while watching; the operation goes on";

/// Shows an operation until it is over. Ctrl-C ends the watching, not the operation.
pub fn follow(client: &ControllerClient, operation: Operation, output: Output) -> anyhow::Result<ExitCode> {
    watch(client, operation, Until::Over, output)
}

/// Shows the migration of a VM until the VM is held, if it `is_held` when it may be, or the migration is over. For a
/// program the last line is that of the migration, as an agent would tell of it.
pub fn follow_migration(
    client: &ControllerClient,
    operation: Operation,
    vm: &str,
    is_held: bool,
    output: Output,
) -> anyhow::Result<ExitCode> {
    watch(client, operation, if is_held { Until::Held(vm) } else { Until::Moved(vm) }, output)
}

/// Until when an operation is shown.
#[derive(Clone, Copy)]
enum Until<'a> {
    /// Until it is over.
    Over,
    /// Until the migration of this VM is over.
    Moved(&'a str),
    /// Until this VM is held, or its migration is over.
    Held(&'a str),
}

impl<'a> Until<'a> {
    /// Returns the VM that is moved.
    fn vm(self) -> Option<&'a str> {
        match self {
            Until::Over => None,
            Until::Moved(vm) | Until::Held(vm) => Some(vm),
        }
    }
}

/// Shows an operation until then.
fn watch(
    client: &ControllerClient,
    operation: Operation,
    until: Until<'_>,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let held = if let Until::Held(vm) = until { Some(vm) } else { None };
    let interrupt = skein_terminal::interrupt_flag()?;
    let mut screen = Screen::new(output);
    let (id, mut known) = (operation.id.clone(), operation);
    let mut heard = Instant::now();
    screen.show(&known)?;
    while !known.state.is_over() {
        if waited(&interrupt) {
            screen.close();
            eprintln!("skein: the {} goes on\n{}", kind(&known.kind), hints(&id));
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
        match client.operation(&id) {
            Ok(operation) => {
                (known, heard) = (operation, Instant::now());
                screen.show(&known)?;
                let vm = held.filter(|_| !known.state.is_over()).and_then(|vm| client.vm(vm).ok());
                if let Some(migration) = vm.and_then(|vm| vm.migration).filter(VmMigration::is_held) {
                    screen.close();
                    match output {
                        Output::Json => told(&Reply::Progress(Box::new(as_told(migration))))?,
                        Output::Text => {
                            let hints = cluster_hints(&migration.vm);
                            print(&held_text(&as_told(migration), &hints))?;
                        }
                    }
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Err(error) if error.may_pass() && heard.elapsed() < PATIENCE => screen.silence(&error),
            Err(error) => return Err(error.into()),
        }
    }
    screen.close();
    match (output, until.vm().and_then(|vm| migration_of(&known, vm))) {
        (Output::Text, _) => print(&end_text(&known))?,
        (Output::Json, Some(migration)) => told(&Reply::Migration(Box::new(migration)))?,
        (Output::Json, None) => {}
    }
    Ok(if is_blocked(&known) { ExitCode::from(EXIT_BLOCKED) } else { exit_code(known.state) })
}

/// Prints a line as `skein migrate` prints what an agent says.
fn told(reply: &Reply) -> anyhow::Result<()> {
    print(&(serde_json::to_string(reply)? + "\n"))
}

/// Returns the last migration of a VM by an operation that is over, as the source's agent would tell of it, as far as
/// the controller knows. `None`: no migration was begun.
fn migration_of(operation: &Operation, vm: &str) -> Option<Migration> {
    let of = operation.moves.iter().rfind(|of| of.vm == vm && of.migration.is_some())?;
    let outcome = match of.state {
        MoveState::Done => Some(Outcome::Moved),
        MoveState::Failed => Some(Outcome::CalledOff),
        MoveState::Left => Some(Outcome::Ended),
        MoveState::Waiting | MoveState::Begun => None,
    };
    let (begun, ended) = (of.begun.unwrap_or_default(), of.ended.unwrap_or_default());
    let time = i64::try_from(begun.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let detail = if outcome == Some(Outcome::Moved) { String::new() } else { of.detail.clone() };
    let to = of.to.as_deref().unwrap_or_default();
    Some(Migration {
        outcome,
        detail,
        begun: time.map(|time| time.to_string()).unwrap_or_default(),
        elapsed_ms: ended.0.saturating_sub(begun.0),
        downtime_ms: of.downtime_ms,
        copy: of.copy.clone(),
        ..Migration::new(of.migration?, vm, Role::Source, &of.from, to)
    })
}

/// Returns whether an operation is about one VM, which its message is about.
fn is_of_vm(operation: &Operation) -> bool {
    matches!(operation.kind, OperationKind::Start { .. } | OperationKind::Migrate { .. })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns whether an operation failed that found no host for its VM, so that nothing was begun.
fn is_blocked(operation: &Operation) -> bool {
    let is_begun = operation.moves.iter().any(|of| of.attempts > 0);
    is_of_vm(operation) && operation.state == OperationState::Failed && !operation.moves.is_empty() && !is_begun
}

/// Returns the exit code for the state of an operation.
pub fn exit_code(state: OperationState) -> ExitCode {
    match state {
        OperationState::Failed => ExitCode::FAILURE,
        OperationState::Cancelled => ExitCode::from(EXIT_CALLED_OFF),
        _ => ExitCode::SUCCESS,
    }
}

/// Returns how an operation that goes on is followed and called off.
pub fn hints(id: &str) -> String {
    let id = clean_line(id);
    format!("  follow it: skein operation watch {id}\n  call it off: skein operation cancel {id}")
}

/// Returns how a held migration goes on that the controller knows.
fn cluster_hints(vm: &str) -> String {
    let vm = clean_line(vm);
    format!(
        "  to have it switch   skein migration switch {vm}\n  \
         to see it           skein vm show {vm}\n  \
         to call it off      skein migration cancel {vm}\n"
    )
}

/// Waits for the next look. Returns whether a signal came.
fn waited(interrupt: &AtomicBool) -> bool {
    let end = Instant::now() + LOOK_PERIOD;
    while Instant::now() < end {
        if interrupt.load(Ordering::Relaxed) {
            return true;
        }
        std::thread::sleep(SIGNAL_CHECK_PERIOD);
    }
    false
}

/// Returns how an operation ended, with what was not done and why.
pub fn end_text(operation: &Operation) -> String {
    let took = operation.ended.map(|end| end.0.saturating_sub(operation.created.0));
    let took = took.map(|ms| format!(" after {}", duration(ms))).unwrap_or_default();
    let what = kind(&operation.kind);
    let made = made(operation);
    let message = clean_line(&operation.message);
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    let mut text = match operation.state {
        OperationState::Done | OperationState::Failed | OperationState::Cancelled if is_moveless(&operation.kind) => {
            let end = match operation.state {
                OperationState::Done => "is done",
                OperationState::Failed => "failed",
                _ => "was called off",
            };
            format!("{what} {end}{took}{message}\n")
        }
        OperationState::Done => match &operation.kind {
            OperationKind::Drain { host, .. } => {
                let has_left = |of: &Move| of.from == *host && of.state == MoveState::Done && of.off.is_none();
                let home = if operation.moves.iter().any(has_left) { " --bring-home" } else { "" };
                let host = clean_line(host);
                format!(
                    "{host} has no guest any more{took}: {made}{message}\n  \
                     let it take guests again: skein host resume {host}{home}\n"
                )
            }
            _ => format!("{what} is done{took}: {made}{message}\n"),
        },
        OperationState::Failed => format!("{what} failed{took}: {made}{message}\n"),
        OperationState::Cancelled => format!("{what} was called off{took}: {made}{message}\n"),
        _ => format!("{what} goes on: {}\n{}\n", progress(operation), hints(&operation.id)),
    };
    // A move may be planned again, and made then.
    let is_made = |vm: &str| operation.moves.iter().any(|of| of.vm == vm && of.state == MoveState::Done);
    // Of one VM the message says why.
    if is_of_vm(operation) && !operation.message.is_empty() {
        return text;
    }
    // What was tried before was told when it was.
    let is_last = |(at, of): &(usize, &Move)| !operation.moves.iter().skip(at + 1).any(|later| later.vm == of.vm);
    let undone = operation.moves.iter().enumerate().filter(is_last).map(|(_, of)| of);
    let undone = undone.filter(|of| matches!(of.state, MoveState::Failed | MoveState::Left));
    for of in undone.filter(|of| !is_made(&of.vm)) {
        let why = if of.detail.is_empty() { &of.reason } else { &of.detail };
        text += &format!("  {} {}: {}\n", clean_line(&of.vm), move_state(&operation.kind, of), clean_line(why));
    }
    text
}

/// Returns whether a move gave way to a later plan, which tells what becomes of its VM.
fn gave_way(of: &Move) -> bool {
    of.state == MoveState::Left && of.attempts == 0 && of.detail == "it was planned again"
}

/// Returns whether the end of an operation tells why a move failed: its message is that.
fn is_told_at_end(operation: &Operation, of: &Move) -> bool {
    let is_failed = of.state == MoveState::Failed && !of.detail.is_empty();
    operation.state.is_over() && is_failed && operation.message.contains(&of.detail)
}

/// Returns a line of a move: `web1: hosta -> hostb moving, 3.2 s of about 8 s`.
fn move_line(kind: &OperationKind, of: &Move, now_ms: u64) -> String {
    let since = of.begun.map(|begun| now_ms.saturating_sub(begun.0)).filter(|_| of.state == MoveState::Begun);
    let forecast = of.forecast_ms.map(|ms| format!(" of about {}", duration(ms))).unwrap_or_default();
    let since = since.map(|ms| format!(", {}{forecast}", duration(ms))).unwrap_or_default();
    let stood = of.downtime_ms.map(|ms| format!(", stood still for {}", duration(ms))).unwrap_or_default();
    let copied = of.copy.as_ref().map(|copy| format!(", {}", copied_words(copy))).unwrap_or_default();
    let attempt = if of.attempts > 1 { format!(", attempt {}", of.attempts) } else { String::new() };
    let detail = if of.detail.is_empty() { String::new() } else { format!(" ({})", clean_line(&of.detail)) };
    format!("{} {}{since}{copied}{stood}{attempt}{detail}", way(of), move_state(kind, of))
}

/// Where progress is shown.
struct Screen {
    output: Output,
    bars: Option<Bars>,
    /// What was printed of each move last.
    told: BTreeMap<usize, (MoveState, u32)>,
    last: Option<(String, Instant)>,
    is_silent: bool,
    /// How many moves were told of, with their reasons.
    planned: usize,
    /// When somebody began to watch.
    begun: Instant,
}

struct Bars {
    all: MultiProgress,
    head: ProgressBar,
    moves: Vec<ProgressBar>,
}

impl Screen {
    fn new(output: Output) -> Screen {
        let bars = (output == Output::Text && std::io::stdout().is_terminal()).then(Bars::new);
        Screen { output, bars, told: BTreeMap::new(), last: None, is_silent: false, planned: 0, begun: Instant::now() }
    }

    fn show(&mut self, operation: &Operation) -> anyhow::Result<()> {
        self.is_silent = false;
        if self.output == Output::Json {
            let line = serde_json::to_string(operation)? + "\n";
            if self.last.as_ref().is_some_and(|(last, _)| *last == line) {
                return Ok(());
            }
            print(&line)?;
            self.last = Some((line, Instant::now()));
            return Ok(());
        }
        let is_planned = operation.moves.len() != self.planned && operation.state != OperationState::Planning;
        // What was told before is not told again: a later plan adds moves.
        let first_new = if is_planned { self.planned.min(operation.moves.len()) } else { operation.moves.len() };
        if is_planned {
            let new = moves_from(operation, first_new, |of| is_told_at_end(operation, of));
            self.planned = operation.moves.len();
            self.say(new.trim_end())?;
        }
        let now = operation.created.0.max(unix_ms());
        let mut lines = Vec::new();
        for (place, of) in operation.moves.iter().enumerate() {
            // Whether the end tells why, or another attempt follows, is seen in a moment.
            let is_last = place + 1 == operation.moves.len();
            if of.state == MoveState::Failed && is_last && is_of_vm(operation) && !operation.state.is_over() {
                continue;
            }
            let state = (of.state, of.attempts);
            // Of a VM that goes nowhere the plan has told why.
            let is_told = of.state == MoveState::Waiting || of.to.is_none() || gave_way(of);
            // So has the table of one that failed before it was looked at, or the operation's end tells.
            let is_in_table = place >= first_new && of.state == MoveState::Failed;
            let is_told = is_told || is_in_table || is_told_at_end(operation, of);
            if self.told.insert(place, state) != Some(state) && !is_told {
                lines.push(move_line(&operation.kind, of, now));
            }
        }
        let mut head = format!("{}: {}", kind(&operation.kind), progress(operation));
        if let Some(bars) = &mut self.bars {
            let ended = operation.moves.iter().enumerate().filter(|(_, of)| of.state.is_over());
            // What is under way has a line of its own.
            let ended: Vec<String> = ended.map(|(_, of)| move_line(&operation.kind, of, now)).collect();
            lines.retain(|line| ended.contains(line));
            if is_moveless(&operation.kind) && !operation.state.is_over() {
                head += &format!(" ({} so far)", duration(millis(self.begun.elapsed())));
            }
            bars.show(operation, &head, &lines, now);
            return Ok(());
        }
        // The end is told with its reason once the operation is over.
        if is_moveless(&operation.kind) && operation.state.is_over() {
            return lines.iter().try_for_each(|line| print(&format!("{line}\n")));
        }
        // What a fencing says is a step of it, and no figure.
        let is_step = is_moveless(&operation.kind);
        let is_due = |at: &Instant| is_step || at.elapsed() >= LINE_PERIOD;
        let is_due = self.last.as_ref().is_none_or(|(last, at)| *last != head && is_due(at));
        if is_due || !lines.is_empty() {
            self.last = Some((head.clone(), Instant::now()));
            lines.push(head.clone());
            // How far a copy is is told of one guest, and of many how many have moved.
            let mut under_way = operation.moves.iter().filter(|of| of.state == MoveState::Begun);
            if let (Some(of), None) = (under_way.next(), under_way.next())
                && of.copy.is_some()
                && lines.len() == 1
            {
                lines.push(move_line(&operation.kind, of, now));
            }
        }
        let is_quiet = self.last.as_ref().is_none_or(|(_, at)| at.elapsed() >= QUIET_MAX);
        if lines.is_empty() && is_quiet && !operation.state.is_over() {
            lines.push(format!("{head} ({} so far)", duration(millis(self.begun.elapsed()))));
            self.last = Some((head, Instant::now()));
        }
        lines.iter().try_for_each(|line| print(&format!("{line}\n")))
    }

    /// Prints lines that stay.
    fn say(&self, text: &str) -> anyhow::Result<()> {
        match &self.bars {
            // This fails only if the terminal is gone.
            Some(bars) => {
                let _ = bars.all.println(text);
                Ok(())
            }
            None => print(&format!("{text}\n")),
        }
    }

    /// Says once that controllers are out of reach.
    fn silence(&mut self, error: &ControllerError) {
        if !std::mem::replace(&mut self.is_silent, true) {
            let line = format!("skein: {error}; the operation goes on, and so does this command");
            match &self.bars {
                Some(bars) => drop(bars.all.println(line)),
                None => eprintln!("{line}"),
            }
        }
    }

    fn close(&mut self) {
        let Some(bars) = self.bars.take() else { return };
        // A bar that is only dropped would be drawn once more.
        [bars.head].into_iter().chain(bars.moves).for_each(|line| line.finish_and_clear());
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
        let head = all.add(ProgressBar::new(1));
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
            head.set_style(style);
        }
        Bars { all, head, moves: Vec::new() }
    }

    fn show(&mut self, operation: &Operation, head: &str, lines: &[String], now_ms: u64) {
        for line in lines {
            // This fails only if the terminal is gone.
            let _ = self.all.println(line);
        }
        self.head.set_length(u64::from(operation.progress.moves.max(1)));
        self.head.set_position(u64::from(operation.progress.moves_done));
        self.head.set_message(head.to_owned());
        let under_way: Vec<&Move> = operation.moves.iter().filter(|of| of.state == MoveState::Begun).collect();
        let shown = under_way.len().min(MOVES_SHOWN);
        while self.moves.len() < shown {
            let line = self.all.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("  {wide_msg}") {
                line.set_style(style);
            }
            self.moves.push(line);
        }
        self.moves.drain(shown..).for_each(|line| line.finish_and_clear());
        for (line, of) in self.moves.iter().zip(under_way) {
            line.set_message(move_line(&operation.kind, of, now_ms));
        }
    }
}

/// Returns the milliseconds since 1970 began, by this host's clock.
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
