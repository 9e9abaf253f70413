//! A pure crate has no clock, thread, file, socket, lock or hash order, and no unsafe code; and it depends on pure
//! crates only.
//!
//! Which crates are pure is said in ARCHITECTURE.md ([`crate::arrows`]). Each has a `clippy.toml` of its own that bans
//! [`TYPES`] and [`METHODS`] by name: clippy does the rest. Where a ban does not fit a crate, its `clippy.toml` says
//! why, in a line of its own: `# Not banned: PATH: REASON`.

use crate::arrows::{DOCUMENT, Listed, name};
use crate::crates::Crate;
use crate::modules::Sources;
use crate::{Finding, Tree};

/// The types that a pure crate does without.
pub const TYPES: [&str; 11] = [
    "std::time::Instant",
    "std::time::SystemTime",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::fs::File",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os::unix::net::UnixStream",
    "std::process::Command",
    "std::sync::Condvar",
    "std::sync::Mutex",
];

/// The functions that a pure crate does without.
pub const METHODS: [&str; 7] = [
    "std::env::var",
    "std::fs::read",
    "std::fs::read_to_string",
    "std::fs::write",
    "std::sync::mpsc::channel",
    "std::thread::sleep",
    "std::thread::spawn",
];

/// Returns what the pure crates lack.
pub fn check(tree: &Tree, crates: &[Crate], sources: &Sources, listed: &Listed) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pure in &listed.pure {
        let Some(found) = crates.iter().find(|found| name(&found.folder) == pure) else {
            findings.push(Finding::new(DOCUMENT, listed.line, format!("there is no crate {pure} that could be pure")));
            continue;
        };
        findings.extend(bans(tree, &found.folder));
        for root in found.roots.iter().filter(|root| root.starts_with(&format!("{}/src/", found.folder))) {
            if sources.get(root).is_some_and(|source| !source.forbids_unsafe) {
                findings.push(Finding::new(root, 1, "the crate is pure: add `#![forbid(unsafe_code)]`"));
            }
        }
        for other in found.dependencies.iter().filter(|other| !listed.pure.contains(name(other))) {
            let what = format!("the crate is pure and depends on {other}, which is not: turn the arrow round");
            findings.push(Finding::new(&format!("{}/Cargo.toml", found.folder), 1, what));
        }
    }
    findings
}

/// Returns the bans that a pure crate's `clippy.toml` lacks.
fn bans(tree: &Tree, folder: &str) -> Vec<Finding> {
    let path = format!("{folder}/clippy.toml");
    let text = tree.text(&path).unwrap_or_default();
    let table = match text.parse::<toml::Table>() {
        Ok(table) => table,
        Err(error) => return vec![Finding::new(&path, 1, format!("cannot be read as TOML: {error}"))],
    };
    let banned = |key: &str, path: &str| {
        let entries = table.get(key).and_then(toml::Value::as_array).into_iter().flatten();
        let mut paths = entries.filter_map(|entry| entry.get("path").unwrap_or(entry).as_str());
        paths.any(|banned| banned == path)
    };
    let excused = |path: &str| {
        let reason =
            text.lines().find_map(|line| line.strip_prefix("# Not banned: ")?.strip_prefix(path)?.strip_prefix(": "));
        reason.is_some_and(|reason| !reason.trim().is_empty())
    };
    let wanted = TYPES
        .map(|path| ("disallowed-types", path))
        .into_iter()
        .chain(METHODS.map(|path| ("disallowed-methods", path)));
    wanted
        .filter(|(key, path)| !banned(key, path) && !excused(path))
        .map(|(key, banned)| {
            let what =
                format!("the crate is pure: ban {banned} in `{key}`, or say why not: `# Not banned: {banned}: REASON`");
            Finding::new(&path, 1, what)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    fn found(clippy: Option<&str>, library: &str, dependencies: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"a\"\n[dependencies]\n{dependencies}");
        let mut files = vec![
            (DOCUMENT, "| where | what | depends on |\n|---|---|---|\n| `crates/a`, `crates/b` | x. Pure | | |\n"),
            ("crates/a/Cargo.toml", manifest.as_str()),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\n"),
            ("crates/b/clippy.toml", ALL),
            ("crates/c/Cargo.toml", "[package]\nname = \"c\"\n"),
        ];
        files.extend(clippy.map(|text| ("crates/a/clippy.toml", text)));
        let tree = Tree::of(&files);
        let root = "crates/a/src/lib.rs".to_string();
        let source = Source::parse(library).expect("the text is Rust");
        let (mut crates, _) = crate::crates::crates(&tree);
        crates[0].roots = vec![root.clone()];
        let (listed, _) = crate::arrows::listed(&tree);
        check(&tree, &crates, &Sources::from([(root, source)]), &listed).iter().map(Finding::to_string).collect()
    }

    /// A `clippy.toml` with every ban.
    const ALL: &str = r#"
disallowed-types = [
  "std::time::Instant", "std::time::SystemTime", "std::collections::HashMap", "std::collections::HashSet",
  { path = "std::fs::File", reason = "no I/O" }, "std::net::TcpStream", "std::net::UdpSocket",
  "std::os::unix::net::UnixStream", "std::process::Command", "std::sync::Condvar", "std::sync::Mutex",
]
disallowed-methods = [
  "std::env::var", "std::fs::read", "std::fs::read_to_string", "std::fs::write", "std::sync::mpsc::channel",
  "std::thread::sleep", { path = "std::thread::spawn", reason = "no threads" },
]
"#;
    const FORBIDS: &str = "#![forbid(unsafe_code)]\n";

    #[test]
    fn a_pure_crate_with_its_bans_is_fine() {
        assert_eq!(found(Some(ALL), FORBIDS, "b = { path = \"../b\" }\n"), [""; 0]);
    }

    #[test]
    fn missing_bans_are_found_unless_there_is_a_reason() {
        assert_eq!(found(None, FORBIDS, "").len(), TYPES.len() + METHODS.len());
        let without = ALL.replace("\"std::sync::Mutex\",", "");
        let found_in = found(Some(&without), FORBIDS, "");
        assert!(
            found_in.len() == 1 && found_in[0].contains("ban std::sync::Mutex in `disallowed-types`"),
            "{found_in:?}"
        );
        let reason = format!("# Not banned: std::sync::Mutex: the queue is shared\n{without}");
        assert_eq!(found(Some(&reason), FORBIDS, ""), [""; 0]);
        let empty = format!("# Not banned: std::sync::Mutex: \n{without}");
        assert_eq!(found(Some(&empty), FORBIDS, "").len(), 1);
    }

    #[test]
    fn unsafe_code_is_to_be_forbidden() {
        assert_eq!(
            found(Some(ALL), "", ""),
            ["crates/a/src/lib.rs:1: the crate is pure: add `#![forbid(unsafe_code)]`"]
        );
    }

    #[test]
    fn a_dependency_that_is_not_pure_is_found() {
        let found = found(Some(ALL), FORBIDS, "c = { path = \"../c\" }\n");
        let expected =
            "crates/a/Cargo.toml:1: the crate is pure and depends on crates/c, which is not: turn the arrow round";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_pure_crate_that_is_not_there_is_found() {
        let tree =
            Tree::of(&[(DOCUMENT, "| where | what | depends on |\n|---|---|---|\n| `crates/gone` | x. Pure | | |\n")]);
        let (listed, _) = crate::arrows::listed(&tree);
        assert_eq!(check(&tree, &[], &Sources::new(), &listed).len(), 1);
    }
}
