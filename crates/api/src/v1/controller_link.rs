//! Is what an agent and a controller say to each other, a line of JSON each, over a TLS connection that the agent
//! dialled.
//!
//! The agent begins with [`ToController::Hello`], and the controller answers [`ToAgent::Welcome`], or
//! [`ToAgent::Refused`] and hangs up. From then on the agent sends a [`HostReport`] at least once in
//! [`Welcome::report_period_ms`], and carries out commands of the controller that leads. A command is a [`Request`] as
//! `skein` would send it to the agent's socket, with the leader's term. An agent remembers the highest term that it has
//! heard of, also when it is started again, and refuses commands of a lower term: these are of a controller that was
//! deposed and does not know it yet.
//!
//! A line is a claim: `check` of either end's lines ([`ToController::check`], [`ToAgent::check`]) says what is refused.
//! A line of a kind that an end does not know is passed over.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::console::ConsoleRequest;
use super::host_facts::HostFacts;
use super::load::{HostLoad, VmLoad};
use super::migration::{Migration, MigrationId};
use super::reply::{Refusal, Reply};
use super::request::Request;
use super::sample::{MigrationSample, NicRates};
use super::vm::VmView;

/// Counts the elections of a cluster's leader: a later leader has a greater term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Term(pub u64);

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A line that an agent sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "line")]
pub enum ToController {
    /// The first line.
    Hello(Hello),
    /// What changed on the host.
    Report(Box<HostReport>),
    /// The last reply to a command.
    Reply {
        /// The command's number.
        command: u64,
        /// The reply.
        reply: Box<Reply>,
    },
    /// The command was not carried out: its term is below the highest that the agent has heard of.
    Deposed {
        /// The command's number.
        command: u64,
        /// The highest term.
        highest: Term,
    },
    /// The certificate that the host showed is to be renewed. The leader signs one of the same name and key, and
    /// answers [`ToAgent::Renewed`] or [`ToAgent::NotRenewed`]. A controller of an older release passes this over.
    Renew,
    /// A person wants to start a VM on this host: the leader is asked whether the VM may be started here. The leader
    /// answers [`ToAgent::May`] or [`ToAgent::MayNot`]. A controller of an older release passes this over.
    AskStart {
        /// The question's number, which this start of the agent uses once. The same question may be asked again.
        ask: u64,
        /// The VM's name.
        vm: String,
        /// Whether the host has the VM. Until the start is over the host then forgets the VM for nobody.
        is_here: bool,
    },
    /// A person wants to move a guest from this host: the leader is asked whether the migration may begin, and keeps
    /// where the guest may go. The leader answers [`ToAgent::May`] or [`ToAgent::MayNot`]. A controller of an older
    /// release passes this over.
    AskMove {
        /// The question's number, as in [`ToController::AskStart`].
        ask: u64,
        /// The VM's name.
        vm: String,
        /// The target.
        to: String,
        /// The id that the migration will have. Reports tell how it ended. `None`: it is only asked whether the guest
        /// may be moved, and nothing is kept.
        migration: Option<MigrationId>,
    },
    /// A migration that the controller watches ([`ToAgent::Watch`]), as it is now.
    Sample(Box<MigrationSample>),
    /// The reply to what the controller only wants to see ([`ToAgent::Look`]), or to what is asked of a console
    /// ([`ToAgent::Console`]).
    Seen {
        /// The question's number.
        look: u64,
        /// The reply.
        reply: Box<Reply>,
    },
    /// A line of a newer release.
    #[serde(other)]
    Other,
}

/// The first line of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Hello {
    /// The host's name, which has to be that of the agent's certificate.
    pub host: String,
    /// The release of the agent's program.
    pub release: String,
    /// The newest version of the API that the agent speaks.
    pub api: u32,
    /// A number that each start of an agent chooses at random.
    pub instance: u64,
    /// The kernel's id of this boot (`/proc/sys/kernel/random/boot_id`), by which a host that was off is known.
    pub boot_id: Option<String>,
    /// The addresses at which other hosts' agents dial this agent, as `10.0.0.1:7070`, where the agent knows them.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The highest term that the agent has heard of.
    pub highest_term: Term,
    /// Whether the agent knows [`Request::VmOffer`] and what belongs to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves_off: bool,
}

/// What changed on a host since the report before on the same connection; the first has everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostReport {
    /// Counts the reports of a connection, from 1 on.
    pub sequence: u64,
    /// What the host is, if that changed. The files of guests are left out. An agent that has only just started may not
    /// know yet: then a later report tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Box<HostFacts>>,
    /// How busy the host is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<HostLoad>,
    /// The VMs that are new or have changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<VmView>,
    /// The VMs that the host has no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms_gone: Vec<String>,
    /// Those of the VMs that the host has no more which a person had it forget: they are not on their way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms_forgotten: Vec<String>,
    /// How busy the guests are that run here: all of them, or none if nothing changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vm_loads: BTreeMap<String, VmLoad>,
    /// The migrations that are new or have changed, without their events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrations: Vec<Migration>,
    /// The migrations that were asked for ([`ToController::AskMove`]), and that may begin yet or are not told of above.
    /// One that is neither here nor known was not begun, and will not be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves_asked: Vec<MigrationId>,
    /// The term in which the controller leads that is told this, if it had said so when the report was made: what other
    /// leaders had allowed by then is among what the report tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub led: Option<Term>,
    /// Whether there is contact with each of the other hosts that this host keeps contact with, if that changed: those
    /// of its migrations, mostly. Of a host that is not named nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contacts: Option<BTreeMap<String, bool>>,
    /// The last acknowledgement that the agent took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<HeardEcho>,
    /// How much passes each NIC of the host that has a link, if that changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicRates>,
    /// The host's watchdog, if that changed. A connection's first report without it is of a host that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<WatchdogState>,
}

