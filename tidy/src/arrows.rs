//! The arrows between the workspace's crates are those that ARCHITECTURE.md lists: neither more nor fewer.
//!
//! The list is the map: the table whose header begins as below. A row has the folders of its crates in
//! backticks, what they are, the crates that they depend on without dev- and build-dependencies, and what they know
//! nothing of. A crate is pure if what it is says so in a sentence of its own:
//!
//! ```text
//! | where | what | depends on | knows nothing of |
//! |---|---|---|---|
//! | `crates/session` | frames and streams. Pure | | sockets |
//! | `crates/link`, `lab/hosts` | two hosts, joined | session | QEMU |
//! ```
//!
//! A crate in `crates/` goes by its folder's name. All crates below another folder, as `lab/`, are one group with that
//! folder's name, which depends on what its rows say together; arrows inside a group are its own matter.

use std::collections::{BTreeMap, BTreeSet};

use crate::crates::Crate;
use crate::{Finding, Tree};

/// The document that lists the arrows.
pub const DOCUMENT: &str = "ARCHITECTURE.md";

/// How the table begins that lists the arrows.
const HEADER: &str = "| where | what | depends on |";

/// The list in the document.
#[derive(Debug, Default)]
pub struct Listed {
    /// The line of the list's beginning, counted from 1.
    pub line: usize,
    /// The crates that are pure, by their names in the list.
    pub pure: BTreeSet<String>,
    /// Of each crate or group its last line in the document and what it depends on.
    arrows: BTreeMap<String, (usize, BTreeSet<String>)>,
}

/// Reads the list. What cannot be read is a finding.
pub fn listed(tree: &Tree) -> (Listed, Vec<Finding>) {
    let text = tree.text(DOCUMENT).unwrap_or_default();
    let mut lines = text.lines().enumerate().map(|(before, line)| (before + 1, line.trim()));
    let Some((begin, _)) = lines.find(|(_, line)| line.starts_with(HEADER)) else {
        let what = format!("has no map with the arrows between crates: a table that begins with `{HEADER}`");
        return (Listed::default(), vec![Finding::new(DOCUMENT, 1, what)]);
    };
    let mut listed = Listed { line: begin, ..Listed::default() };
    let mut findings = Vec::new();
    let mut folders = BTreeSet::new();
    for (line, row) in lines.skip(1).take_while(|(_, line)| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [places, what, needs, _] = cells[..] else {
            findings.push(Finding::new(DOCUMENT, line, "is no row of the map: write four cells"));
            continue;
        };
        let needs: BTreeSet<String> =
            needs.split(',').map(|word| word.trim().to_string()).filter(|word| !word.is_empty()).collect();
        for folder in places.split('`').skip(1).step_by(2) {
            if !folders.insert(folder) {
                findings.push(Finding::new(DOCUMENT, line, format!("lists {folder} twice: make one row of both")));
            }
            if what.ends_with(". Pure") {
                listed.pure.insert(name(folder).into());
            }
            let arrows = listed.arrows.entry(name(folder).into()).or_default();
            arrows.0 = line;
            arrows.1.extend(needs.iter().cloned());
        }
    }
    (listed, findings)
}

/// Returns the name of a crate in the list.
pub fn name(folder: &str) -> &str {
    folder.strip_prefix("crates/").unwrap_or_else(|| folder.split('/').next().unwrap_or_default())
}

