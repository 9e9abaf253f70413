//! Is what subscribers are sent, as server-sent events.

use serde::{Deserialize, Serialize};

use super::{Host, Operation, UnixMs, Vm};

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// When the controller noticed.
    pub at: UnixMs,
    /// What changed, as it is now.
    #[serde(flatten)]
    pub changed: ChangedObject,
}

/// What changed, as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum ChangedObject {
    /// A host.
    Host {
        /// The host.
        host: Box<Host>,
    },
    /// A VM.
    Vm {
        /// The VM.
        vm: Box<Vm>,
    },
    /// An operation.
    Operation {
        /// The operation.
        operation: Box<Operation>,
    },
    /// Something is gone.
    Gone {
        /// `host` or `vm`.
        kind: String,
        /// Its name.
        name: String,
    },
    /// Events were lost between the one that the subscriber saw last and this one: read everything again.
    Reset,
}
