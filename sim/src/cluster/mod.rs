//! Whole clusters: agents with real [`Manager`](skein_handover::Manager)s and real
//! [`Session`](skein_session::Session)s, fake disks and QEMUs.
//!
//! An agent's process is its manager, its sessions' ends and what its edges remember. All of this is gone when the
//! process is killed. A host is its disk, its QEMUs, and which QEMU is the source of which migration (a file in
//! `/run`). These outlive the agent. The truth about a guest is kept beside all that, in `vm::Vm`, and is checked
//! whenever a QEMU starts to run the guest.
//!
//! What there is, each part without the whole:
//!
//! | module | what it is |
//! |---|---|
//! | `index` | numbers and names of hosts, QEMUs, VMs and sessions |
//! | `offer` | the handover's types, with what a source offers here |
//! | `qemu`, `disk` | the fakes |
//! | `vm` | a guest, as it truly is |
//! | `sim_agent` | a host, and its agent's process |
//! | `session` | sessions between agents, and the network below them |
//! | `fault`, `plant` | what goes wrong, and which bugs can be planted |
//! | `wish` | what people want moved |
//! | `schedule` | what happens at a time |
//! | `stats` | what a run came to |
//! | `state` | the cluster: all of these together |
//!
//! What happens to the cluster, each file with some methods of [`Cluster`]:
//!
//! | module | what it does |
//! |---|---|
//! | `run` | lets time pass |
//! | `process` | begins, kills, stops and continues an agent's process |
//! | `actions` | does what a manager wants, and tells the manager what happened |
//! | `orders` | gives orders to QEMUs, and reports their states |
//! | `qemu_steps`, `guest` | lets QEMUs and guests work |
//! | `contact`, `paths` | sessions between agents, and what happens to their paths |
//! | `streams` | carries control messages and migrations' connections in sessions |
//! | `people` | starts and cancels migrations, and vouches for hosts that are off |
//! | `inject` | makes faults happen, and ends them |
//! | `rest` | checks what must hold when all is over |
//! | `scenario` | a run, from a seed |

mod actions;
mod contact;
mod disk;
mod fault;
mod guest;
mod index;
mod inject;
mod offer;
mod orders;
mod paths;
mod people;
mod plant;
mod process;
mod qemu;
mod qemu_steps;
mod rest;
mod run;
pub mod scenario;
mod schedule;
mod session;
mod sim_agent;
mod state;
mod stats;
mod streams;
mod vm;
mod wish;

pub use plant::Plant;
pub use state::Cluster;
pub use stats::Stats;
