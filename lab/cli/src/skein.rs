//! Finds the `skein` that the bench measures and the demo shows.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Which `skein` it is.
#[derive(clap::Args)]
pub struct Skein {
    /// The skein to run [default: the one beside this program]
    #[arg(long = "skein", value_name = "PATH")]
    named: Option<PathBuf>,
}

impl Skein {
    /// Returns the program's absolute path.
    ///
    /// # Errors
    ///
    /// If there is no such file. The error says what to do.
    pub fn path(&self) -> anyhow::Result<PathBuf> {
        match &self.named {
            Some(named) => {
                ensure!(named.is_file(), "there is no program {}, which --skein names", named.display());
                std::path::absolute(named).with_context(|| format!("cannot find {}", named.display()))
            }
            None => beside(&std::env::current_exe().context("cannot find this program")?),
        }
    }
}

/// Returns the `skein` in the directory of `program`.
fn beside(program: &Path) -> anyhow::Result<PathBuf> {
    let skein = program.with_file_name("skein");
    let shown = skein.display();
    ensure!(skein.is_file(), "there is no {shown}: build it beside this program, or name one with --skein");
    Ok(skein)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_beside_this_program_or_named() {
        let directory = tempfile::tempdir().unwrap();
        let (program, skein) = (directory.path().join("skein-lab"), directory.path().join("skein"));
        let missing = beside(&program).unwrap_err().to_string();
        assert!(missing.contains("/skein: build it beside this program, or name one with --skein"), "{missing}");
        let named = Skein { named: Some(skein.clone()) };
        let missing = named.path().unwrap_err().to_string();
        assert!(missing.contains("/skein, which --skein names"), "{missing}");
        std::fs::write(&skein, "").unwrap();
        assert_eq!((beside(&program).unwrap(), named.path().unwrap()), (skein.clone(), skein));
    }
}
