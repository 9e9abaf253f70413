//! No function is longer than [`FUNCTION_LINES_MAX`] lines, no file longer than [`FILE_LINES_MAX`] lines of code.
//!
//! A function's lines go from its `fn` to its closing brace, all of them; functions of tests do not count, neither
//! those in `#[cfg(test)]` nor those below `tests/`. A file's lines of code are those that are neither blank, nor only
//! a comment, nor in `#[cfg(test)]`: what explains the code does not count against it. Files below `tests/` count.

use std::collections::BTreeSet;

use crate::Finding;
use crate::crates::Crate;
use crate::exceptions::{Exceptions, PATH};
use crate::modules::{Modules, Sources};

/// How many lines a function has at most.
pub const FUNCTION_LINES_MAX: usize = 80;
/// How many lines of code a file has at most.
pub const FILE_LINES_MAX: usize = 600;

/// Returns what is too long and no exception, and every exception that no longer applies.
pub fn check(crates: &[Crate], sources: &Sources, exceptions: &Exceptions) -> Vec<Finding> {
    let roots = crates.iter().flat_map(|found| &found.roots);
    let files: BTreeSet<&str> = roots.flat_map(|root| Modules::of(root, sources).files()).collect();
    let mut findings = Vec::new();
    let (mut long_functions, mut long_files) = (BTreeSet::new(), BTreeSet::new());
    for (path, source) in files.into_iter().filter_map(|path| sources.get_key_value(path)) {
        if source.code_lines > FILE_LINES_MAX {
            long_files.insert(path.as_str());
            let excepted = exceptions.files.iter().find(|(_, file)| file.path == *path);
            if source.code_lines > excepted.map_or(FILE_LINES_MAX, |(_, file)| file.lines) {
                let what = format!("{} lines of code: split the file by what it is about", source.code_lines);
                findings.push(Finding::new(path, 1, what));
            }
        }
        for function in source.functions.iter().filter(|found| found.lines > FUNCTION_LINES_MAX && !is_test(path)) {
            long_functions.insert((path.as_str(), function.name.as_str()));
            let same = |long: &crate::exceptions::LongFunction| long.path == *path && long.name == function.name;
            let excepted = exceptions.functions.iter().find(|(_, long)| same(long));
            if function.lines > excepted.map_or(FUNCTION_LINES_MAX, |(_, long)| long.lines) {
                let what = format!("{} has {} lines: make functions of its steps", function.name, function.lines);
                findings.push(Finding::new(path, function.line, what));
            }
        }
    }
    let functions = exceptions.functions.iter().filter(|(_, long)| !long_functions.contains(&(&long.path, &long.name)));
    let functions = functions.map(|(line, long)| (*line, format!("{} of {}", long.name, long.path)));
    let files = exceptions.files.iter().filter(|(_, file)| !long_files.contains(file.path.as_str()));
    let files = files.map(|(line, file)| (*line, file.path.clone()));
    let stale = functions.chain(files);
    findings.extend(
        stale.map(|(line, what)| {
            Finding::new(PATH, line, format!("{what} is not too long any more: take this line out"))
        }),
    );
    findings
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tree;
    use crate::source::sources_of;

    fn found(files: &[(&str, &str)], exceptions: &str) -> Vec<String> {
        let tree = Tree::of(&[files, &[("Cargo.toml", "[package]\nname = \"x\"\n"), (PATH, exceptions)]].concat());
        let (exceptions, _) = Exceptions::read(&tree);
        check(&crate::crates::crates(&tree).0, &sources_of(&tree), &exceptions).iter().map(Finding::to_string).collect()
    }

    /// A function of so many lines.
    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_function_is_found_but_in_tests() {
        let long = format!("mod a;\n{}", function(81));
        assert_eq!(found(&[("src/lib.rs", &long)], ""), ["src/lib.rs:2: f has 81 lines: make functions of its steps"]);
        assert_eq!(found(&[("src/lib.rs", &function(80))], ""), [""; 0]);
        assert_eq!(found(&[("tests/a.rs", &long)], ""), [""; 0]);
        assert_eq!(found(&[("src/lib.rs", &format!("#[cfg(test)]\nmod tests {{\n{long}}}\n"))], ""), [""; 0]);
    }

    #[test]
    fn a_long_file_is_found_by_its_lines_of_code() {
        let code = "const A: u8 = 1;\n".repeat(600);
        assert_eq!(
            found(&[("src/lib.rs", &format!("{code}\n// Why.\n#[cfg(test)]\nmod tests {{\n{code}\n}}\n"))], ""),
            [""; 0]
        );
        let expected = "src/lib.rs:1: 601 lines of code: split the file by what it is about";
        assert_eq!(found(&[("src/lib.rs", &format!("//! Says.\nuse a;\n{code}"))], ""), [expected]);
    }

    #[test]
    fn exceptions_hold_up_to_their_lines_and_until_they_are_mended() {
        let long = function(90);
        assert_eq!(found(&[("src/lib.rs", &long)], "function src/lib.rs f 90\n"), [""; 0]);
        assert_eq!(found(&[("src/lib.rs", &long)], "function src/lib.rs f 89\n").len(), 1);
        assert_eq!(found(&[("src/lib.rs", &long)], "function src/lib.rs g 90\n").len(), 2);
        let stale = found(&[("src/lib.rs", &function(80))], "function src/lib.rs f 90\nfile src/lib.rs 700\n");
        let expected = ["f of src/lib.rs", "src/lib.rs"];
        let expected: Vec<String> = (1..)
            .zip(expected)
            .map(|(line, what)| format!("{PATH}:{line}: {what} is not too long any more: take this line out"))
            .collect();
        assert_eq!(stale, expected);
    }
}
