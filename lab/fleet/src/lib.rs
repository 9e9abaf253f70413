//! A fleet: a real controller with its store, and as many simulated hosts as wanted around it, on one machine.
//!
//! ```text
//!  this process: reads, subscribers, faults, kill -9          skein-controller, SQLite
//!        │ lines of JSON over pipes                                  ▲ TLS, lines of JSON
//!        ▼                                                           │
//!  agents' processes: each has some hundred hosts, and a connection for each ┘
//! ```
//!
//! A simulated host has guests that are nothing but names and loads. Its agent says hello, reports, and carries out
//! commands as `skein agent` does, over connections of its own with a certificate of its own. Migrations, failures and
//! loads are drawn from a seed. What agents know is what the controller has to show.
//!
//! | file | what |
//! |---|---|
//! | `settings`, `seen`, `error` | what is run, what was seen, why it could not be |
//! | `loads` | how busy guests are: PlanetLab's traces, or drawn from the seed |
//! | `host`, `told` | a host and its agent, without I/O; what of it a controller was told |
//! | `agents`, `world`, `link` | the process of some hundred agents; their hosts; the connection of one |
//! | `words`, `processes` | what this process and those of agents say to each other |
//! | `controller` | the controller's process: made, started, killed; its CPU and memory |
//! | `reads`, `subscriber`, `latencies` | what callers of the API wait for |
//! | `activity` | faults, migrations, starts and stops, drawn from the seed |
//! | `compare` | what the controller shows against what agents know |
//! | `course` | the whole, step by step |
//! | `show` | a fleet that stands, for whoever looks at its controller |

mod activity;
pub mod agents;
mod compare;
mod controller;
mod course;
mod error;
mod host;
mod latencies;
mod link;
mod loads;
mod processes;
mod reads;
mod seen;
mod settings;
mod show;
mod subscriber;
mod told;
mod words;
mod world;

pub use course::run;
pub use error::FleetError;
pub use latencies::Latencies;
pub use seen::{Drained, FleetSeen, Recovery, Window};
pub use settings::FleetSettings;
pub use show::{Shown, show};
