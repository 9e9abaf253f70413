//! Says which sockets of this host peers may connect to.

use std::path::{Component, Path};

use glob::{MatchOptions, Pattern};
use thiserror::Error;

/// A list of permitted unix sockets, as glob patterns of absolute paths.
#[derive(Clone, Debug)]
pub struct Allow {
    patterns: Vec<Pattern>,
}

/// The reason why a pattern or a destination is refused.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum AllowError {
    #[error("'{0}' is no pattern of an absolute path, such as /run/skein/*")]
    BadPattern(String),
    #[error("'{0}' is not an absolute path without '..'")]
    BadTarget(String),
    #[error("connecting to {target} is not allowed on that host: start its agent with --allow '{target}'")]
    NotAllowed { target: String },
}

impl Allow {
    /// Holds the pattern that is allowed by default: sockets made for Skein.
    pub const DEFAULT: &str = "/run/skein/**";

    /// Reads patterns. `*` stays within a directory, `**` does not.
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Allow, AllowError> {
        let read = |text: &str| {
            let absolute = text.starts_with('/');
            Pattern::new(text).ok().filter(|_| absolute).ok_or_else(|| AllowError::BadPattern(text.to_owned()))
        };
        let patterns = patterns.iter().map(|text| read(text.as_ref())).collect::<Result<_, _>>()?;
        Ok(Allow { patterns })
    }

    /// Checks that a peer may connect to `target`.
    pub fn check(&self, target: &str) -> Result<(), AllowError> {
        let path = Path::new(target);
        let plain = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        if !path.is_absolute() || !plain || target.contains('\0') {
            return Err(AllowError::BadTarget(target.to_owned()));
        }
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        if self.patterns.iter().any(|pattern| pattern.matches_with(target, options)) {
            return Ok(());
        }
        Err(AllowError::NotAllowed { target: target.to_owned() })
    }
}

impl std::fmt::Display for Allow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let patterns: Vec<&str> = self.patterns.iter().map(Pattern::as_str).collect();
        f.write_str(&patterns.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_hold() {
        let allow = Allow::new(&["/run/skein/*", "/run/libvirt/libvirt-sock", "/srv/**"]).unwrap();
        for good in ["/run/skein/a.sock", "/run/libvirt/libvirt-sock", "/srv/x/y/z"] {
            allow.check(good).unwrap();
        }
        for bad in [
            "/run/skein/sub/a.sock",
            "/run/skein/../docker.sock",
            "/srv/x/../../etc/shadow",
            "/run/docker.sock",
            "run/skein/a",
            "",
            "/run/skein/a\0b",
        ] {
            assert!(allow.check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn relative_and_broken_patterns_are_refused() {
        assert!(Allow::new(&["run/*"]).is_err());
        assert!(Allow::new(&["/run/[a"]).is_err());
    }
}
