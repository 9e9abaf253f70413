//! No line of Rust, shell, Make, TOML or Markdown has more than [`COLUMNS_MAX`] columns.
//!
//! Exempt: tables in Markdown and in documentation comments; what a program printed, in Markdown's code blocks with no
//! language, `text` or `console`; `Cargo.lock`; and lines that are too long by nothing but the rest of an address
//! (`https://…`). None of them can be broken. A tab counts as one column.
//!
//! What is read first is short: [`LINES_MAX`].

use crate::{Finding, Tree};

/// How many columns a line has at most.
pub const COLUMNS_MAX: usize = 120;

/// How many lines the files have at most that somebody new reads first.
pub const LINES_MAX: [(&str, usize); 2] = [("README.md", 90), ("ARCHITECTURE.md", 120)];

/// Returns every line that is too long, and every file that has too many lines.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = LINES_MAX
        .iter()
        .filter_map(|&(path, most)| {
            let lines = tree.text(path)?.lines().count();
            (lines > most).then(|| Finding::new(path, most + 1, format!("{lines} lines: {most} are allowed")))
        })
        .collect();
    for (path, text) in tree.files().filter(|(path, text)| is_checked(path, text)) {
        let mut block: Option<&str> = None;
        for (before, line) in text.lines().enumerate() {
            let start = line.trim_start();
            if let Some(language) = start.strip_prefix("```").filter(|_| path.ends_with(".md")) {
                block = if block.is_some() { None } else { Some(language.trim()) };
            }
            let is_printed = block.is_some_and(|language| ["", "console", "text"].contains(&language));
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !is_printed && !is_table(path, start) && columns - address(line) > COLUMNS_MAX {
                let what = format!("{columns} columns: break the line at {COLUMNS_MAX}");
                findings.push(Finding::new(path, before + 1, what));
            }
        }
    }
    findings
}

fn is_checked(path: &str, text: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let by_name = name == "Makefile" || [".rs", ".sh", ".toml", ".md"].iter().any(|end| name.ends_with(end));
    let is_script = !name.contains('.')
        && text.lines().next().is_some_and(|first| first.starts_with("#!") && first.ends_with("sh"));
    by_name || is_script
}

fn is_table(path: &str, line: &str) -> bool {
    match path.ends_with(".rs") {
        true => line.starts_with("//! |") || line.starts_with("/// |"),
        false => path.ends_with(".md") && line.starts_with('|'),
    }
}

/// Returns how many columns the longest address takes in a line.
fn address(line: &str) -> usize {
    let words = line.split_whitespace().filter(|word| word.contains("https://") || word.contains("http://"));
    words.map(|word| word.chars().count()).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, line: &str) -> usize {
        check(&Tree::of(&[(path, &format!("short\n{line}\n"))])).len()
    }

    #[test]
    fn a_line_over_the_columns_is_found() {
        let (fits, long) = ("ä".repeat(120), "a".repeat(121));
        for path in ["a.rs", "b/c.sh", "Makefile", "Cargo.toml", "docs/d.md"] {
            assert_eq!((found(path, &fits), found(path, &long)), (0, 1), "{path}");
        }
        let tree = Tree::of(&[(".ci/run", &format!("#!/usr/bin/env bash\n{long}\n"))]);
        assert_eq!(check(&tree)[0].to_string(), ".ci/run:2: 121 columns: break the line at 120");
    }

    #[test]
    fn what_is_read_first_is_short() {
        let found = |lines: usize| check(&Tree::of(&[("README.md", &"a\n".repeat(lines)), ("docs/a.md", "a\n")]));
        assert!(found(90).is_empty());
        assert_eq!(found(91)[0].to_string(), "README.md:91: 91 lines: 90 are allowed");
    }

    #[test]
    fn what_cannot_be_broken_is_fine() {
        let long = "a".repeat(121);
        assert_eq!(found("Cargo.lock", &long), 0);
        assert_eq!(found("a.md", &format!("| {long} |")), 0);
        assert_eq!(found("a.rs", &format!("| {long} |")), 1);
        assert_eq!(found("a.rs", &format!("    /// | {long} |")), 0);
        assert_eq!(found("a.sh", &format!("| {long} |")), 1);
        assert_eq!(found("a.md", &format!("```console\n{long}\n```")), 0);
        assert_eq!(found("a.md", &format!("```sh\n{long}\n```\n{long}")), 2);
        assert_eq!(found("a.md", &format!("```\n{long}\n```\n{long}")), 1);
        assert_eq!(found("a.rs", &format!("// See https://example.org/{long}")), 0);
        assert_eq!(found("a.rs", &format!("// {long} https://example.org/")), 1);
    }
}
