//! Is a guest that lives in virtual time: the second implementation of [`Guest`](skein_hypervisor::Guest), for the
//! tests of everything that commands guests.
//!
//! A [`FakeGuest`] is copied in rounds, at the rate of a link, while it writes. It is stopped, switched over,
//! completed, cancelled, and it fails, with the states and events of the tables in [`skein_hypervisor::migration`]. A
//! test says how fast everything is, and what goes wrong: at which command, and whether the command is refused, not
//! received, or received and not answered; which events are lost; which of the [`Oddities`] of QEMU's versions happen.
//!
//! Time is a [`VirtualClock`]'s: it passes when a thread waits. So a copy of an hour takes milliseconds, and a guest
//! that does not answer takes the time for which its caller would have waited.
//!
//! A [`FakeHypervisor`] starts and finds such guests, for the tests of what keeps VMs: the second implementation of
//! [`Hypervisor`](skein_hypervisor::Hypervisor). Its processes are real and do nothing.
//!
//! Absent on purpose: the guest's RAM and its content, other hosts, threads.

mod clock;
mod copy;
mod fault;
mod guest;
mod hypervisor;
mod machine;

pub use clock::VirtualClock;
pub use fault::{Command, Fault, Told};
pub use guest::{Events, FakeGuest};
pub use hypervisor::{Birth, FakeHypervisor};
pub use machine::{Abilities, GuestParameters, Oddities};
