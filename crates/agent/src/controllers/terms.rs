//! Remembers the highest term that any controller had, so that no command of a deposed one is obeyed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use skein_api::Term;
use thiserror::Error;
use tracing::warn;

use crate::dirs::replace;

/// Bounds the file, in bytes: a number has 20 digits at most.
const FILE_BYTES_MAX: usize = 64;

/// The reason why a command of a term is not carried out.
#[derive(Debug, Error)]
pub(crate) enum TermRefused {
    #[error("a later leader has the term {0}")]
    Deposed(Term),
    #[error("this host does not know which leader was the last: {file} cannot be read ({why})", file = .file.display())]
    Unknown { file: PathBuf, why: String },
    #[error("the term {term} cannot be kept, and would be forgotten over a restart")]
    Unkept {
        term: Term,
        #[source]
        source: io::Error,
    },
}

/// The highest term, in memory and on disk.
pub(crate) struct Terms {
    file: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    /// The highest term that was heard of.
    heard: Term,
    /// The term on the disk; an error: why it is not known.
    kept: Result<Term, String>,
}

impl Terms {
    /// Reads the term that was kept. Without a file there was no leader yet. A file that cannot be read is as it is
    /// until a person removes it: any term might have been in it.
    pub(crate) fn load(file: &Path) -> Terms {
        let kept = match read(file) {
            Ok(term) => Ok(term),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Term::default()),
            Err(error) => {
                warn!("no controller is obeyed: {} cannot be read: {error}", file.display());
                Err(error.to_string())
            }
        };
        let heard = kept.as_ref().copied().unwrap_or_default();
        Terms { file: file.to_owned(), known: Mutex::new(Known { heard, kept }) }
    }

    /// Returns the highest term that was heard of.
    pub(crate) fn highest(&self) -> Term {
        self.known.lock().heard
    }

    /// Takes a term into account: it is on the disk when the call returns.
    ///
    /// # Errors
    ///
    /// The term is below the highest, or it cannot be kept, or it is not known which was the highest.
    pub(crate) fn admit(&self, term: Term) -> Result<(), TermRefused> {
        let mut known = self.known.lock();
        if term < known.heard {
            return Err(TermRefused::Deposed(known.heard));
        }
        // Heard is heard: if the disk takes nothing, lower terms are refused all the same.
        known.heard = term;
        let kept = known.kept.clone().map_err(|why| TermRefused::Unknown { file: self.file.clone(), why })?;
        if term > kept {
            write(&self.file, term).map_err(|source| TermRefused::Unkept { term, source })?;
            known.kept = Ok(term);
        }
        Ok(())
    }
}

fn read(file: &Path) -> io::Result<Term> {
    let text = fs::read(file)?;
    let number = Some(&text).filter(|text| text.len() <= FILE_BYTES_MAX).and_then(|text| str::from_utf8(text).ok());
    let number = number.and_then(|text| text.strip_suffix('\n')?.parse().ok());
    number.map(Term).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it holds no number of a term"))
}

/// Writes a term. It is there after a power cut when the call returns.
fn write(file: &Path, term: Term) -> io::Result<()> {
    replace(file, format!("{term}\n").as_bytes())?;
    let dir = file.parent().unwrap_or(Path::new("."));
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_term_is_refused_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("term");
        let terms = Terms::load(&file);
        assert_eq!(terms.highest(), Term(0));
        for term in [0, 0, 3, 3, 7] {
            terms.admit(Term(term)).unwrap();
        }
        for terms in [terms, Terms::load(&file)] {
            assert!(matches!(terms.admit(Term(6)), Err(TermRefused::Deposed(Term(7)))));
            assert_eq!(terms.highest(), Term(7));
            terms.admit(Term(7)).unwrap();
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "7\n");
    }

    #[test]
    fn a_file_that_cannot_be_read_lets_nobody_command() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("term");
        for odd in ["", "7", "x\n", "-1\n", "7 \n", "18446744073709551616\n", &format!("{}7\n", "0".repeat(99))] {
            fs::write(&file, odd).unwrap();
            let terms = Terms::load(&file);
            let refused = terms.admit(Term(99)).unwrap_err().to_string();
            assert!(refused.contains("cannot be read") && refused.contains("term"), "{odd:?}: {refused}");
            assert_eq!(fs::read_to_string(&file).unwrap(), odd, "a person finds it as it was");
            assert!(matches!(terms.admit(Term(98)), Err(TermRefused::Deposed(Term(99)))));
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(matches!(Terms::load(&file).admit(Term(1)), Err(TermRefused::Unknown { .. })));
    }

    #[test]
    fn a_term_that_cannot_be_kept_is_not_obeyed_and_lower_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("state");
        let terms = Terms::load(&own.join("term"));
        assert!(matches!(terms.admit(Term(5)), Err(TermRefused::Unkept { term: Term(5), .. })));
        assert!(matches!(terms.admit(Term(4)), Err(TermRefused::Deposed(Term(5)))));
        fs::create_dir(&own).unwrap();
        terms.admit(Term(5)).unwrap();
        assert_eq!(Terms::load(&own.join("term")).highest(), Term(5));
    }
}
