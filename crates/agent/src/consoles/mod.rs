//! Carries VMs' serial consoles to those who have them open from afar, by way of a controller.
//!
//! QEMU serves a console to one client at a time. So a VM has one session, whose thread has the console's socket until
//! the session ends, or nobody has asked for [`IDLE_TIME`]. What is asked and answered are positions in all that was
//! written and typed ([`skein_api::ConsoleRequest`]): whatever is lost on the way is asked for again.
//!
//! | file | what |
//! |---|---|
//! | `output` | the last of what a VM wrote, with positions |
//! | `session` | a session, and its thread |
//! | `table` | which session has which console ([`Consoles`]) |

mod output;
mod session;
mod table;

use std::time::Duration;

pub(crate) use self::table::Consoles;

/// Says after how long a console is let go that nobody asks about: longer than a request waits, with time for a
/// controller to be started again.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(15);
