//! The files of the tree, read once: what every rule is about.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of the tree by their paths from its root, with `/` between folders.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

/// Why the tree could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A file or folder is there and cannot be read.
    #[error("cannot read {}; run the check as the user who owns the tree", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Tree {
    /// Reads every file that git knows below `root`, and new files that git does not ignore. Without git, as in an
    /// unpacked archive, reads every file that is not below `target/`.
    ///
    /// A file that is not UTF-8 counts as empty: it is there for links, and no rule reads it.
    ///
    /// # Errors
    /// A file or folder cannot be read.
    pub fn read(root: &Path) -> Result<Tree, TreeError> {
        let paths = match known_to_git(root) {
            Some(paths) => paths,
            None => {
                let mut paths = Vec::new();
                walk(root, "", &mut paths)?;
                paths
            }
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let full = root.join(&path);
            match std::fs::read(&full) {
                Ok(bytes) => {
                    files.insert(path, String::from_utf8(bytes).unwrap_or_default());
                }
                // Deleted, and git has not been told yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(TreeError::Read { path: full, source }),
            }
        }
        Ok(Tree { files })
    }

    /// Makes a tree of paths and texts.
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect() }
    }

    /// Returns the text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Lists all files with their texts, in the order of their paths.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns whether there is a file, or a folder with files in it, at `path`.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.range(folder.clone()..).next().is_some_and(|(found, _)| found.starts_with(&folder))
    }
}

/// Asks git for the files of the tree. `None`: there is no git, or `root` is in no repository.
fn known_to_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()?;
    let paths = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| paths.split_terminator('\0').map(str::to_string).collect())
}

/// Adds all files below `folder` to `paths`.
fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> Result<(), TreeError> {
    let full = root.join(folder);
    let failed = |source| TreeError::Read { path: full.clone(), source };
    for entry in std::fs::read_dir(&full).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        match entry.file_type().map_err(failed)? {
            kind if kind.is_dir() && path != "target" && name != ".git" => walk(root, &path, paths)?,
            kind if kind.is_file() => paths.push(path),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_there_with_a_file_in_it() {
        let tree = Tree::of(&[("docs/a.md", ""), ("docs-old", "")]);
        assert!(tree.has("docs") && tree.has("docs/a.md") && tree.has(""));
        assert!(!tree.has("doc") && !tree.has("docs/b.md"));
    }

    #[test]
    fn the_own_sources_are_found_with_git_and_without() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = own.parent().expect("the crate has a folder above it");
        let tree = Tree::read(root).expect("the tree can be read");
        assert!(tree.text("tidy/src/tree.rs").is_some_and(|text| text.contains("the_own_sources_are_found")));
        let mut paths = Vec::new();
        walk(own, "", &mut paths).expect("the crate's folder can be read");
        assert!(paths.contains(&"src/tree.rs".to_string()), "{paths:?}");
    }
}
