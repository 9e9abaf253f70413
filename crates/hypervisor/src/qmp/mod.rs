//! Speaks the QEMU Machine Protocol over a unix socket: greeting, capabilities, commands with matched answers, events.
//!
//! <https://www.qemu.org/docs/master/interop/qmp-spec.html>
//!
//! [`Monitor`](monitor::Monitor) serves several threads, [`Qmp`](client::Qmp) one.

pub mod client;
pub mod connect;
pub mod error;
pub mod events;
#[cfg(test)]
pub(crate) mod fake;
pub mod message;
pub mod monitor;
