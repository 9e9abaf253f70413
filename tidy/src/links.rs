//! Every link of every `.md` leads somewhere: to a file or folder of the tree, and, with a `#`, to a heading of the
//! document. Links to other sites are not followed.
//!
//! An anchor is made as GitHub makes it: the heading's text in small letters, without what is neither letter, digit,
//! `-` nor `_`, with `-` for each space; a second heading of the same text gets `-1`, a third `-2`.
//! <https://github.com/gjtorikian/html-pipeline/blob/v2.14.3/lib/html/pipeline/toc_filter.rb>
//!
//! Links are `[text](target)`, `[text]: target`, `href="target"` and `src="target"`, outside of code.

use std::collections::{BTreeMap, BTreeSet};

use crate::crates::joined;
use crate::{Finding, Tree};

/// Returns every link that leads nowhere.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let documents: BTreeMap<&str, Document> = tree
        .files()
        .filter(|(path, _)| path.ends_with(".md"))
        .map(|(path, text)| (path, Document::read(text)))
        .collect();
    let mut findings = Vec::new();
    for (path, document) in &documents {
        for (line, target) in &document.links {
            if let Some(what) = wrong(tree, &documents, path, target) {
                findings.push(Finding::new(path, *line, what));
            }
        }
    }
    findings
}

/// Lists the targets of a document's links, each with its line, counted from 1.
pub(crate) fn targets(text: &str) -> Vec<(usize, String)> {
    Document::read(text).links
}

/// Returns what is wrong with a link.
fn wrong(tree: &Tree, documents: &BTreeMap<&str, Document>, from: &str, target: &str) -> Option<String> {
    if target.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(|sign| sign.is_ascii_alphanumeric())) {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = if file.is_empty() { from.to_string() } else { joined(folder, file) };
    if !tree.has(&path) {
        return Some(format!("the link to {target} is dead: there is no {path}"));
    }
    let (anchor, document) = (anchor?, documents.get(path.as_str()));
    match document {
        Some(document) if !document.anchors.contains(anchor) => {
            let near = document.anchors.iter().find(|known| known.contains(anchor) || anchor.contains(known.as_str()));
            let near = near.map(|near| format!("; did you mean #{near}?")).unwrap_or_default();
            Some(format!("the link to {target} is dead: {path} has no heading with the anchor #{anchor}{near}"))
        }
        None if !anchor.starts_with('L') => Some(format!("the link to {target} is dead: {path} has no headings")),
        _ => None,
    }
}

/// What a document says of links.
#[derive(Debug, Default)]
struct Document {
    anchors: BTreeSet<String>,
    /// The links, each with its line, counted from 1.
    links: Vec<(usize, String)>,
}

impl Document {
    fn read(text: &str) -> Document {
        let mut document = Document::default();
        let mut fence: Option<&str> = None;
        for (before, raw) in text.lines().enumerate() {
            let trimmed = raw.trim_start();
            let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
            match (fence, mark) {
                (Some(open), Some(mark)) if open == mark => fence = None,
                (None, Some(mark)) => fence = Some(mark),
                (None, None) => {
                    let line = without_code(raw);
                    let signs = raw.chars().take_while(|sign| *sign == '#').count();
                    if (1..=6).contains(&signs) && raw[signs..].starts_with(' ') {
                        document.add_anchor(&raw[signs..]);
                    }
                    for attribute in ["id=\"", "name=\""] {
                        document.anchors.extend(quoted(&line, attribute).map(str::to_string));
                    }
                    document.links.extend(links(&line).map(|target| (before + 1, target.to_string())));
                }
                (Some(_), _) => {}
            }
        }
        document
    }

    fn add_anchor(&mut self, heading: &str) {
        let anchor = anchor(heading);
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|anchor| !self.anchors.contains(anchor));
        self.anchors.extend(free);
    }
}

/// Makes the anchor of a heading.
fn anchor(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading.trim().trim_end_matches('#').trim_end();
    // Of a link, only its text is a part of the heading.
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let kept = text
        .chars()
        .flat_map(char::to_lowercase)
        .filter(|sign| sign.is_alphanumeric() || matches!(sign, '-' | '_' | ' '));
    kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect()
}

/// Puts blanks in place of `code`.
fn without_code(line: &str) -> String {
    let mut parts = line.split('`');
    let mut text = parts.next().unwrap_or_default().to_string();
    while let Some(code) = parts.next() {
        match parts.next() {
            Some(after) => {
                text.push_str(&" ".repeat(code.len() + 2));
                text.push_str(after);
            }
            // A backtick without its other one is a backtick.
            None => {
                text.push('`');
                text.push_str(code);
            }
        }
    }
    text
}

/// Lists the targets of a line's links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|after| after.split([')', ' ']).next());
    let defined =
        line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
    let targets = inline.chain(defined).chain(quoted(line, "href=\"")).chain(quoted(line, "src=\""));
    targets.map(|target| target.trim_matches(['<', '>']))
}

/// Lists what stands after `attribute` and before the next quotation mark.
fn quoted<'a>(line: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    line.split(attribute).skip(1).filter_map(|after| after.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        let tree = Tree::of(&[
            (
                "README.md",
                "# A\n[b](docs/b.md#two-words-and-a_c) ![p](docs/p.svg) [d](docs) [c][c] [s](https://x.org/y#z) \
                 [a](#a)\n\
                 [m](mailto:a@b.c) `[x](none.md)` [l](src/a.rs#L3)\n```\n[x](none.md)\n```\n[c]: docs/b.md#again-1\n\
                 <a href=\"docs/b.md#named\"></a>\n",
            ),
            ("docs/b.md", "## Two words, and `a_c`\n# Again\n### Again\n<a id=\"named\"></a>\n[up](../README.md#a)\n"),
            ("docs/p.svg", ""),
            ("src/a.rs", ""),
        ]);
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn dead_links_are_found() {
        let tree = Tree::of(&[
            ("README.md", "[a](none.md)\n\n[b](docs/b.md#other) and [c](#here)\n[d](docs/p.svg#part)\n"),
            ("docs/b.md", "# The other one\n[up](README.md)\n"),
            ("docs/p.svg", ""),
        ]);
        let expected = [
            "README.md:1: the link to none.md is dead: there is no none.md",
            "README.md:3: the link to docs/b.md#other is dead: docs/b.md has no heading with the anchor #other; did \
             you mean \
             #the-other-one?",
            "README.md:3: the link to #here is dead: README.md has no heading with the anchor #here",
            "README.md:4: the link to docs/p.svg#part is dead: docs/p.svg has no headings",
            "docs/b.md:2: the link to README.md is dead: there is no docs/README.md",
        ];
        assert_eq!(check(&tree).iter().map(Finding::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn anchors_are_github_s() {
        let anchors = [
            (" A guest that writes faster than the links carry", "a-guest-that-writes-faster-than-the-links-carry"),
            (" `skein vm`: what it does, and why", "skein-vm-what-it-does-and-why"),
            (" 1. One word, one thing", "1-one-word-one-thing"),
            (" Source → target", "source--target"),
            (" See [there](b.md#c) ##", "see-there"),
        ];
        for (heading, expected) in anchors {
            assert_eq!(anchor(heading), expected);
        }
    }
}