/// An acknowledgement that an agent took ([`ToAgent::Heard`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeardEcho {
    /// The leader's term.
    pub term: Term,
    /// The acknowledgement's number.
    pub number: u64,
    /// The number of the voters that the agent goes by. 0: it knows of none.
    pub voters: u64,
}

/// A host's watchdog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WatchdogState {
    /// The watchdog, if it is armed: then the host is reset once its agent feeds it no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub armed: Option<ArmedWatchdog>,
    /// The reason why it is not armed. Empty if it is, or if the host is to have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why_not: String,
}

/// A watchdog that is armed, and by which rule the agent feeds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArmedWatchdog {
    /// What the device says it is.
    pub identity: String,
    /// For how long it is fed after a report was sent that was acknowledged, in milliseconds.
    pub acknowledged_ms: u64,
    /// For how long it is fed after other agents were asked, in milliseconds.
    pub asked_ms: u64,
    /// The time from one feed to the next, in milliseconds.
    pub period_ms: u64,
    /// How long after the last feed the host is reset, in milliseconds.
    pub timeout_ms: u64,
}

/// A line that a controller sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "line")]
pub enum ToAgent {
    /// The first line: the agent is known.
    Welcome(Welcome),
    /// The first line: the agent is not taken, and tries again later.
    Refused(Refusal),
    /// The controller leads, in this term, which the agent remembers.
    Leads {
        /// The term.
        term: Term,
    },
    /// A request that the agent is to carry out.
    Command {
        /// The command's number, by which its reply is known. Numbers of one connection are unique.
        command: u64,
        /// The leader's term.
        term: Term,
        /// See [`RequestLine::request_id`](super::RequestLine::request_id).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The request. A migration is asked for with `detach`.
        request: Box<Request>,
    },
    /// Where the cluster's hosts are, for agents that have no file of their own with that.
    Hosts {
        /// The addresses of each host's agent, as in [`Hello::addresses`].
        addresses: BTreeMap<String, Vec<String>>,
    },
    /// Where the cluster's controllers are, so that an agent also dials those that came after its host.
    Controllers {
        /// The address of each controller for agents, as `10.0.0.1:7443`, by the controller's name.
        addresses: BTreeMap<String, String>,
    },
    /// The host's new certificate. The one of before is refused once this one was shown.
    Renewed {
        /// The certificate, in PEM.
        certificate: String,
    },
    /// The host's certificate is not renewed, and why.
    NotRenewed(Refusal),
    /// The VM of a question ([`ToController::AskStart`]) may be started on the host. The store has said, asked after
    /// the question came, that this controller leads.
    May {
        /// The question's number.
        ask: u64,
    },
    /// The VM of a question may not be started on the host.
    MayNot {
        /// The question's number.
        ask: u64,
        /// Whether the reason may pass within seconds, so that the question is worth asking again.
        again: bool,
        /// The reason.
        refusal: Refusal,
    },
    /// A report was heard, and after that the store said that this controller leads. Agents of older releases pass this
    /// over.
    Heard {
        /// The leader's term.
        term: Term,
        /// The number of this acknowledgement, from 1 on in each term.
        number: u64,
        /// The report: its [`HostReport::sequence`].
        sequence: u64,
        /// The number of the voters: the hosts of which more than half have to have no leader, so that a watchdog is
        /// fed without one.
        voters: u64,
        /// Their names. Empty if the agent has said that it has these.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        hosts: BTreeSet<String>,
    },
    /// The migrations that the controller watches from now on, all of them: the agent sends a [`ToController::Sample`]
    /// of each that is under way here, every [`SAMPLE_PERIOD_MS`](super::SAMPLE_PERIOD_MS). Any controller may watch.
    /// Agents of older releases pass this over.
    Watch {
        /// The migrations.
        migrations: BTreeSet<MigrationId>,
    },
    /// A request that changes nothing ([`Request::only_shows`]): any controller may ask that. Agents of older releases
    /// pass this over.
    Look {
        /// The question's number. Numbers of one connection are unique.
        look: u64,
        /// The request.
        request: Box<Request>,
    },
    /// A request about a VM's serial console, which the agent answers as [`ToAgent::Look`]. Any controller may ask
    /// that: nothing is decided by it. It is a line of its own so that agents of older releases pass it over.
    Console {
        /// The question's number, as in [`ToAgent::Look`].
        look: u64,
        /// The request.
        request: Box<ConsoleRequest>,
    },
    /// A line of a newer release.
    #[serde(other)]
    Other,
}

/// The first line of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Welcome {
    /// The cluster's id.
    pub cluster: String,
    /// The controller's name.
    pub controller: String,
    /// The release of the controller's program.
    pub release: String,
    /// The longest time from one report to the next, in milliseconds.
    pub report_period_ms: u64,
}
