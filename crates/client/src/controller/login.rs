//! What a user keeps to reach a cluster: where its controllers are, whom to trust, and a token.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skein_identity::CaFingerprint;

use super::url::{BadUrl, ControllerUrl};

/// How many bytes a file has at most.
const BYTES_MAX: u64 = 64 << 10;
/// How many controllers a file names at most.
const CONTROLLERS_MAX: usize = 16;

/// What a user keeps to reach a cluster. The file is TOML, and secret:
///
/// ```toml
/// controllers = ["https://10.0.0.1:7443"]
/// ca_sha256 = "…64 hexadecimal digits…"
/// token = "…"
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Where the controllers are, the first to be tried first.
    pub controllers: Vec<ControllerUrl>,
    /// The SHA-256 of the CA's certificate: no controller without a certificate of this CA gets the token.
    pub ca: CaFingerprint,
    /// The token's secret.
    pub token: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("controllers", &self.controllers).field("ca", &self.ca).finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    controllers: Vec<String>,
    ca_sha256: String,
    token: String,
}

/// Why a login cannot be read or kept.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LoginError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not what `skein login` writes: log in again", path.display())]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{} names no controllers, or more than {CONTROLLERS_MAX}: log in again", path.display())]
    Controllers { path: PathBuf },
    #[error("{} names a controller that is none: log in again", path.display())]
    Url { path: PathBuf, source: BadUrl },
    #[error("{} has no fingerprint of a CA: log in again", path.display())]
    Fingerprint { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl Login {
    /// Reads a file. `None`: there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read or understood.
    pub fn load(path: &Path) -> Result<Option<Login>, LoginError> {
        let path = path.to_owned();
        let read = || {
            let mut text = String::new();
            std::fs::File::open(&path)?.take(BYTES_MAX).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = match read() {
            Ok(text) => text,
            Err(error) if error_is_absence(&error) => return Ok(None),
            Err(source) => return Err(LoginError::Read { path, source }),
        };
        let file: File = match toml::from_str(&text) {
            Ok(file) => file,
            Err(source) => return Err(LoginError::Parse { path, source: Box::new(source) }),
        };
        if !(1..=CONTROLLERS_MAX).contains(&file.controllers.len()) {
            return Err(LoginError::Controllers { path });
        }
        let urls: Result<Vec<ControllerUrl>, BadUrl> = file.controllers.iter().map(|url| url.parse()).collect();
        let controllers = match urls {
            Ok(controllers) => controllers,
            Err(source) => return Err(LoginError::Url { path, source }),
        };
        let Ok(ca) = file.ca_sha256.parse() else { return Err(LoginError::Fingerprint { path }) };
        Ok(Some(Login { controllers, ca, token: file.token }))
    }

    /// Writes a file that only this user can read, in place of an earlier one.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), LoginError> {
        let file = File {
            controllers: self.controllers.iter().map(ToString::to_string).collect(),
            ca_sha256: self.ca.to_hex(),
            token: self.token.clone(),
        };
        let write = || {
            let text = toml::to_string(&file).map_err(io::Error::other)?;
            if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            let part = path.with_extension(format!("{}.part", std::process::id()));
            let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
            let done = out
                .write_all(format!("# Written by `skein login`. The token is secret.\n{text}").as_bytes())
                .and_then(|()| out.sync_all())
                .and_then(|()| std::fs::rename(&part, path));
            if done.is_err() {
                let _ = std::fs::remove_file(&part);
            }
            done
        };
        write().map_err(|source| LoginError::Write { path: path.to_owned(), source })
    }
}

/// Returns whether there is nothing at a path, also because this user's directory is not there.
fn error_is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_login_is_kept_secret_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("skein/login.toml");
        assert_eq!(Login::load(&path).unwrap(), None);
        let ca = "ab".repeat(32).parse().unwrap();
        let login = Login { controllers: vec!["10.0.0.1".parse().unwrap()], ca, token: "s3cret".into() };
        for _ in 0..2 {
            login.save(&path).unwrap();
        }
        assert_eq!(Login::load(&path).unwrap(), Some(login.clone()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path().join("skein")).unwrap().count(), 1);
        assert!(!format!("{login:?}").contains("s3cret"));
        for (broken, says) in [
            ("x = 1", "log in again"),
            ("controllers = []\nca_sha256 = ''\ntoken = ''", "names no controllers"),
            ("controllers = ['http://a']\nca_sha256 = ''\ntoken = ''", "is none"),
            ("controllers = ['a']\nca_sha256 = 'ab'\ntoken = ''", "no fingerprint"),
        ] {
            std::fs::write(&path, broken).unwrap();
            let error = Login::load(&path).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
