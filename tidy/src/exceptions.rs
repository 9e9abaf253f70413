//! What breaks a rule today and is let through until it is mended: a list that may only shrink.
//!
//! A line of the list is one of
//!
//! ```text
//! circle FILE FILE…           these files may import each other in a circle
//! function FILE NAME LINES    this function may have that many lines
//! file FILE LINES             this file may have that many lines of code
//! ```
//!
//! and `#` begins a comment. An exception that no longer applies is a finding, too: it has to go, so that nobody falls
//! back behind it.

use std::collections::BTreeSet;

use crate::{Finding, Tree};

/// The list of exceptions, as it is in the tree.
pub const PATH: &str = "tidy/exceptions.txt";

/// The exceptions, each with its line in the list, counted from 1.
#[derive(Debug, Default)]
pub struct Exceptions {
    /// The files that may import each other in a circle.
    pub circles: Vec<(usize, BTreeSet<String>)>,
    /// The functions that may be long.
    pub functions: Vec<(usize, LongFunction)>,
    /// The files that may be long.
    pub files: Vec<(usize, LongFile)>,
}

/// A function that may be longer than the others.
#[derive(Debug)]
pub struct LongFunction {
    /// Its file.
    pub path: String,
    /// Its name, with its type: `Type::function`.
    pub name: String,
    /// How many lines it may have.
    pub lines: usize,
}

/// A file that may be longer than the others.
#[derive(Debug)]
pub struct LongFile {
    /// The file.
    pub path: String,
    /// How many lines of code it may have.
    pub lines: usize,
}

impl Exceptions {
    /// Reads the list of `tree`. A tree without one has no exceptions. A line that says nothing is a finding.
    pub fn read(tree: &Tree) -> (Exceptions, Vec<Finding>) {
        let (mut read, mut findings) = (Exceptions::default(), Vec::new());
        for (before, text) in tree.text(PATH).unwrap_or_default().lines().enumerate() {
            let line = before + 1;
            let words: Vec<&str> = text.split('#').next().unwrap_or_default().split_whitespace().collect();
            match words[..] {
                [] => {}
                ["circle", ref files @ ..] if files.len() > 1 => {
                    read.circles.push((line, files.iter().map(|file| file.to_string()).collect()));
                }
                ["function", path, name, lines] if lines.parse::<usize>().is_ok() => {
                    let lines = lines.parse().unwrap_or_default();
                    read.functions.push((line, LongFunction { path: path.into(), name: name.into(), lines }));
                }
                ["file", path, lines] if lines.parse::<usize>().is_ok() => {
                    let lines = lines.parse().unwrap_or_default();
                    read.files.push((line, LongFile { path: path.into(), lines }));
                }
                _ => findings.push(Finding::new(
                    PATH,
                    line,
                    "says nothing; write `circle FILE FILE…`, `function FILE NAME LINES` or `file FILE LINES`",
                )),
            }
        }
        (read, findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read() {
        let text = "# Why.\n\ncircle a.rs b.rs # soon\nfunction a.rs A::f 99\nfile b.rs 700\n";
        let (read, findings) = Exceptions::read(&Tree::of(&[(PATH, text)]));
        assert_eq!(findings, []);
        assert_eq!(read.circles, [(3, BTreeSet::from(["a.rs".to_string(), "b.rs".to_string()]))]);
        let (line, function) = &read.functions[0];
        assert_eq!((*line, function.path.as_str(), function.name.as_str(), function.lines), (4, "a.rs", "A::f", 99));
        let (line, file) = &read.files[0];
        assert_eq!((*line, file.path.as_str(), file.lines), (5, "b.rs", 700));
    }

    #[test]
    fn a_line_that_says_nothing_is_found() {
        let (_, findings) = Exceptions::read(&Tree::of(&[(PATH, "circle a.rs\nfile a.rs many\nnote a.rs\n")]));
        assert_eq!(findings.iter().map(|found| found.line).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
