//! Every document below `docs/` is a page of the book: `docs/SUMMARY.md`, of which mdBook makes the site's list of
//! pages, links to it, once.
//!
//! A document that is not to be a page has a line that begins with [`LEFT_OUT`], and the reason. That links of the list
//! lead somewhere is a matter of [`crate::links`].

use std::collections::BTreeMap;

use crate::crates::joined;
use crate::links::targets;
use crate::{Finding, Tree};

/// The list of pages.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// How a line begins that has a document left out.
pub const LEFT_OUT: &str = "<!-- not in the book: ";

/// Returns every document that is not in the list, and every link to one that is in it already.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.text(SUMMARY) else {
        return vec![Finding::new(SUMMARY, 1, "there is no list of the book's pages")];
    };
    let mut findings = Vec::new();
    let mut listed: BTreeMap<String, usize> = BTreeMap::new();
    for (line, target) in targets(summary) {
        let page = joined("docs", &target);
        if let Some(first) = listed.get(&page) {
            findings.push(Finding::new(SUMMARY, line, format!("{page} is a page already, by line {first}")));
        }
        listed.entry(page).or_insert(line);
    }
    let documents = tree.files().filter(|(path, _)| path.starts_with("docs/") && path.ends_with(".md"));
    for (path, text) in documents.filter(|(path, _)| *path != SUMMARY) {
        let left_out = text.lines().position(|line| line.starts_with(LEFT_OUT));
        match (listed.contains_key(path), left_out) {
            (false, None) => {
                let what = format!("is no page of the book: add it to {SUMMARY}, where a reader looks for it");
                findings.push(Finding::new(path, 1, what));
            }
            (true, Some(before)) => {
                let what = format!("{SUMMARY} has this page: take this line away, or the page's there");
                findings.push(Finding::new(path, before + 1, what));
            }
            _ => {}
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_list_with_every_page_is_fine() {
        let summary = "# S\n\n[A](README.md)\n\n- [B](b.md)\n  - [C](c/d.md)\n- [E](../E.md)\n";
        let files = [
            (SUMMARY, summary),
            ("docs/README.md", "# A\n"),
            ("docs/b.md", "# B\n"),
            ("docs/c/d.md", "# D\n"),
            ("docs/f.md", "# F\n<!-- not in the book: its pictures are missing -->\n"),
            ("docs/g.json", "{}"),
            ("E.md", "# E\n"),
            ("other.md", "# Other\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_page_that_is_missing_is_found() {
        let expected = ["docs/a.md:1: is no page of the book: add it to docs/SUMMARY.md, where a reader looks for it"];
        assert_eq!(found(&[(SUMMARY, "`[a](a.md)`\n"), ("docs/a.md", "# A\n")]), expected);
        assert_eq!(found(&[("docs/a.md", "# A\n")]), ["docs/SUMMARY.md:1: there is no list of the book's pages"]);
    }

    #[test]
    fn a_page_that_is_there_twice_or_left_out_is_found() {
        let files = [
            (SUMMARY, "[a](a.md)\n[a](./a.md)\n[b](b.md)\n"),
            ("docs/a.md", "# A\n"),
            ("docs/b.md", "# B\n\n<!-- not in the book: it is old -->\n"),
        ];
        let expected = [
            "docs/SUMMARY.md:2: docs/a.md is a page already, by line 1",
            "docs/b.md:3: docs/SUMMARY.md has this page: take this line away, or the page's there",
        ];
        assert_eq!(found(&files), expected);
    }
}
