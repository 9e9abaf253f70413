//! Makes the attempts to move a guest. The agent begins a requested migration again, whoever watches, until it is done,
//! is called off by a person, or may be tried no more.
//!
//! | file | what |
//! |---|---|
//! | `machine` | [`Attempts`](machine::Attempts): all attempts of one request, and the next. Pure: time is an argument |
//! | `starter` | [`Starter`]: what checks a migration and begins it; tests have a fake |
//! | `store` | a file for each request, so that an agent that is started again goes on, and begins nothing twice |
//! | `table` | [`AttemptTable`]: the requests of the last day, and the thread that begins their next attempts |

mod machine;
mod starter;
mod store;
mod table;

pub(crate) use self::machine::{AskedMigration, AttemptsEnd, ChangedOptions, MigrationEnd, NotBegun};
pub(crate) use self::starter::{AttemptNumber, Placement, Starter};
pub(crate) use self::store::RequestStore;
pub(crate) use self::table::{AttemptTable, RequestKey, Standing};
