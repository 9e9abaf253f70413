//! The arrows between the workspace's crates are those that ARCHITECTURE.md lists: neither more nor fewer.
//!
//! The list is a code block that begins with ```` ```arrows ````. Its first line names the crates that are pure; each
//! other line has crates, and the crates that each of them depends on, without dev- and build-dependencies:
//!
//! ```text
//! pure: core, pages
//! api -> pages
//! core ->
//! ```
//!
//! A crate in `crates/` goes by its folder's name. All crates below another folder, as `lab/`, are one group with that
//! folder's name; arrows inside a group are its own matter.

use std::collections::{BTreeMap, BTreeSet};

use crate::crates::Crate;
use crate::{Finding, Tree};

/// The document that lists the arrows.
pub const DOCUMENT: &str = "ARCHITECTURE.md";

/// The list in the document.
#[derive(Debug, Default)]
pub struct Listed {
    /// The line of the list's beginning, counted from 1.
    pub line: usize,
    /// The crates that are pure, by their names in the list.
    pub pure: BTreeSet<String>,
    /// Of each crate or group its line in the document and what it depends on.
    arrows: BTreeMap<String, (usize, BTreeSet<String>)>,
}

/// Reads the list. What cannot be read is a finding.
pub fn listed(tree: &Tree) -> (Listed, Vec<Finding>) {
    let text = tree.text(DOCUMENT).unwrap_or_default();
    let mut lines = text.lines().enumerate().map(|(before, line)| (before + 1, line.trim()));
    let Some((begin, _)) = lines.find(|(_, line)| *line == "```arrows") else {
        let what = "has no list of the arrows between crates: a code block that begins with ```arrows";
        return (Listed::default(), vec![Finding::new(DOCUMENT, 1, what)]);
    };
    let mut listed = Listed { line: begin, ..Listed::default() };
    let mut findings = Vec::new();
    let words = |text: &str| -> BTreeSet<String> {
        text.split(',').map(|word| word.trim().to_string()).filter(|word| !word.is_empty()).collect()
    };
    for (line, text) in lines.take_while(|(_, line)| *line != "```").filter(|(_, line)| !line.is_empty()) {
        if let Some(pure) = text.strip_prefix("pure:") {
            listed.pure = words(pure);
        } else if let Some((name, ends)) = text.split_once("->") {
            for name in words(name) {
                if listed.arrows.insert(name.clone(), (line, words(ends))).is_some() {
                    findings.push(Finding::new(DOCUMENT, line, format!("lists {name} twice: make one line of both")));
                }
            }
        } else {
            findings.push(Finding::new(DOCUMENT, line, "is no arrow: write `crate -> crate, crate`"));
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
            let line_to_be = format!("{from} -> {}", ends.keys().copied().collect::<Vec<_>>().join(", "));
            findings.push(Finding::new(
                DOCUMENT,
                listed.line,
                format!("lacks the crate {from}: add `{}`", line_to_be.trim()),
            ));
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

    #[test]
    fn the_arrows_of_the_tree_are_the_listed_ones() {
        assert_eq!(found("# A\n\n```arrows\npure: b\n\na -> b\nb ->\nlab -> a\n```\n"), [""; 0]);
    }

    #[test]
    fn crates_with_the_same_needs_share_a_line() {
        assert_eq!(found("```arrows\na, lab -> b\nb ->\n```\n").len(), 2, "lab needs a, and not b");
        let tree = Tree::of(&[(DOCUMENT, "```arrows\na, b -> c, d\n```\n")]);
        let (listed, findings) = listed(&tree);
        assert!(findings.is_empty() && listed.arrows["a"] == listed.arrows["b"] && listed.arrows["b"].1.len() == 2);
    }

    #[test]
    fn an_arrow_that_is_not_listed_is_found() {
        let found = found("```arrows\na -> b\nb ->\nlab ->\n```\n");
        assert!(found.len() == 1 && found[0].starts_with("lab/c/Cargo.toml:1: lab/c depends on a, and"), "{found:?}");
    }

    #[test]
    fn what_is_listed_and_not_there_is_found() {
        let found = found("```arrows\na -> b\nb -> a\nlab -> a\ne -> a\n```\n");
        let expected = [
            "ARCHITECTURE.md:3: b does not depend on a any more: take it out",
            "ARCHITECTURE.md:5: there is no crate e: take the line out",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_list_that_lacks_a_crate_is_found_and_so_is_nonsense() {
        let found_in = found("```arrows\na -> b\nb\nb ->\nb ->\n```\n");
        let expected = [
            "ARCHITECTURE.md:3: is no arrow: write `crate -> crate, crate`",
            "ARCHITECTURE.md:5: lists b twice: make one line of both",
            "ARCHITECTURE.md:1: lacks the crate lab: add `lab -> a`",
        ];
        assert_eq!(found_in, expected);
        assert!(found("nothing")[0].starts_with("ARCHITECTURE.md:1: has no list"));
    }
}
