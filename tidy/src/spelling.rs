//! Words are spelled right, by `typos`, which `scripts/typos.sh` fetches. The project's own words are in `.typos.toml`.

use std::path::Path;
use std::process::Command;

use crate::Finding;

/// The program, by its path from the tree's root.
pub const PROGRAM: &str = "target/typos/typos";

/// Why nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum SpellingError {
    /// The program is not there.
    #[error("{PROGRAM} is not there; scripts/typos.sh fetches it")]
    Missing,
    /// The program cannot be started, or ended with an error of its own.
    #[error("{PROGRAM} does not work; see .typos.toml, or remove target/typos and run scripts/typos.sh: {words}")]
    Failed {
        /// What the program or the system said.
        words: String,
    },
}

/// Returns every word that `typos` takes for a mistake.
///
/// # Errors
/// The program is missing, or fails.
pub fn check(root: &Path) -> Result<Vec<Finding>, SpellingError> {
    let program = root.join(PROGRAM);
    if !program.is_file() {
        return Err(SpellingError::Missing);
    }
    let output = Command::new(program)
        .current_dir(root)
        .args(["--config", ".typos.toml", "--format", "brief", "--color", "never", "."])
        .output()
        .map_err(|error| SpellingError::Failed { words: error.to_string() })?;
    // 0: no mistakes, 2: some.
    // <https://github.com/crate-ci/typos/blob/v1.52.0/crates/typos-cli/src/bin/typos-cli/main.rs>
    match output.status.code() {
        Some(0 | 2) => Ok(findings(&String::from_utf8_lossy(&output.stdout))),
        _ => Err(SpellingError::Failed { words: String::from_utf8_lossy(&output.stderr).trim().to_string() }),
    }
}

/// Reads lines as "./docs/a.md:12:3: error: `x` should be `y`".
fn findings(output: &str) -> Vec<Finding> {
    let read = |line: &str| {
        let (place, what) = line.split_once(": ")?;
        let mut parts = place.rsplitn(3, ':');
        let (_, at, path) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        let what = what.trim_start_matches("error: ");
        let what = format!("{what}: correct the word, or add it to .typos.toml if it is right");
        Some(Finding::new(path.trim_start_matches("./"), at, what))
    };
    output
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| read(line).unwrap_or_else(|| Finding::new(".", 1, line)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_read() {
        let output = "./docs/a.md:12:3: error: `x` should be `y`\n./b.rs:1:1: error: `x` should be `y`, `z`\n";
        let expected = [
            "docs/a.md:12: `x` should be `y`: correct the word, or add it to .typos.toml if it is right",
            "b.rs:1: `x` should be `y`, `z`: correct the word, or add it to .typos.toml if it is right",
        ];
        assert_eq!(findings(output).iter().map(Finding::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn no_mistakes_are_no_findings_and_nonsense_is_one() {
        assert_eq!(findings(""), []);
        assert_eq!(findings("something else\n").len(), 1);
    }

    #[test]
    fn a_missing_program_is_told() {
        assert!(matches!(check(Path::new("/nowhere")), Err(SpellingError::Missing)));
    }
}
