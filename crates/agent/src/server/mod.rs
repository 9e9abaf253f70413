//! Serves what `skein vm`, `skein migrate` and the other commands ask of the agent of their host.
//!
//! ```text
//!  socket ─▶ accept: a thread for each command ─▶ answer ─▶ vms, hosts, migrations ─▶ the reply
//! ```

mod accept;
mod answer;
mod close;
mod console;
mod controlled_host;
mod data_paths;
mod host_facts;
mod hosts;
mod migrations;
mod off;
mod probe;
mod refusal;
mod request_server;
mod start_vm;
mod starter;
mod vms;
mod watch;

pub(crate) use self::accept::serve;
pub(crate) use self::controlled_host::ServedHost;
pub(crate) use self::host_facts::host_facts;
pub(crate) use self::request_server::RequestServer;
pub(crate) use self::starter::MigrationStarter;
