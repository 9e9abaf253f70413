//! The module tree of a target, and where the items are that its paths lead to.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Import, Source};

/// All Rust files by their paths from the tree's root.
pub type Sources = BTreeMap<String, Source>;

/// The modules of a target. The first is its root.
#[derive(Debug)]
pub struct Modules<'a> {
    modules: Vec<Module<'a>>,
    sources: &'a Sources,
}

#[derive(Debug)]
struct Module<'a> {
    file: &'a str,
    /// Which scope of the file holds it.
    scope: usize,
    parent: Option<usize>,
    children: BTreeMap<&'a str, usize>,
}

/// That the code of one file needs an item that is defined in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrow<'a> {
    /// The file that needs the item.
    pub from: &'a str,
    /// The file that defines the item.
    pub to: &'a str,
    /// The line in `from`, counted from 1.
    pub line: usize,
    /// The path by which the item is named there.
    pub path: String,
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End<'a> {
    Module(usize),
    /// An item that is defined in this file.
    Item(&'a str),
}

impl<'a> Modules<'a> {
    /// Follows the `mod` items of a target from its root.
    pub fn of(root: &str, sources: &'a Sources) -> Modules<'a> {
        let mut found = Modules { modules: Vec::new(), sources };
        if let Some((file, _)) = sources.get_key_value(root) {
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            found.add(file, 0, None, folder.to_string());
        }
        found
    }

    /// Returns the target's files.
    pub fn files(&self) -> BTreeSet<&'a str> {
        self.modules.iter().map(|module| module.file).collect()
    }

