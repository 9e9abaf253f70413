//! The units of services give no more than they have to, as `systemd-analyze security` scores them: from 0, closed, to
//! 10, open. What a unit leaves open has its reason in the unit.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Finding;

/// The most that each unit may score, in tenths.
pub const SCORES_MAX: [(&str, u32); 2] =
    [("systemd/skein-agent.service", 46), ("systemd/skein-controller.service", 20)];

/// Why nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    /// The program is not there, or is older than systemd 250.
    #[error("systemd-analyze cannot score units that are not installed here: {words}")]
    Missing {
        /// What the program or the system said.
        words: String,
    },
}

/// Returns every unit that is too open.
///
/// # Errors
/// The program is missing, or too old.
pub fn check(root: &Path) -> Result<Vec<Finding>, UnitsError> {
    let mut findings = Vec::new();
    for (unit, most) in SCORES_MAX {
        let output = Command::new("systemd-analyze")
            .current_dir(root)
            .args(["security", "--offline=true", "--no-pager", &format!("--threshold={most}"), unit])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| UnitsError::Missing { words: error.to_string() })?;
        let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let Some(score) = told.lines().find(|line| line.contains("exposure level")) else {
            return Err(UnitsError::Missing { words: errors.trim().to_string() });
        };
        if !output.status.success() {
            let score = score.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
            let most = f64::from(most) / 10.0;
            findings.push(Finding::new(unit, 1, format!("{score}: close it until it scores {most}")));
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_unit_is_found() {
        let dir = std::env::temp_dir().join(format!("skein-tidy-units-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("systemd")).unwrap();
        for (unit, _) in SCORES_MAX {
            std::fs::write(dir.join(unit), "[Service]\nExecStart=/bin/true\n").unwrap();
        }
        let found = check(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        match found {
            Ok(found) => {
                let paths: Vec<&str> = found.iter().map(|found| found.path.as_str()).collect();
                assert_eq!(paths, SCORES_MAX.map(|(unit, _)| unit));
            }
            Err(error) => println!("skipped: units: {error}"),
        }
    }
}
