//! Files with passwords, which only root can read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// How many bytes a secret has at most.
const BYTES_MAX: u64 = 4096;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("{0}: write the password into this file, on each controller")]
    Read(PathBuf, #[source] io::Error),
    /// Others can read the file.
    #[error("others than its owner can read {0}: chmod 600 {0}")]
    Open(PathBuf),
    /// The file has no password.
    #[error("{0} is to have the password on one line, of 1 to {BYTES_MAX} bytes")]
    NoPassword(PathBuf),
}

/// Returns the password that a file has on its only line.
pub fn read_secret(path: &Path) -> Result<String, SecretError> {
    let failed = |error| SecretError::Read(path.to_owned(), error);
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
        return Err(SecretError::Open(path.to_owned()));
    }
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let is_line = !password.is_empty() && !password.contains(char::is_control);
    let password = (is_line && text.len() as u64 <= BYTES_MAX).then(|| password.to_owned());
    password.ok_or_else(|| SecretError::NoPassword(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str, mode: u32) -> Result<String, SecretError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bmc");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read_secret(&path)
    }

    #[test]
    fn a_secret_is_one_line_that_only_its_owner_reads() {
        assert_eq!(secret("open sesame\n", 0o600).unwrap(), "open sesame");
        assert_eq!(secret("open sesame", 0o400).unwrap(), "open sesame");
        assert!(matches!(secret("open sesame\n", 0o640), Err(SecretError::Open(_))));
        let long = "x".repeat(5000);
        for text in ["", "\n", "two\nlines\n", long.as_str()] {
            assert!(matches!(secret(text, 0o600), Err(SecretError::NoPassword(_))), "{text}");
        }
        assert!(matches!(read_secret(Path::new("/no/such/file")), Err(SecretError::Read(..))));
    }
}
