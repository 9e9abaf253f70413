//! No files of a target import each other in a circle.
//!
//! There is an arrow from a file to another if its code names an item that the other defines: in a `use`, or by a path
//! in the code, in a macro's arguments or in a serde attribute. The path is followed through modules and re-exports to
//! the file that defines the item, so that a name taken from a parent that only passes it on is no arrow to the parent.
//! All names of a module taken at once (`use crate::a::*`) are an arrow to that module's file as well. A parent that
//! names items of its children, while the children name items that the parent defines, is a circle.
//!
//! No arrow: a re-export (`pub use`), which passes a name on and needs nothing of it; a module's own name (`mod a;`,
//! `use crate::a;`) before something in it is named; a method that is called without its type's name; a macro of the
//! same target; comments; test-only code.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Finding;
use crate::crates::Crate;
use crate::exceptions::{Exceptions, PATH};
use crate::modules::{Arrow, Modules, Sources};

/// Returns every circle of every target that is no exception, and every exception that no longer applies.
pub fn check(crates: &[Crate], sources: &Sources, exceptions: &Exceptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut circling = BTreeSet::new();
    for root in crates.iter().flat_map(|found| &found.roots) {
        let arrows = Modules::of(root, sources).arrows();
        for circle in circles(&arrows) {
            let excepted = |(_, files): &&(usize, BTreeSet<String>)| circle.iter().all(|file| files.contains(*file));
            if exceptions.circles.iter().find(excepted).is_none() {
                findings.push(told(&circle, &arrows));
            }
            circling.extend(circle);
        }
    }
    for (line, files) in &exceptions.circles {
        for file in files.iter().filter(|file| !circling.contains(file.as_str())) {
            findings.push(Finding::new(
                PATH,
                *line,
                format!("{file} is in no circle any more: take it out of this line"),
            ));
        }
    }
    findings
}

/// Returns the sets of files in which each file reaches every other one.
fn circles<'a>(arrows: &[Arrow<'a>]) -> Vec<BTreeSet<&'a str>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        next.entry(arrow.from).or_default().insert(arrow.to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|from| (*from, reached(from, &next))).collect();
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    for (file, there) in &reached {
        if there.contains(file) && !circles.iter().any(|circle| circle.contains(file)) {
            circles.push(
                there
                    .iter()
                    .copied()
                    .filter(|other| reached.get(other).is_some_and(|back| back.contains(file)))
                    .collect(),
            );
        }
    }
    circles
}

/// Returns the files that the arrows lead to from `file`.
fn reached<'a>(file: &'a str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![file];
    while let Some(at) = open.pop() {
        open.extend(next.get(at).into_iter().flatten().filter(|to| reached.insert(**to)));
    }
    reached
}

/// Tells a circle by its shortest round.
fn told(circle: &BTreeSet<&str>, arrows: &[Arrow]) -> Finding {
    let within: Vec<&Arrow> =
        arrows.iter().filter(|arrow| circle.contains(arrow.from) && circle.contains(arrow.to)).collect();
    let rounds = circle.iter().filter_map(|file| round(file, &within));
    let round = rounds.min_by_key(Vec::len).unwrap_or_default();
    let steps: Vec<String> = round
        .iter()
        .map(|arrow| format!("{}:{} needs `{}` of {}", arrow.from, arrow.line, arrow.path, arrow.to))
        .collect();
    let (path, line) = round.first().map_or(("", 0), |arrow| (arrow.from, arrow.line));
    let what = format!(
        "{} files import each other in a circle: {}. Move what two of them need into a file below both",
        circle.len(),
        steps.join("; ")
    );
    Finding::new(path, line, what)
}

/// Finds the shortest way from a file back to itself.
fn round<'a, 'b>(file: &str, arrows: &[&'b Arrow<'a>]) -> Option<Vec<&'b Arrow<'a>>> {
    let mut ways: VecDeque<Vec<&Arrow>> =
        arrows.iter().filter(|arrow| arrow.from == file).map(|arrow| vec![*arrow]).collect();
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        let at = way.last()?.to;
        if at == file {
            return Some(way);
        }
        if seen.insert(at) {
            ways.extend(
                arrows.iter().filter(|arrow| arrow.from == at).map(|arrow| [way.clone(), vec![*arrow]].concat()),
            );
        }
    }
    None
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

    const CIRCLE: [(&str, &str); 4] = [
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "use crate::b::B;\npub struct A;"),
        ("src/b.rs", "pub struct B;\nfn f() { crate::c::C::new(); }"),
        ("src/c.rs", "pub struct C;\n\npub fn g(_: super::a::A) {}"),
    ];

    #[test]
    fn a_circle_is_found_with_its_round() {
        let expected = "src/a.rs:1: 3 files import each other in a circle: src/a.rs:1 needs `crate::b::B` of src/b.rs; \
                        src/b.rs:2 needs `crate::c::C::new` of src/c.rs; src/c.rs:3 needs `super::a::A` of src/a.rs. \
                        Move what two of them need into a file below both";
        assert_eq!(found(&CIRCLE, ""), [expected]);
    }

    #[test]
    fn a_parent_and_a_child_that_name_each_others_items_are_a_circle() {
        let files = [("src/lib.rs", "mod a; use a::A; struct B;"), ("src/a.rs", "pub struct A(crate::B);")];
        assert_eq!(found(&files, "").len(), 1);
        let files = [("src/lib.rs", "mod a; pub use a::A; struct B;"), ("src/a.rs", "pub struct A(crate::B);")];
        assert_eq!(found(&files, ""), [""; 0]);
    }

    #[test]
    fn arrows_that_all_go_one_way_are_fine() {
        let files = [
            ("src/lib.rs", "mod a; mod b; pub use b::B;"),
            ("src/a.rs", "use crate::B; #[cfg(test)] mod tests { use super::*; }"),
            ("src/b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a; fn f() { a::g(); } }"),
        ];
        assert_eq!(found(&files, ""), [""; 0]);
    }

    #[test]
    fn an_exception_holds_until_the_circle_is_open() {
        assert_eq!(found(&CIRCLE, "circle src/a.rs src/b.rs src/c.rs\n"), [""; 0]);
        let narrow = found(&CIRCLE, "circle src/a.rs src/b.rs\n");
        assert!(narrow.len() == 1 && narrow[0].contains("3 files"), "{narrow:?}");
        let stale = found(&CIRCLE, "circle src/a.rs src/b.rs src/c.rs src/lib.rs\n");
        assert_eq!(stale, ["tidy/exceptions.txt:1: src/lib.rs is in no circle any more: take it out of this line"]);
    }
}