    /// Adds a module with all below it. `folder`: where the files of its modules lie.
    fn add(&mut self, file: &'a str, scope: usize, parent: Option<usize>, folder: String) -> usize {
        let own = self.modules.len();
        self.modules.push(Module { file, scope, parent, children: BTreeMap::new() });
        let sources = self.sources;
        for module in &sources[file].scopes[scope].modules {
            let below = format!("{folder}/{}", module.name);
            let child = match (module.inline, &module.path) {
                (Some(scope), _) => Some(self.add(file, scope, Some(own), below)),
                (None, Some(path)) => {
                    let beside = file.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let path = crate::crates::joined(beside, path);
                    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder).to_string();
                    sources.get_key_value(&path).map(|(file, _)| self.add(file, 0, Some(own), folder))
                }
                (None, None) => [format!("{below}.rs"), format!("{below}/mod.rs")]
                    .iter()
                    .find_map(|path| sources.get_key_value(path))
                    .map(|(file, _)| self.add(file, 0, Some(own), below.clone())),
            };
            if let Some(child) = child {
                self.modules[own].children.insert(&module.name, child);
            }
        }
        own
    }

    /// Returns every arrow between two files of the target, in the order of files and lines. A re-export is none: it
    /// passes a name on, and needs nothing of the item.
    pub fn arrows(&self) -> Vec<Arrow<'a>> {
        let mut arrows = Vec::new();
        for (at, module) in self.modules.iter().enumerate() {
            let scope = &self.sources[module.file].scopes[module.scope];
            let imports = scope.imports.iter().filter(|import| !import.passed_on);
            let imports = imports.map(|import| (&import.path, import.line, import.name.is_none()));
            let mentions = scope.mentions.iter().map(|mention| (&mention.path, mention.line, false));
            for (path, line, whole) in imports.chain(mentions) {
                let to = match self.end(at, path, &mut Vec::new()) {
                    Some(End::Item(file)) => file,
                    Some(End::Module(end)) if whole => self.modules[end].file,
                    _ => continue,
                };
                if to != module.file {
                    arrows.push(Arrow { from: module.file, to, line, path: path.join("::") });
                }
            }
        }
        arrows.sort_by(|a, b| (a.from, a.line, a.to).cmp(&(b.from, b.line, b.to)));
        arrows
    }

    /// Follows a path that is written in a module. `None`: it leads out of the target. `seen`: the imports that are
    /// followed already, as two may name each other.
    fn end(&self, at: usize, path: &'a [String], seen: &mut Vec<&'a Import>) -> Option<End<'a>> {
        let mut end = End::Module(at);
        for (number, name) in path.iter().enumerate() {
            // What follows an item is its own: a variant, an associated function.
            let End::Module(at) = end else { break };
            end = match name.as_str() {
                "crate" | "$crate" if number == 0 => End::Module(0),
                "self" if number == 0 => End::Module(at),
                "super" => End::Module(self.modules[at].parent?),
                name => self.named(at, name, number + 1 < path.len(), seen)?,
            };
        }
        Some(end)
    }

    /// Finds a name in a module: what it defines, its modules, what it imports by name, what it imports as a whole.
    /// `leads_on`: more of the path follows, so that of a function and a module of one name the module is meant.
    fn named(&self, at: usize, name: &str, leads_on: bool, seen: &mut Vec<&'a Import>) -> Option<End<'a>> {
        let module = &self.modules[at];
        let scope = &self.sources[module.file].scopes[module.scope];
        let child = module.children.get(name).map(|child| End::Module(*child));
        let item = scope.items.contains(name).then_some(End::Item(module.file));
        let own = if leads_on { child.or(item) } else { item.or(child) };
        if own.is_some() {
            return own;
        }
        let named = scope.imports.iter().filter(|import| import.name.as_deref() == Some(name));
        for import in named.chain(scope.imports.iter().filter(|import| import.name.is_none())) {
            if seen.iter().any(|seen| std::ptr::eq(*seen, import)) {
                continue;
            }
            seen.push(import);
            let end = match (&import.name, self.end(at, &import.path, seen)) {
                (Some(_), end) => end,
                (None, Some(End::Module(whole))) => self.named(whole, name, leads_on, seen),
                (None, _) => None,
            };
            seen.pop();
            if end.is_some() {
                return end;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        let parse = |text| Source::parse(text).expect("the text is Rust");
        files.iter().map(|(path, text)| (path.to_string(), parse(text))).collect()
    }

    /// The arrows of a target whose root is `src/lib.rs`: from, to, path.
    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let sources = sources(files);
        let found = Modules::of("src/lib.rs", &sources).arrows();
        found.iter().map(|arrow| format!("{} -> {}: {}", arrow.from, arrow.to, arrow.path)).collect()
    }

    #[test]
    fn a_path_leads_to_the_file_that_defines_its_item() {
        let files = [
            ("src/lib.rs", "mod a; mod b; pub use b::c::C; use a::f;"),
            ("src/a.rs", "use crate::C; pub fn f() -> super::b::D { crate::b::c::C::new() }"),
            ("src/b/mod.rs", "pub mod c; pub struct D;"),
            ("src/b/c.rs", "pub struct C;"),
        ];
        let expected = [
            "src/a.rs -> src/b/c.rs: crate::C",
            "src/a.rs -> src/b/c.rs: crate::b::c::C::new",
            "src/a.rs -> src/b/mod.rs: super::b::D",
            "src/lib.rs -> src/a.rs: a::f",
        ];
        assert_eq!(arrows(&files), expected);
    }

    #[test]
    fn a_module_alone_is_no_item() {
        let files = [
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "use crate::b; fn f() { b::g(); }"),
            ("src/b.rs", "pub fn g() {}"),
        ];
        assert_eq!(arrows(&files), ["src/a.rs -> src/b.rs: b::g"]);
    }

    #[test]
    fn a_function_with_a_modules_name_is_not_on_the_way() {
        let files = [
            ("src/lib.rs", "mod plan; mod b; pub fn plan() {} pub use self::plan::Action;"),
            ("src/plan.rs", "pub struct Action;"),
            ("src/b.rs", "use crate::plan::Action; use super::plan;"),
        ];
        assert_eq!(
            arrows(&files),
            ["src/b.rs -> src/lib.rs: super::plan", "src/b.rs -> src/plan.rs: crate::plan::Action"]
        );
    }

    #[test]
    fn all_names_of_a_module_are_an_arrow_to_it_and_to_what_it_passes_on() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a.rs", "use crate::b::*; fn f(_: Passed) {}"),
            ("src/b.rs", "pub use crate::c::Passed;"),
            ("src/c.rs", "pub struct Passed;"),
        ];
        assert_eq!(arrows(&files), ["src/a.rs -> src/b.rs: crate::b", "src/a.rs -> src/c.rs: Passed"]);
    }

    #[test]
    fn imports_that_name_each_other_end() {
        let files = [
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "pub use crate::b::X; pub use crate::b::*; fn f(_: X, _: Y) {}"),
            ("src/b.rs", "pub use crate::a::X; pub use crate::a::*;"),
        ];
        assert_eq!(arrows(&files), [""; 0]);
    }

    #[test]
    fn files_are_found_as_the_compiler_finds_them() {
        let files = [
            (
                "src/lib.rs",
                "mod inline { mod deep; } mod plain; #[path = \"other/name.rs\"] mod odd; #[cfg(test)] mod tests;",
            ),
            ("src/inline/deep.rs", ""),
            ("src/plain.rs", "mod below;"),
            ("src/plain/below.rs", ""),
            ("src/other/name.rs", ""),
            ("src/tests.rs", ""),
            ("src/none.rs", ""),
        ];
        let sources = sources(&files);
        let modules = Modules::of("src/lib.rs", &sources);
        let found: Vec<_> = modules.files().into_iter().collect();
        let expected = ["src/inline/deep.rs", "src/lib.rs", "src/other/name.rs", "src/plain.rs", "src/plain/below.rs"];
        assert_eq!(found, expected);
    }

    #[test]
    fn other_crates_are_elsewhere() {
        assert_eq!(arrows(&[("src/lib.rs", "use serde::Serialize; fn f() { std::mem::drop(1); }")]), [""; 0]);
    }
}
