//! The crates of the workspace: their folders, names, roots, and which of each other they depend on.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Finding, Tree};

/// A crate of the workspace.
#[derive(Debug)]
pub struct Crate {
    /// Its folder, by its path from the tree's root.
    pub folder: String,
    /// The crates of the workspace that it depends on, by their folders; without dev- and build-dependencies.
    pub dependencies: BTreeSet<String>,
    /// The files that its targets begin with: its library, programs, tests, examples, benches.
    pub roots: Vec<String>,
}

/// Reads all `Cargo.toml` with a `[package]`. What cannot be read is a finding.
pub fn crates(tree: &Tree) -> (Vec<Crate>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut manifests = BTreeMap::new();
    for (path, text) in tree.files().filter(|(path, _)| *path == "Cargo.toml" || path.ends_with("/Cargo.toml")) {
        match text.parse::<toml::Table>() {
            Ok(table) => {
                manifests.insert(path.trim_end_matches("Cargo.toml").trim_end_matches('/').to_string(), table);
            }
            Err(error) => findings.push(Finding::new(path, 1, format!("cannot be read as TOML: {error}"))),
        }
    }
    let shared = manifests.get("").and_then(|root| root.get("workspace")?.get("dependencies")?.as_table()).cloned();
    let shared = shared.unwrap_or_default();
    let crates = manifests
        .iter()
        .filter(|(_, manifest)| manifest.contains_key("package"))
        .map(|(folder, manifest)| Crate {
            folder: folder.clone(),
            dependencies: dependencies(folder, manifest, &shared),
            roots: roots(tree, folder, manifest),
        })
        .collect();
    (crates, findings)
}

/// Returns the folders of the dependencies that have a path.
fn dependencies(folder: &str, manifest: &toml::Table, shared: &toml::Table) -> BTreeSet<String> {
    let tables = manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
    let tables = tables.filter_map(|target| target.get("dependencies")).chain(manifest.get("dependencies"));
    let names = tables.filter_map(toml::Value::as_table).flatten();
    let path_of = |value: &toml::Value| value.get("path").and_then(toml::Value::as_str).map(str::to_string);
    names
        .filter_map(|(name, value)| match value.get("workspace") {
            Some(_) => path_of(shared.get(name)?),
            None => path_of(value).map(|path| joined(folder, &path)),
        })
        .collect()
}

/// Returns the roots of cargo's targets: those that it finds itself, and those that the manifest names.
fn roots(tree: &Tree, folder: &str, manifest: &toml::Table) -> Vec<String> {
    let within = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let mut roots = BTreeSet::new();
    for (path, _) in tree.files() {
        let Some(own) = path.strip_prefix(&within) else { continue };
        let parts: Vec<&str> = own.split('/').collect();
        let is_root = match parts[..] {
            ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
            ["src", "bin", file] | ["tests" | "examples" | "benches", file] => file.ends_with(".rs"),
            ["src", "bin", _, "main.rs"] | ["tests" | "examples" | "benches", _, "main.rs"] => true,
            _ => false,
        };
        if is_root {
            roots.insert(path.to_string());
        }
    }
    for kind in ["lib", "bin", "test", "example", "bench"] {
        let targets = match manifest.get(kind) {
            Some(toml::Value::Array(targets)) => targets.iter().collect(),
            Some(target) => vec![target],
            None => Vec::new(),
        };
        roots.extend(targets.iter().filter_map(|target| Some(joined(folder, target.get("path")?.as_str()?))));
    }
    roots.into_iter().collect()
}

/// Joins a folder and a path that is relative to it, and takes out `.` and `..`.
pub fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_have_their_dependencies_and_roots() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace.dependencies]\nx-a = { path = \"crates/a\" }\nserde = \"1\"\n"),
            ("crates/a/Cargo.toml", "[package]\nname = \"x-a\"\n"),
            ("crates/a/src/lib.rs", ""),
            ("crates/a/tests/one/main.rs", ""),
            ("crates/a/tests/one/part.rs", ""),
            (
                "lab/b/Cargo.toml",
                "[package]\nname = \"x-b\"\n[dependencies]\nx-a.workspace = true\nserde.workspace = true\n\
                 x-c = { path = \"../c\" }\n[dev-dependencies]\nx-d = { path = \"../d\" }\n\
                 [[bin]]\nname = \"t\"\npath = \"targets/t.rs\"\n",
            ),
        ]);
        let (crates, findings) = crates(&tree);
        assert_eq!(findings, []);
        assert_eq!(crates.iter().map(|found| found.folder.as_str()).collect::<Vec<_>>(), ["crates/a", "lab/b"]);
        assert_eq!(crates[0].roots, ["crates/a/src/lib.rs", "crates/a/tests/one/main.rs"]);
        assert_eq!(crates[1].roots, ["lab/b/targets/t.rs"]);
        assert_eq!(crates[1].dependencies.iter().collect::<Vec<_>>(), ["crates/a", "lab/c"]);
    }

    #[test]
    fn a_manifest_that_is_no_toml_is_found() {
        let (crates, findings) = crates(&Tree::of(&[("a/Cargo.toml", "[package\n")]));
        assert!(crates.is_empty() && findings.len() == 1 && findings[0].path == "a/Cargo.toml");
    }
}
