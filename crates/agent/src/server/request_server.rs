//! Is what requests are answered from.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use parking_lot::Mutex;
use skein_api::Reply;

use super::starter::MigrationStarter;
use crate::attempts::AttemptTable;
use crate::consoles::Consoles;
use crate::controllers::{Acknowledged, LeaderQuestions};
use crate::host_update::HostUpdates;
use crate::migrations::Migrations;
use crate::named_starts::NamedStarts;
use crate::room::HostRoom;
use crate::samples::Recorder;
use crate::vms::Vms;

/// The parts of the agent that requests are answered from.
pub(crate) struct RequestServer {
    pub(crate) vms: Arc<Vms>,
    pub(crate) migrations: Arc<Migrations>,
    pub(crate) rooms: Arc<HostRoom>,
    pub(crate) starter: Arc<MigrationStarter>,
    pub(crate) attempts: AttemptTable<MigrationStarter>,
    pub(crate) named_starts: NamedStarts,
    pub(crate) leader_questions: Arc<LeaderQuestions>,
    /// What leaders have acknowledged.
    pub(crate) acknowledged: Arc<Acknowledged>,
    /// What was seen of migrations.
    pub(crate) samples: Arc<Recorder>,
    /// The VMs that a person had this host forget: controllers are told.
    pub(crate) forgotten: Mutex<BTreeSet<String>>,
    /// The consoles that somebody has open from afar.
    pub(crate) consoles: Consoles,
    /// The addresses at which this host's agent listens.
    pub(crate) addresses: Vec<String>,
    /// The command that shuts this host down, and its arguments; empty: there is none.
    pub(crate) power_off: Vec<OsString>,
    /// The updates of this host.
    pub(crate) updates: Arc<HostUpdates>,
    pub(crate) stopping: AtomicBool,
    /// The number of connections of commands.
    pub(crate) clients: Arc<AtomicUsize>,
    /// The number of those that follow a migration.
    pub(crate) followers: Arc<AtomicUsize>,
}

/// Says where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedBy {
    /// A person or a program of this host.
    Person,
    /// The controller that leads.
    Controller,
}

/// Tells a client its progress before the last reply.
pub(super) type Say<'a> = dyn FnMut(&Reply) -> io::Result<()> + 'a;
