//! The actions of a plan, as BtrPlace writes them.

use serde::{Deserialize, Serialize};

/// An action, from one second to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Action {
    #[serde(flatten)]
    pub(super) what: What,
    pub(super) start: u64,
    pub(super) end: u64,
    #[serde(default, skip_serializing_if = "Hooks::is_empty")]
    pub(super) hooks: Hooks,
}

impl Action {
    pub(super) fn new(what: What, start: u64, end: u64) -> Action {
        Action { what, start, end, hooks: Hooks::default() }
    }
}

/// What an action does. The names are those of BtrPlace's `ActionConverter`s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "id")]
pub(super) enum What {
    #[serde(rename = "bootNode")]
    BootNode { node: u32 },
    #[serde(rename = "shutdownNode")]
    ShutdownNode { node: u32 },
    #[serde(rename = "bootVM")]
    BootVm { vm: u32, on: u32 },
    #[serde(rename = "shutdownVM")]
    ShutdownVm { vm: u32, on: u32 },
    #[serde(rename = "killVM")]
    KillVm { vm: u32, on: u32 },
    #[serde(rename = "migrateVM")]
    MigrateVm { vm: u32, from: u32, to: u32 },
    #[serde(rename = "resumeVM")]
    ResumeVm { vm: u32, from: u32, to: u32 },
    #[serde(rename = "suspendVM")]
    SuspendVm { vm: u32, from: u32, to: u32 },
    #[serde(rename = "allocate")]
    Allocate { vm: u32, on: u32, rc: String, amount: i64 },
}

/// What is done right before an action, and right after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Hooks {
    #[serde(default)]
    pub(super) pre: Vec<Event>,
    #[serde(default)]
    pub(super) post: Vec<Event>,
}

impl Hooks {
    fn is_empty(&self) -> bool {
        self.pre.is_empty() && self.post.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "id")]
pub(super) enum Event {
    #[serde(rename = "allocate")]
    Allocate { vm: u32, rc: String, amount: i64 },
    #[serde(rename = "substitutedVM")]
    Substituted {
        vm: u32,
        #[serde(rename = "newVm")]
        new_vm: u32,
    },
}
