//! The dependencies of all crates: their licences, what must not be among them, how many versions of each there are,
//! and where they come from. What is allowed is in [`PATH`], each with its reason; what is listed there and no longer
//! needed is a finding, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::licence::is_satisfied;
use crate::{Finding, Tree};

/// The list of what is allowed.
pub const PATH: &str = "tidy/dependencies.toml";

/// The only place that dependencies come from: crates.io.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A package that some crate of the workspace is built with.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence, as SPDX expression.
    pub licence: Option<String>,
    /// Where it comes from. `None`: from the tree itself.
    pub source: Option<String>,
    /// Whether it is in the program `skein`, which runs on hosts.
    pub on_hosts: bool,
}

/// Why cargo's answer is of no use.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// Cargo cannot be started.
    #[error("cannot run cargo; see that it is in PATH")]
    Start(#[source] std::io::Error),
    /// Cargo ended with an error.
    #[error("cargo failed; if Cargo.lock is older than a Cargo.toml, run `cargo check`: {words}")]
    Refused {
        /// What cargo said.
        words: String,
    },
    /// Cargo's answer is no JSON, or lacks something.
    #[error("`cargo metadata` answered what is not understood: {what}")]
    Answer {
        /// What is wrong with the answer.
        what: String,
    },
}

/// Asks cargo for the packages that Linux on x86-64 needs, with all features of all crates.
///
/// `cargo metadata` knows licences and sources, but lists packages that no feature turns on; `cargo tree` knows what is
/// built.
///
/// # Errors
/// Cargo is missing, refuses, or answers something else.
pub fn packages(root: &Path) -> Result<Vec<Package>, MetadataError> {
    let platform = "x86_64-unknown-linux-gnu";
    let described = asked(root, &["metadata", "--format-version=1", "--filter-platform", platform])?;
    let edges = "--edges=normal,build,dev";
    let built = asked(root, &["tree", "--workspace", "--target", platform, edges, "--prefix=none", "--format={p}"])?;
    let built: BTreeSet<(&str, &str)> = built.lines().filter_map(built_package).collect();
    let hosts = ["tree", "--package=skein", "--target", platform, "--edges=normal", "--prefix=none", "--format={p}"];
    let hosts = asked(root, &hosts)?;
    let hosts: BTreeSet<(&str, &str)> = hosts.lines().filter_map(built_package).collect();
    let mut packages = understood(&described)?;
    packages.retain(|package| built.contains(&(&package.name, &package.version)));
    for package in &mut packages {
        package.on_hosts = hosts.contains(&(&package.name, &package.version));
    }
    Ok(packages)
}

/// Returns what cargo answers to a question about all features.
fn asked(root: &Path, question: &[&str]) -> Result<String, MetadataError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(question)
        .args(["--locked", "--all-features"])
        .output()
        .map_err(MetadataError::Start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(MetadataError::Refused { words: String::from_utf8_lossy(&output.stderr).trim().to_string() })
}

/// Reads a line as "syn v3.0.9 (proc-macro)": a name and a version.
fn built_package(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

/// Reads what `cargo metadata` answers.
fn understood(answer: &str) -> Result<Vec<Package>, MetadataError> {
    let wrong = |what: &str| MetadataError::Answer { what: what.to_string() };
    let answer: serde_json::Value = serde_json::from_str(answer).map_err(|error| wrong(&error.to_string()))?;
    let packages = answer["packages"].as_array().ok_or_else(|| wrong("packages is missing"))?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_string);
    packages
        .iter()
        .map(|package| {
            Ok(Package {
                name: text(&package["name"]).ok_or_else(|| wrong("a package has no name"))?,
                version: text(&package["version"]).ok_or_else(|| wrong("a package has no version"))?,
                licence: text(&package["license"]),
                source: text(&package["source"]),
                on_hosts: false,
            })
        })
        .collect()
}

