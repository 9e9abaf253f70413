//! Is the seam to a running guest, whatever runs it: what an agent asks of the guest's hypervisor, and tells it.
//!
//! [`Guest`] is one guest with one connection to what runs it. The trait has three parts: whether the guest runs
//! ([`RunControl`]), the guest's migration ([`Migrate`]), and what the guest is ([`Inspect`]). QMP's
//! [`Monitor`](crate::Monitor) is a guest; `skein-fake-guest` has a guest that lives in virtual time, for tests.
//!
//! # What a hypervisor may lack
//!
//! What only some hypervisors can do has a default here that returns
//! [`GuestError::Unsupported`](error::GuestError::Unsupported), or that there is nothing to do. The caller decides what
//! follows:
//!
//! | cannot | what follows |
//! |---|---|
//! | [`Migrate::set_switchover`] | its own estimate decides when the guest is stopped |
//! | [`Migrate::set_throttle`] | the event log says so; a guest that does not converge is called off |
//! | [`Migrate::measure_dirty_rate`] | convergence is judged by what rounds leave |
//! | [`Inspect::ram_blocks`] | pages go through the hypervisor, not straight into the guest's RAM |
//! | [`Inspect::composition`] | the guest is not moved: nobody could say that it arrives as it was |
//!
//! How libvirt's domains and Cloud Hypervisor's guests fit: `docs/decisions/0043-guest-trait.md`. Absent on purpose:
//! processes, sockets of a certain protocol, other hosts.

pub mod error;
pub mod event;
pub mod facts;
pub mod inspect;
pub mod migrate;
pub mod run;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use self::event::EventSink;
use self::inspect::Inspect;
use self::migrate::Migrate;
use self::run::RunControl;

/// A guest that runs here, or that is to arrive here, with a connection to what runs the guest.
///
/// Every call waits as long as the [patience](Guest::with_patience) and no longer. What was asked may be done all the
/// same after that. Clones of a handle are the same connection.
pub trait Guest: RunControl + Migrate + Inspect + Debug + Send + Sync {
    /// Returns what runs the guest, as people call it: `QEMU 10.0.2`.
    fn program(&self) -> String;

    /// Returns the version of what runs the guest: `10.0.2`.
    fn version(&self) -> String;

    /// Returns what is peculiar about what runs the guest.
    fn quirks(&self) -> Quirks;

    /// Returns the same connection, for a caller that waits no longer than `patience` for an answer.
    fn with_patience(&self, patience: Duration) -> Arc<dyn Guest>;

    /// Gives events from now on to `sink`, in the thread that receives them. What happened before is not told:
    /// subscribe first, then ask for the state. If the connection is over already, `sink` is told that at once.
    fn forward(&self, sink: EventSink);

    /// Returns whether the connection is over: nothing more arrives, and every call fails.
    fn is_closed(&self) -> bool;

    /// Closes the connection, for all handles. The guest is left as it is.
    fn close(&self);
}

/// The behaviour of a hypervisor that others do not have, and that a migration has to heed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quirks {
    /// Whether a guest that may be throttled may stand still while the network is out.
    pub freezes_throttled_without_network: bool,
    /// Whether a guest that sleeps is moved asleep. Otherwise either end may wake the guest by itself.
    pub moves_asleep: bool,
}
