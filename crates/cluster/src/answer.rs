//! What people and programs ask of a controller, and its answers, as values.

use skein_api::cluster::{
    ClusterSettings, CreateVmRequest, DrainRequest, FenceRequest, HostSettings, MigrateRequest, Operation,
    OptimizeRequest, PowerReading, ResumeRequest, Role, StartVmRequest, StopVmRequest, Token, UnixMs, UpdateRequest,
    VmMigration, VmSettings,
};
use skein_api::{HoldOptions, MigrationId};

/// What is said of an operation that is only shown.
pub(crate) const NOTHING_BEGUN: &str = "nothing was begun: this is what would be done";

/// Something that is asked, and by whom.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The number by which the answer is known.
    pub id: u64,
    /// Who asks: the name of a token or of a certificate.
    pub by: String,
    /// The address that the request came from.
    pub from: String,
    /// The request in words, for the audit log.
    pub what: String,
    /// A key that the caller chose: the same key again is the same request.
    pub repeat: Option<String>,
    /// What is asked.
    pub ask: Ask,
}

/// What may be asked. Whether the caller may, was seen to before.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Ask {
    /// Empty a host.
    Drain { host: String, request: DrainRequest },
    /// Switch a lost host off, or take a person's word that it is off.
    Fence { host: String, request: FenceRequest },
    /// Ask a host's fencing device whether the host has power.
    ReadPower { host: String },
    /// Empty a host that is not needed, and shut it down.
    Sleep { host: String },
    /// Switch a host on; of a host that is awake, say that what went wrong with its power is mended.
    Wake { host: String },
    /// Update hosts, one after the other.
    Update { request: UpdateRequest },
    /// Let a host take guests again.
    Resume { host: String, request: ResumeRequest },
    /// Create a VM from its definition, and start it if that is asked for.
    CreateVm { request: Box<CreateVmRequest> },
    /// Start a VM that is off.
    StartVm { vm: String, request: StartVmRequest },
    /// Stop a VM.
    StopVm { vm: String, request: StopVmRequest },
    /// Forget a VM that is off.
    DeleteVm { vm: String },
    /// Move a VM. What `breaks` where a person chose the host, [`broken_by`](crate::broken_by) says before.
    Migrate { vm: String, request: MigrateRequest, breaks: Vec<String> },
    /// Ask something of the migration that a VM is in.
    OfMigration { vm: String, id: Option<MigrationId>, ask: MigrationAsk },
    /// Move guests where less is broken, or load is better spread.
    Optimize { request: OptimizeRequest },
    /// Change what is set of the whole cluster. With `version` only if that is what is stored.
    SetSettings { settings: Box<ClusterSettings>, version: Option<u64> },
    /// Add or change a rule. With `version` only if that is the rule's.
    SetRule { name: String, rule: serde_json::Value, version: Option<u64> },
    /// Take a rule away.
    RemoveRule { name: String },
    /// Call an operation off.
    Cancel { operation: String },
    /// Change what is set of a host. With `version` only if that is the host's.
    SetHost { host: String, settings: HostSettings, version: Option<u64> },
    /// Take a host out of the cluster that has no VMs. With `force` VMs that do not run are forgotten with it.
    RemoveHost { host: String, force: bool },
    /// Change what is set of a VM. With `version` only if that is the VM's.
    SetVm { vm: String, settings: VmSettings, version: Option<u64> },
    /// Make a ticket. The secret was made by the caller, at random.
    NewTicket { id: String, host: Option<String>, expires_s: Option<u64>, secret_sha256: String },
    /// Let a host join by a ticket.
    Join { host: String, boot_id: Option<String>, ticket: String, secret_sha256: String, certificate_sha256: String },
    /// Keep that a certificate was signed in place of the one that a host's agent shows, before it is handed out.
    RenewCertificate { host: String, shown_sha256: String, signed_sha256: String },
    /// Say whether a person may start a VM on a host, whose agent asks. `is_here`: the host has the VM.
    StartByHand { host: String, vm: String, is_here: bool },
    /// Say whether a person may move a guest from a host, whose agent asks. `migration`: the id that the migration will
    /// have; without it nothing is kept.
    MoveByHand { host: String, vm: String, to: String, migration: Option<MigrationId> },
    /// Note that somebody opens a VM's serial console.
    OpenConsole { vm: String },
    /// Make a token. The secret was made by the caller, at random.
    NewToken { name: String, role: Role, expires_s: Option<u64>, secret_sha256: String },
    /// Take a token away.
    RemoveToken { name: String },
    /// Note a request that was refused before it came here.
    Refused { status: u16, detail: String },
}