/// Returns what is wrong with the packages, by the list that is in the tree.
pub fn check(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let list = match tree.text(PATH).unwrap_or_default().parse::<toml::Table>() {
        Ok(list) => list,
        Err(error) => return vec![Finding::new(PATH, 1, format!("cannot be read as TOML: {error}"))],
    };
    let listed = |key: &str| -> BTreeMap<&str, &str> {
        let table = list.get(key).and_then(toml::Value::as_table).into_iter().flatten();
        table.map(|(name, reason)| (name.as_str(), reason.as_str().unwrap_or_default())).collect()
    };
    let (licences, banned, duplicates) = (listed("licences"), listed("banned"), listed("duplicates"));
    let off_hosts = listed("banned-on-hosts");
    let mut rules = Rules { tree, findings: Vec::new() };
    for (name, reason) in licences.iter().chain(&banned).chain(&off_hosts).chain(&duplicates) {
        if reason.trim().is_empty() {
            rules.at_list(name, format!("{name} has no reason: say why"));
        }
    }
    rules.licences(packages, &licences);
    rules.duplicates(packages, &duplicates);
    for package in packages {
        if let Some(reason) = banned.get(package.name.as_str()) {
            rules.at_package(package, format!("{} is banned: {reason}", package.name));
        }
        if let Some(reason) = off_hosts.get(package.name.as_str()).filter(|_| package.on_hosts) {
            rules.at_package(package, format!("{} is banned in the program skein: {reason}", package.name));
        }
        if let Some(source) = package.source.as_deref().filter(|source| *source != REGISTRY) {
            rules.at_package(package, format!("{} comes from {source}: take it from crates.io", package.name));
        }
    }
    rules.findings
}

struct Rules<'a> {
    tree: &'a Tree,
    findings: Vec<Finding>,
}