/// Returns the arrows that the list lacks, and those that it has and the tree has not.
pub fn check(crates: &[Crate], listed: &Listed) -> Vec<Finding> {
    let mut arrows: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for found in crates {
        let own = name(&found.folder);
        let ends = found.dependencies.iter().map(|to| (name(to), found.folder.as_str())).filter(|(to, _)| *to != own);
        arrows.entry(own).or_default().extend(ends);
    }
    let mut findings = Vec::new();
    for (from, ends) in &arrows {
        let Some((line, expected)) = listed.arrows.get(*from) else {
            let needs = ends.keys().copied().collect::<Vec<_>>().join(", ");
            let what = format!("lacks the crate {from}, which depends on: {needs}. Add a row");
            findings.push(Finding::new(DOCUMENT, listed.line, what));
            continue;
        };
        for (to, folder) in ends.iter().filter(|(to, _)| !expected.contains(**to)) {
            let what = format!(
                "{folder} depends on {to}, and {DOCUMENT} has no such arrow: take the dependency out, or add it there \
                 and say in the map why {from} may know {to}"
            );
            findings.push(Finding::new(&format!("{folder}/Cargo.toml"), 1, what));
        }
        for to in expected.iter().filter(|to| !ends.contains_key(to.as_str())) {
            findings.push(Finding::new(
                DOCUMENT,
                *line,
                format!("{from} does not depend on {to} any more: take it out"),
            ));
        }
    }
    for (from, (line, _)) in listed.arrows.iter().filter(|(from, _)| !arrows.contains_key(from.as_str())) {
        findings.push(Finding::new(DOCUMENT, *line, format!("there is no crate {from}: take the line out")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFESTS: [(&str, &str); 4] = [
        ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n[dependencies]\nb = { path = \"../b\" }\n"),
        ("crates/b/Cargo.toml", "[package]\nname = \"b\"\n[dev-dependencies]\na = { path = \"../a\" }\n"),
        (
            "lab/c/Cargo.toml",
            "[package]\nname = \"c\"\n[dependencies]\nd = { path = \"../d\" }\na = { path = \"../../crates/a\" }\n",
        ),
        ("lab/d/Cargo.toml", "[package]\nname = \"d\"\n"),
    ];

    fn found(document: &str) -> Vec<String> {
        let tree = Tree::of(&[&MANIFESTS[..], &[(DOCUMENT, document)]].concat());
        let (listed, mut findings) = listed(&tree);
        findings.extend(check(&crate::crates::crates(&tree).0, &listed));
        findings.iter().map(Finding::to_string).collect()
    }

    /// A document with a map of these rows, the first of which is line 3.
    fn map(rows: &str) -> String {
        format!("{HEADER} knows nothing of |\n|---|---|---|---|\n{rows}\nThe end.\n| `crates/z` | no row | | |\n")
    }

    #[test]
    fn the_arrows_of_the_tree_are_the_listed_ones() {
        let rows = "| `crates/a` | x. Pure | b | |\n| `crates/b` | y | | |\n| `lab/c`, `lab/d` | z | a | |\n";
        assert_eq!(found(&map(rows)), [""; 0]);
        let (listed, _) = listed(&Tree::of(&[(DOCUMENT, &map(rows))]));
        assert_eq!(listed.pure, BTreeSet::from(["a".to_string()]));
    }

    #[test]
    fn a_group_depends_on_what_its_rows_say_together() {
        let rows = "| `lab/c` | z | a, b | |\n| `lab/d` | z | e | |\n";
        let (listed, findings) = listed(&Tree::of(&[(DOCUMENT, &map(rows))]));
        assert!(findings.is_empty());
        assert_eq!(listed.arrows["lab"], (4, ["a", "b", "e"].map(String::from).into()));
    }

    #[test]
    fn an_arrow_that_is_not_listed_is_found() {
        let found = found(&map("| `crates/a` | | b | |\n| `crates/b` | | | |\n| `lab/c` | | | |\n"));
        assert!(found.len() == 1 && found[0].starts_with("lab/c/Cargo.toml:1: lab/c depends on a, and"), "{found:?}");
    }

    #[test]
    fn what_is_listed_and_not_there_is_found() {
        let rows = "| `crates/a` | | b | |\n| `crates/b` | | a | |\n| `lab/c` | | a | |\n| `crates/e` | | a | |\n";
        let expected = [
            "ARCHITECTURE.md:4: b does not depend on a any more: take it out",
            "ARCHITECTURE.md:6: there is no crate e: take the line out",
        ];
        assert_eq!(found(&map(rows)), expected);
    }

    #[test]
    fn a_list_that_lacks_a_crate_is_found_and_so_is_nonsense() {
        let rows = "| `crates/a` | | b | |\n| b |\n| `crates/b` | | | |\n| `crates/b` | | | |\n";
        let expected = [
            "ARCHITECTURE.md:4: is no row of the map: write four cells",
            "ARCHITECTURE.md:6: lists crates/b twice: make one row of both",
            "ARCHITECTURE.md:1: lacks the crate lab, which depends on: a. Add a row",
        ];
        assert_eq!(found(&map(rows)), expected);
        assert!(found("nothing")[0].starts_with("ARCHITECTURE.md:1: has no map"));
    }
}