/// What is asked of a migration that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MigrationAsk {
    /// Have a guest switch that is held. It has to be stopped within these seconds.
    Switch { deadline_s: Option<u64> },
    /// Limit how fast it sends; `None`: it has no limit of its own any more.
    Limit { rate_bits_per_s: Option<u64> },
    /// Begin its copy again, and hold its guest then.
    Hold { hold: HoldOptions },
    /// Begin its copy again, and throttle its guest by this per cent at most, if that takes it to converge.
    Throttle { percent: u8 },
    /// Call it off.
    Cancel,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It was done, and there is nothing to show.
    Done,
    /// An operation, begun by this request or by the same request before.
    Operation(Box<Operation>),
    /// An operation that would be begun, and is not.
    Preview(Box<Operation>),
    /// What a fencing device says.
    Power(PowerReading),
    /// A migration, after what was asked of it.
    Migration(Box<VmMigration>),
    /// A ticket, with its end.
    Ticket(UnixMs),
    /// A token.
    Token(Token),
    /// It was refused.
    Refused(Refused),
}

/// Why something was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What kind of refusal it is.
    pub kind: RefusedKind,
    /// What is wrong.
    pub message: String,
    /// What to do about it. May be empty.
    pub cure: String,
}

/// The kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedKind {
    /// There is no such thing.
    NotFound,
    /// It is not possible in the present state.
    Conflict,
    /// It has changed since the caller looked.
    Changed,
    /// The request makes no sense.
    Invalid,
    /// The ticket is not valid.
    Forbidden,
    /// The controller cannot do anything at the moment.
    Unavailable,
    /// Another kind, with its HTTP status: for the audit log.
    Other(u16),
}

impl RefusedKind {
    /// Returns the HTTP status.
    pub fn status(self) -> u16 {
        match self {
            RefusedKind::NotFound => 404,
            RefusedKind::Conflict => 409,
            RefusedKind::Changed => 412,
            RefusedKind::Invalid => 422,
            RefusedKind::Forbidden => 403,
            RefusedKind::Unavailable => 503,
            RefusedKind::Other(status) => status,
        }
    }
}

impl Answer {
    pub(crate) fn refused(kind: RefusedKind, message: impl Into<String>, cure: impl Into<String>) -> Answer {
        Answer::Refused(Refused { kind, message: message.into(), cure: cure.into() })
    }

    /// Shows what would be begun.
    pub(crate) fn preview(mut operation: Operation) -> Answer {
        operation.id = Operation::NOT_BEGUN.to_owned();
        if operation.message.is_empty() {
            operation.message = NOTHING_BEGUN.into();
        }
        Answer::Preview(Box::new(operation))
    }

    pub(crate) fn unavailable(why: &str) -> Answer {
        Answer::refused(RefusedKind::Unavailable, why, "ask again in some seconds")
    }

    pub(crate) fn conflict(message: impl Into<String>, cure: impl Into<String>) -> Answer {
        Answer::refused(RefusedKind::Conflict, message, cure)
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Answer::Done => 204,
            Answer::Preview(_) | Answer::Power(_) | Answer::Migration(_) => 200,
            Answer::Operation(_) => 202,
            Answer::Ticket(_) | Answer::Token(_) => 201,
            Answer::Refused(refused) => refused.kind.status(),
        }
    }

    /// Returns the answer in a sentence.
    pub(crate) fn detail(&self) -> String {
        match self {
            Answer::Operation(operation) => format!("operation {}", operation.id),
            Answer::Refused(refused) => refused.message.clone(),
            Answer::Power(reading) => format!("{:?}", reading.power),
            Answer::Migration(migration) => format!("migration {}", migration.id),
            Answer::Done | Answer::Preview(_) | Answer::Ticket(_) | Answer::Token(_) => String::new(),
        }
    }
}
