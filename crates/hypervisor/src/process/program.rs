//! Asks a QEMU program for its version before it runs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_inventory::QemuVersion;

use crate::process::child::{Killed, collect, text};
use crate::process::error::Error;

/// Returns the version of a QEMU program, by its own word.
pub fn version_of(program: &Path) -> Result<QemuVersion, Error> {
    const DEADLINE: Duration = Duration::from_secs(10);
    let start = |source| Error::Start { program: program.into(), source };
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Killed(command.spawn().map_err(start)?);
    let said = Arc::default();
    let reader = collect(child.0.stdout.take().expect("is piped"), Arc::clone(&said));
    let end = Instant::now() + DEADLINE;
    while !reader.is_finished() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let said = text(&said);
    parse_version(&said)
        .ok_or_else(|| Error::Version { program: program.into(), said: said.chars().take(80).collect() })
}

/// Reads the numbers of `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)`.
fn parse_version(text: &str) -> Option<QemuVersion> {
    let numbers = text.strip_prefix("QEMU emulator version ")?.split([' ', '\n']).next()?;
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    let mut next = || numbers.next()?;
    Some(QemuVersion { major: next()?, minor: next()?, micro: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let version = |text| parse_version(text).map(|v| v.to_string());
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022";
        assert_eq!(version(debian).as_deref(), Some("7.2.22"));
        assert_eq!(version("QEMU emulator version 10.0.2\nCopyright").as_deref(), Some("10.0.2"));
        for other in ["", "QEMU emulator version ", "QEMU emulator version 7", "GNU sed 4.9"] {
            assert_eq!(version(other), None, "{other}");
        }
        let error = version_of(Path::new("true")).unwrap_err();
        assert!(error.to_string().ends_with("is it QEMU?"), "{error}");
    }
}
