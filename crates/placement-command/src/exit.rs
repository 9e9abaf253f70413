//! The exit codes of the commands.

use std::process::ExitCode;

/// Something is broken, or a plan does not bring all guests to where they are to be.
const EXIT_BROKEN: u8 = 3;

/// The part of `--help` that scripts are written from.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  nothing hard is broken
  1  an error; what it was is said
  2  wrong arguments
  3  something hard is broken, or left undone; it is told";

/// Returns the exit code for success if `is_good`, and else the one for something broken.
pub fn success_if(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BROKEN) }
}
