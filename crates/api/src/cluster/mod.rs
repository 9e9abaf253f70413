//! Is what a controller's REST API says, below `/api/v1`. A controller's store has the same values.
//!
//! The document that the server makes of these types is in the tree (`crates/controller/openapi.json`), and tests
//! compare. As for [`v1`](crate::v1): a field or a value is added, never changed or taken away.
//!
//! | module | what it has |
//! |---|---|
//! | `host`, `vm` | a host and a VM of the cluster: what is set, what is observed |
//! | `migration` | migrations, those that are over among them |
//! | `history` | how busy hosts and VMs were |
//! | `console` | a VM's serial console |
//! | `life` | a VM is created, started, stopped |
//! | `operation` | what a controller does over a while: a migration, a drain, an optimisation |
//! | `power` | which hosts sleep, how one goes to sleep and wakes |
//! | `update` | hosts are updated one after the other |
//! | `fencing` | what switches a host off, and proves that it is off |
//! | `rule` | rules, what is broken, and why a VM can or cannot be on a host |
//! | `settings` | what is set of the whole cluster |
//! | `status` | the cluster as a whole |
//! | `access`, `session` | tokens and roles, the audit log; how a browser shows its token |
//! | `event` | what subscribers are sent |
//! | `problem` | why a request was refused (RFC 9457) |

mod access;
mod console;
mod event;
mod fencing;
mod history;
mod host;
mod life;
mod migration;
mod operation;
mod power;
mod problem;
mod rule;
mod session;
mod settings;
mod status;
mod update;
mod vm;

pub use access::{AuditRecord, JoinRequest, JoinTicket, Joined, NewJoinTicket, NewToken, Role, Token, TokenSecret};
pub use console::{ConsoleAnswer, ConsoleAsk};
pub use event::{ChangedObject, Event};
pub use fencing::{Fencing, FencingDevice, PowerReading, PowerState};
pub use history::History;
pub use host::{Contact, Host, HostMode, HostSettings, HostWatchdog};
pub use life::{CreateVmRequest, StartVmRequest, StopVmRequest};
pub use migration::{MigrationEnds, MigrationView};
pub use operation::{
    DrainRequest, FenceRequest, LimitRequest, MigrateRequest, Move, MoveState, OffStage, Operation, OperationKind,
    OperationState, Progress, ResumeRequest, SwitchRequest, ThrottleRequest,
};
pub use power::{HostPower, PowerChange, PowerSettings, PowerStage, PowerStatus, SleepBy};
pub use problem::ProblemDetails;
pub use rule::{Complaint, Explanation, HostObjections, Rule};
pub use session::{NewSession, Session};
pub use settings::{ClusterSettings, FailoverSettings, OptimizeRequest, OptimizeSettings};
pub use status::{ClusterStatus, ControllerView, HostCounts, Page, StoreKind, StoreMemberView, VmCounts};
pub use update::{HostUpdate, HostUpdateState, HostsUpdate, UpdateRequest};
pub use vm::{Vm, VmDefinition, VmMigration, VmRunState, VmSettings};

/// A time: milliseconds since 1970-01-01 00:00 UTC, without leap seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct UnixMs(pub u64);
