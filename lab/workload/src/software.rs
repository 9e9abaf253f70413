//! Software that the guest unpacks and builds, so that its RAM has what that leaves behind: sources, objects, a
//! compiler's programs, and the pages of processes that have ended.
//!
//! The initramfs brings `/software/run`, which does this below [`BUILD_DIRECTORY`]. Every file there is then remembered
//! by a hash.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skein_workload::PAGE_BYTES;

use crate::sys;

/// The program that unpacks and builds. It ends with success if all could be done.
const RUN: &str = "/software/run";
/// Where the software is built: a file system in memory.
const BUILD_DIRECTORY: &str = "/build";

/// The files that were unpacked and built, each with its hash.
pub struct Software {
    files: Vec<(PathBuf, u64)>,
}

impl Software {
    /// Unpacks and builds everything. The output of the program is on the console.
    ///
    /// # Errors
    ///
    /// What could not be done.
    pub fn build() -> Result<Self, String> {
        sys::mount_memory(BUILD_DIRECTORY)?;
        let status = Command::new(RUN)
            .current_dir(BUILD_DIRECTORY)
            .stdin(Stdio::null())
            .status()
            .map_err(|e| format!("{RUN}: {e}; skein.build needs an initramfs with software"))?;
        if !status.success() {
            return Err(format!("{RUN} ended with {status}"));
        }
        let mut files = Vec::new();
        find(Path::new(BUILD_DIRECTORY), &mut files)?;
        let files = files.into_iter().map(|path| Ok((path.clone(), hash(&read(&path)?))));
        Ok(Self { files: files.collect::<Result<_, String>>()? })
    }

    /// Reads every file again. Returns how many pages they have, and how many of these are of files that have changed.
    pub fn verify(&self) -> (u64, u64) {
        let (mut pages, mut bad) = (0, 0);
        for (path, known) in &self.files {
            let content = read(path).unwrap_or_default();
            let its_pages = content.len().div_ceil(PAGE_BYTES).max(1) as u64;
            pages += its_pages;
            bad += if hash(&content) == *known { 0 } else { its_pages };
        }
        (pages, bad)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Finds all plain files below a directory.
fn find(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", directory.display());
    for entry in fs::read_dir(directory).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let kind = entry.file_type().map_err(wrong)?;
        if kind.is_dir() {
            find(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Returns a hash of every byte and of the length.
fn hash(content: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let words = content.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(mix(0xcbf2_9ce4_8422_2325, content.len() as u64), mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_sees_every_byte_and_the_length() {
        let content: Vec<u8> = (0..100).collect();
        let known = hash(&content);
        for at in 0..content.len() {
            let mut other = content.clone();
            other[at] ^= 0x40;
            assert_ne!(hash(&other), known, "{at}");
        }
        assert_ne!(hash(&[0; 8]), hash(&[0; 9]));
        assert_ne!(hash(&[]), hash(&[0]));
    }

    #[test]
    fn files_that_changed_or_went_are_bad() {
        let directory = std::env::temp_dir().join(format!("skein-software-{}", std::process::id()));
        fs::create_dir_all(directory.join("sub")).unwrap();
        fs::write(directory.join("one"), [1; 5000]).unwrap();
        fs::write(directory.join("sub/two"), [2; 10]).unwrap();
        let mut files = Vec::new();
        find(&directory, &mut files).unwrap();
        let files = files.into_iter().map(|path| (path.clone(), hash(&read(&path).unwrap()))).collect();
        let software = Software { files };
        assert_eq!(software.verify(), (3, 0));
        fs::write(directory.join("one"), [1; 4999]).unwrap();
        assert_eq!(software.verify(), (3, 2));
        fs::remove_file(directory.join("sub/two")).unwrap();
        assert_eq!(software.verify(), (3, 3));
        fs::remove_dir_all(directory).unwrap();
    }
}
