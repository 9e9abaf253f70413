//! What the commands that ask this host's agent share: the agent's address, and the words for its answers.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use skein_api::{
    CheckResult, FailureReason, Migration, MigrationPhase, Outcome, Reply, Request, Role, Severity, VmState,
};
use skein_client::{CallError, Client};

use super::text::{clean, count};

/// How long the agent may take. It may start a QEMU, or ask another host that starts one to see what it can do. Each of
/// these has deadlines of its own, of some ten seconds.
pub const AGENT_ANSWER_TIME: Duration = Duration::from_secs(90);

/// After how long without an answer it is said what the agent waits for.
pub const SAID_AFTER: Duration = Duration::from_millis(700);

/// Something blocks the migration, and nothing was begun.
pub const EXIT_BLOCKED: u8 = 3;
/// The migration was called off: the guest goes on at the source.
pub const EXIT_CALLED_OFF: u8 = 4;
/// The guest is paused, and a person has to say where it runs.
pub const EXIT_IN_DOUBT: u8 = 5;
/// Ctrl-C was pressed: what was begun goes on. As in shells, the code is 128 and SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The part of `--help` that scripts are written from.
pub const EXIT_CODES: &str = "\
Exit codes:
    0  moved
    1  an error; what it was is said
    2  wrong arguments
    3  something blocks it; nothing was begun
    4  called off: the guest goes on at the source
    5  in doubt: the guest is paused until it is known where it runs (see skein migration resolve)
  130  interrupted while watching; the migration goes on";

/// Where the agent is.
#[derive(clap::Args)]
pub struct LocalAgent {
    /// The socket of this host's agent; who names one is shown this host's agent's view, as by --local
    #[arg(long, global = true, value_name = "PATH", env = "SKEIN_SOCKET", default_value = skein_api::DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

impl LocalAgent {
    /// Returns a client of this host's agent.
    pub fn client(&self) -> Client {
        Client::new(&self.socket)
    }

    /// Makes one request, and waits for the answer.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the agent cannot be reached, does not answer in time, or refuses.
    pub fn call(&self, request: &Request) -> Result<Reply, CallError> {
        self.client().call(request, AGENT_ANSWER_TIME)
    }
}

/// Returns the error that the agent answered something else than was asked.
pub fn unexpected(reply: &Reply) -> CallError {
    CallError::Unexpected(match reply {
        Reply::Progress(_) => "progress",
        Reply::Done => "done",
        Reply::Error(_) => "an error",
        Reply::Vm(_) => "a VM",
        Reply::Console(_) => "a console",
        Reply::NotStarted(_) => "that it was not started",
        Reply::NotForgotten(_) => "that it was not forgotten",
        Reply::Offer { .. } => "what it keeps of a VM",
        Reply::Vms { .. } => "VMs",
        Reply::Host(_) => "a host",
        Reply::Hosts { .. } => "hosts",
        Reply::Check(_) => "a check",
        Reply::Migration(_) => "a migration",
        Reply::Migrations { .. } => "migrations",
        Reply::MigrationRecord(_) => "what was seen of a migration",
        Reply::HostSample(_) => "how busy a host is",
        Reply::HostUpdate(_) => "an update",
        Reply::Version(_) => "its version",
        Reply::Network { .. } => "the network of a host",
        Reply::ProbeStep { .. } => "progress of a probe",
        Reply::Probe(_) => "a probe",
        Reply::Probes { .. } => "probes",
    })
}

/// Returns the word for a VM's state.
pub fn vm_state(state: VmState) -> &'static str {
    match state {
        VmState::Running => "running",
        VmState::Paused => "paused",
        VmState::Starting => "starting",
        VmState::Incoming => "incoming",
        VmState::Handover => "handover",
        VmState::Moved => "moved",
        VmState::InDoubt => "IN DOUBT",
        VmState::Stopped => "stopped",
        VmState::Unresponsive => "unresponsive",
    }
}

/// Returns the word for where a migration stands.
pub fn migration_state(migration: &Migration) -> &'static str {
    state_word(migration.outcome, migration.in_doubt, migration.stage)
}

/// Returns the word for where a migration stands, of which only these are known.
pub fn state_word(outcome: Option<Outcome>, in_doubt: bool, stage: Option<MigrationPhase>) -> &'static str {
    match (outcome, in_doubt, stage) {
        (Some(Outcome::Moved), ..) => "moved",
        (Some(Outcome::CalledOff), ..) => "called off",
        (Some(Outcome::Ended), ..) => "ended",
        (None, true, _) => "IN DOUBT",
        (None, false, Some(stage)) => stage.words().0,
        (None, false, None) => "begin",
    }
}

/// Returns why a migration was called off, with the details that are known. The text is empty if it was not called off.
pub fn reason(migration: &Migration) -> String {
    why_words(migration.why, &migration.detail)
}

/// Returns a reason with its details, which may both be missing.
pub fn why_words(why: Option<FailureReason>, detail: &str) -> String {
    let detail = clean(detail);
    match (why.map(FailureReason::words), detail.as_str()) {
        (None, _) => detail,
        (Some(why), "") => why.to_owned(),
        (Some(why), _) => format!("{why}: {detail}"),
    }
}

/// Returns the name of the host at the other end.
pub fn other_host(migration: &Migration) -> &str {
    match migration.role {
        Role::Source => &migration.target,
        Role::Target => &migration.source,
    }
}

/// Returns the exit code for the state of a migration.
pub fn exit_code(migration: &Migration) -> ExitCode {
    match (migration.outcome, migration.in_doubt) {
        (Some(Outcome::Moved), _) => ExitCode::SUCCESS,
        (Some(Outcome::CalledOff), _) => ExitCode::from(EXIT_CALLED_OFF),
        (Some(Outcome::Ended), _) => ExitCode::FAILURE,
        (None, true) => ExitCode::from(EXIT_IN_DOUBT),
        (None, false) => ExitCode::SUCCESS,
    }
}

/// Returns all that a check found, and what follows from it.
pub fn check_text(check: &CheckResult) -> String {
    let mut text: String = check.problems.iter().map(|problem| clean(&problem.to_string()) + "\n").collect();
    let (vm, to) = (clean(&check.vm), clean(&check.to));
    let blocking = check.problems.iter().filter(|problem| problem.severity == Severity::Blocks).count();
    let forecast = match &check.forecast {
        Some(forecast) => clean(&forecast.why),
        None => format!("in what time is not known, as the NICs tell no speed and nothing was moved to {to} yet"),
    };
    text += &match blocking {
        0 => format!("{vm} can move to {to}: {forecast}\n"),
        _ => format!("{vm} cannot move to {to}: {}; nothing was begun\n", count(blocking, "error")),
    };
    text
}
