//! Keeps what must outlive an agent.
//!
//! - [`Journal`]: durable records, few and small. What was acknowledged is there after any crash. Damage that may have
//!   cost an acknowledged record is an error, never a shorter list.
//! - [`EventLog`]: what happened in one migration, for people and programs. Nothing depends on it.
//!
//! Neither knows what a record or an event means.

mod event_log;
mod files;
#[cfg(test)]
mod forgetful;
pub mod image;
mod journal;

pub use event_log::{
    BadId, DamagedLine, EVENT_LOG_BYTES_MAX, EVENT_LOGS_KEPT, EventLog, EventLogContents, EventLogEntry, LogFile,
    ReadError,
};
pub use image::{Damage, RECORD_BYTES_MAX, RECORDS_MAX};
pub use journal::{AppendError, DiskProblem, Journal, JournalLimits, OpenError};
