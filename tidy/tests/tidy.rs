//! The tree keeps the house's rules. Each test is a rule; what it finds is told with file, line and what to do.

use std::path::Path;
use std::sync::LazyLock;

use skein_tidy::arrows::{self, Listed};
use skein_tidy::crates::{Crate, crates};
use skein_tidy::dependencies;
use skein_tidy::exceptions::Exceptions;
use skein_tidy::modules::Sources;
use skein_tidy::source::Source;
use skein_tidy::spelling::{self, SpellingError};
use skein_tidy::{Finding, Tree, book, circles, docs, links, purity, sizes, units, width};

/// All that the rules read.
struct House {
    tree: Tree,
    crates: Vec<Crate>,
    sources: Sources,
    exceptions: Exceptions,
    listed: Listed,
    /// What could not be read.
    findings: Vec<Finding>,
}

static HOUSE: LazyLock<House> = LazyLock::new(|| {
    let tree = Tree::read(root()).expect("the tree can be read");
    let (crates, mut findings) = crates(&tree);
    let (exceptions, unread) = Exceptions::read(&tree);
    findings.extend(unread);
    let (listed, unread) = arrows::listed(&tree);
    findings.extend(unread);
    let mut sources = Sources::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".rs")) {
        match Source::parse(text) {
            Ok(source) => {
                sources.insert(path.to_string(), source);
            }
            Err((line, what)) => findings.push(Finding::new(path, line, format!("cannot be read as Rust: {what}"))),
        }
    }
    House { tree, crates, sources, exceptions, listed, findings }
});

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate has a folder above it")
}

fn nothing(mut findings: Vec<Finding>) {
    findings.sort();
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn the_tree_is_read() {
    nothing(HOUSE.findings.clone());
    // A walk that finds nothing finds no faults either.
    assert!(HOUSE.crates.len() > 20 && HOUSE.sources.len() > 400, "{} crates", HOUSE.crates.len());
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    nothing(circles::check(&HOUSE.crates, &HOUSE.sources, &HOUSE.exceptions));
}

#[test]
fn functions_and_files_are_short() {
    nothing(sizes::check(&HOUSE.crates, &HOUSE.sources, &HOUSE.exceptions));
}

#[test]
fn arrows_between_crates_are_those_of_the_architecture() {
    nothing(arrows::check(&HOUSE.crates, &HOUSE.listed));
}

#[test]
fn pure_crates_have_their_bans() {
    nothing(purity::check(&HOUSE.tree, &HOUSE.crates, &HOUSE.sources, &HOUSE.listed));
}

#[test]
fn links_lead_somewhere() {
    nothing(links::check(&HOUSE.tree));
}

#[test]
fn lines_are_short() {
    nothing(width::check(&HOUSE.tree));
}

#[test]
fn docs_say_more_than_one_word() {
    nothing(docs::check(&HOUSE.sources));
}

#[test]
fn dependencies_are_allowed() {
    let packages = dependencies::packages(root()).unwrap_or_else(|error| panic!("{error}"));
    assert!(packages.len() > 100, "{} packages", packages.len());
    nothing(dependencies::check(&HOUSE.tree, &packages));
}

#[test]
fn documents_are_pages_of_the_book() {
    nothing(book::check(&HOUSE.tree));
}

#[test]
fn words_are_spelled_right() {
    match spelling::check(root()) {
        Ok(findings) => nothing(findings),
        Err(error @ SpellingError::Missing) => println!("skipped: spelling: {error}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn units_are_closed() {
    match units::check(root()) {
        Ok(findings) => nothing(findings),
        Err(error) => println!("skipped: units: {error}"),
    }
}