impl Rules<'_> {
    fn licences(&mut self, packages: &[Package], allowed: &BTreeMap<&str, &str>) {
        let names: Vec<&str> = allowed.keys().copied().collect();
        let mut used = BTreeSet::new();
        for package in packages.iter().filter(|package| package.source.is_some()) {
            let expression = package.licence.as_deref().unwrap_or_default();
            used.extend(expression.split(['(', ')', ' ', '/']));
            if is_satisfied(expression, &names) != Some(true) {
                let what = format!("{} has the licence '{expression}', which {PATH} does not allow", package.name);
                self.at_package(package, what);
            }
        }
        for name in names.iter().filter(|name| !used.contains(*name)) {
            self.at_list(name, format!("no dependency has the licence {name} any more: take it out"));
        }
    }

    fn duplicates(&mut self, packages: &[Package], allowed: &BTreeMap<&str, &str>) {
        let mut versions: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
        for package in packages {
            versions.entry(&package.name).or_default().push(package);
        }
        for (name, same) in versions.iter().filter(|(name, same)| same.len() > 1 && !allowed.contains_key(**name)) {
            let all: Vec<&str> = same.iter().map(|package| package.version.as_str()).collect();
            let what = format!(
                "{name} is there in the versions {}: see `cargo tree -i {name}@{}`, and let one do, or list it in \
                 {PATH} \
                 with the reason why both stay",
                all.join(", "),
                all[0]
            );
            self.at_package(same[0], what);
        }
        for name in allowed.keys().filter(|name| versions.get(*name).is_none_or(|same| same.len() < 2)) {
            self.at_list(name, format!("there are no two versions of {name} any more: take it out"));
        }
    }

    /// Adds a finding at the line of [`PATH`] that begins with `name`.
    fn at_list(&mut self, name: &str, what: String) {
        let mut lines = self.tree.text(PATH).unwrap_or_default().lines();
        let line = lines.position(|line| line.trim_matches('"').split(['"', ' ']).next() == Some(name));
        self.findings.push(Finding::new(PATH, line.map_or(1, |before| before + 1), what));
    }

    /// Adds a finding at the package's place in `Cargo.lock`.
    fn at_package(&mut self, package: &Package, what: String) {
        let entry = format!("name = \"{}\"\nversion = \"{}\"\n", package.name, package.version);
        let before = self.tree.text("Cargo.lock").and_then(|text| text.split_once(&entry)).map(|(before, _)| before);
        let line = before.map_or(1, |before| before.lines().count() + 1);
        self.findings.push(Finding::new("Cargo.lock", line, what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "[licences]\nMIT = \"asks for its text only\"\n\n[banned]\nopenssl = \"rustls does it\"\n\n\
                        [banned-on-hosts]\ntokio = \"threads do it\"\n\n\
                        [duplicates]\nrand = \"a test's tool has the older\"\n";

    fn package(name: &str, version: &str) -> Package {
        let (name, version) = (name.to_string(), version.to_string());
        Package { name, version, licence: Some("MIT".into()), source: Some(REGISTRY.into()), on_hosts: false }
    }

    fn found(list: &str, packages: &[Package]) -> Vec<String> {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";
        check(&Tree::of(&[(PATH, list), ("Cargo.lock", lock)]), packages).iter().map(Finding::to_string).collect()
    }

    fn two_rand() -> Vec<Package> {
        vec![package("rand", "0.9.0"), package("rand", "0.10.0")]
    }

    #[test]
    fn what_is_allowed_is_fine() {
        let own = Package { source: None, licence: None, ..package("own", "0.1.0") };
        assert_eq!(found(LIST, &[two_rand(), vec![package("a", "1.0.0"), own]].concat()), [""; 0]);
    }

    #[test]
    fn a_licence_that_is_not_listed_is_found() {
        let other = Package { licence: Some("GPL-3.0".into()), ..package("b", "2.0.0") };
        let none = Package { licence: None, ..package("a", "1.0.0") };
        let expected = [
            "Cargo.lock:2: a has the licence '', which tidy/dependencies.toml does not allow",
            "Cargo.lock:6: b has the licence 'GPL-3.0', which tidy/dependencies.toml does not allow",
        ];
        assert_eq!(found(LIST, &[two_rand(), vec![none, other]].concat()), expected);
    }

    #[test]
    fn what_is_banned_or_from_elsewhere_is_found() {
        let elsewhere = Package { source: Some("git+https://example.org/b".into()), ..package("b", "2.0.0") };
        let expected = [
            "Cargo.lock:1: openssl is banned: rustls does it",
            "Cargo.lock:6: b comes from git+https://example.org/b: take it from crates.io",
        ];
        assert_eq!(found(LIST, &[two_rand(), vec![package("openssl", "1.0.0"), elsewhere]].concat()), expected);
    }

    #[test]
    fn what_is_banned_on_hosts_is_found_there_only() {
        let elsewhere = package("tokio", "1.0.0");
        assert_eq!(found(LIST, &[two_rand(), vec![package("a", "1.0.0"), elsewhere.clone()]].concat()), [""; 0]);
        let there = Package { on_hosts: true, ..elsewhere };
        let expected = ["Cargo.lock:1: tokio is banned in the program skein: threads do it"];
        assert_eq!(found(LIST, &[two_rand(), vec![package("a", "1.0.0"), there]].concat()), expected);
    }

    #[test]
    fn two_versions_are_found() {
        let packages = [two_rand(), vec![package("a", "1.0.0"), package("a", "2.0.0")]].concat();
        let found = found(LIST, &packages);
        assert!(
            found.len() == 1 && found[0].starts_with("Cargo.lock:2: a is there in the versions 1.0.0, 2.0.0"),
            "{found:?}"
        );
    }

    #[test]
    fn what_is_listed_and_not_needed_is_found() {
        let list = LIST.replace("MIT =", "ISC = \"\"\nMIT =");
        let expected = [
            "tidy/dependencies.toml:2: ISC has no reason: say why",
            "tidy/dependencies.toml:2: no dependency has the licence ISC any more: take it out",
            "tidy/dependencies.toml:12: there are no two versions of rand any more: take it out",
        ];
        assert_eq!(found(&list, &[package("rand", "0.9.0")]), expected);
    }

    #[test]
    fn cargo_s_answers_are_read() {
        let answer = r#"{"packages": [
            {"name": "a", "version": "1.0.0", "license": "MIT", "source": "registry+x"},
            {"name": "own", "version": "0.1.0", "license": null, "source": null}]}"#;
        let packages = understood(answer).expect("the answer is whole");
        assert_eq!(packages.iter().map(|package| package.name.as_str()).collect::<Vec<_>>(), ["a", "own"]);
        assert_eq!((&packages[0].licence, &packages[1].source), (&Some("MIT".to_string()), &None));
        assert!(understood("{}").is_err() && understood("no").is_err());
        assert_eq!(built_package("syn v3.0.9 (proc-macro)"), Some(("syn", "3.0.9")));
        assert_eq!(built_package(""), None);
    }
}
