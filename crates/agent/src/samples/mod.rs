//! Looks at the migrations under way several times a second, once for everybody: for controllers that watch, for
//! commands, and for what is kept of each migration.
//!
//! | file | what |
//! |---|---|
//! | `host_meter` | how busy the host is between two looks |
//! | `series` | samples of one migration, thinned out as they become many. Pure |
//! | `kept` | the files with the samples of migrations that are over |
//! | `forecast_error` | how right forecasts were |
//! | `recorder` | the thread that looks, and who is told |

mod forecast_error;
mod host_meter;
mod kept;
mod recorder;
mod series;

pub(crate) use host_meter::{HostMeter, carries_the_hosts};
pub(crate) use recorder::{Recorder, Sampled};
