//! Is a link in memory, for tests: hosts, their NICs, and a network between them that fails when a test says so.
//!
//! Threads wait for each other and for nothing else: there is no socket, no privilege, and no clock but for deadlines.
//! What the network decides by itself (how much a writer may send at once, which message overtakes which) follows from
//! one seed and from the order of dials. So a test has the same outcome whenever it runs, if not the same interleaving
//! of threads.

mod connection;
mod host;
mod network;

pub use self::host::{FakeHost, FakeLink, FakeListeners, FakeNic};
pub use self::network::{FAKE_CAPS, FakeNetwork};
