//! What the rules need of a Rust file, as plain data: its scopes with the names that they define and mention, its
//! functions, its lines of code, its shortest comments.
//!
//! Test-only code is left out: every item, field, variant or arm whose `#[cfg(…)]` cannot hold without `test`.

use std::collections::BTreeSet;

use proc_macro2::{LineColumn, Span, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Meta, Token};

/// A Rust file.
#[derive(Debug, Default)]
pub struct Source {
    /// The file's own scope, then those of its inline modules.
    pub scopes: Vec<Scope>,
    /// The functions with a body.
    pub functions: Vec<Function>,
    /// The fields and variants that are documented by one word.
    pub one_word_docs: Vec<OneWordDoc>,
    /// How many lines hold code: neither blank, nor only a comment, nor test-only.
    pub code_lines: usize,
    /// Whether the file says `#![forbid(unsafe_code)]`.
    pub forbids_unsafe: bool,
}

/// What a module says in this file.
#[derive(Debug, Default)]
pub struct Scope {
    /// The names that it defines, but for modules.
    pub items: BTreeSet<String>,
    /// Its modules.
    pub modules: Vec<Module>,
    /// What it imports.
    pub imports: Vec<Import>,
    /// The paths that its code mentions elsewhere.
    pub mentions: Vec<Mention>,
}

/// A `mod` in a scope.
#[derive(Debug)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// The scope that holds it, if it is inline.
    pub inline: Option<usize>,
    /// What `#[path = "…"]` says.
    pub path: Option<String>,
}

/// One name, or all names of a module, that a `use` brings in.
#[derive(Debug)]
pub struct Import {
    /// The name that the scope has from it. `None`: all names of the module at `path`.
    pub name: Option<String>,
    /// The path, as it is written.
    pub path: Vec<String>,
    /// The line, counted from 1.
    pub line: usize,
    /// Whether the scope passes the name on: `pub use`, of whatever reach.
    pub passed_on: bool,
}

/// A path that code mentions.
#[derive(Debug)]
pub struct Mention {
    /// The path, as it is written.
    pub path: Vec<String>,
    /// The line, counted from 1.
    pub line: usize,
}

/// A function with a body.
#[derive(Debug)]
pub struct Function {
    /// The name, with the type that it belongs to: `Type::function`.
    pub name: String,
    /// The line of its `fn`, counted from 1.
    pub line: usize,
    /// How many lines from its `fn` to its closing brace.
    pub lines: usize,
}

/// A field or variant that is documented by one word.
#[derive(Debug)]
pub struct OneWordDoc {
    /// The word, without its full stop.
    pub word: String,
    /// The line of the word, counted from 1.
    pub line: usize,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// The text is not Rust: the line, and what the parser said.
    pub fn parse(text: &str) -> Result<Source, (usize, String)> {
        let failed = |span: Span, what: String| (span.start().line, what);
        let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
            let what = error.to_string();
            failed(error.span(), what)
        })?;
        let mut code = BTreeSet::new();
        lines_of(tokens.clone(), &mut code);
        let file: syn::File = syn::parse2(tokens).map_err(|error| failed(error.span(), error.to_string()))?;

        let mut reader = Reader { source: Source::default(), scope: 0, depth: 0, types: Vec::new(), tests: Vec::new() };
        reader.source.scopes.push(Scope::default());
        reader.source.forbids_unsafe = file.attrs.iter().any(forbids_unsafe);
        reader.visit_file(&file);

        let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        for (before, _) in comments {
            code.remove(&(before + 1));
        }
        for (first, last) in &reader.tests {
            code.retain(|line| line < first || line > last);
        }
        reader.source.code_lines = code.len();
        Ok(reader.source)
    }
}

/// Adds the lines that tokens cover.
fn lines_of(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in tokens {
        if let TokenTree::Group(group) = &token {
            lines.insert(group.span_open().start().line);
            lines_of(group.stream(), lines);
            lines.insert(group.span_close().end().line);
        } else {
            lines.extend(token.span().start().line..=token.span().end().line);
        }
    }
}

fn forbids_unsafe(attribute: &Attribute) -> bool {
    let mut found = false;
    if attribute.path().is_ident("forbid") {
        let _ = attribute.parse_nested_meta(|meta| {
            found |= meta.path.is_ident("unsafe_code");
            Ok(())
        });
    }
    found
}

/// Returns whether the attributes leave an item out of everything but tests.
fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<Meta>().is_ok_and(|meta| !holds_without_test(&meta))
    })
}

/// Returns whether a condition can hold where `test` does not. Everything else may be set or not.
fn holds_without_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else { return !condition.path().is_ident("test") };
    let Ok(parts) = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) else { return true };
    if list.path.is_ident("all") {
        parts.iter().all(holds_without_test)
    } else if list.path.is_ident("any") {
        parts.iter().any(holds_without_test)
    } else {
        true
    }
}

/// Walks through a file and notes what it sees.
struct Reader {
    source: Source,
    /// The scope that the walk is in.
    scope: usize,
    /// How many blocks the walk is in: items in blocks are no items of the scope.
    depth: usize,
    /// The types whose `impl` or `trait` the walk is in.
    types: Vec<String>,
    /// The first and last lines of what is test-only.
    tests: Vec<(usize, usize)>,
}

impl Reader {
    fn scope(&mut self) -> &mut Scope {
        &mut self.source.scopes[self.scope]
    }

    /// Notes the item's lines, and returns true, if it is test-only.
    fn skips(&mut self, attributes: &[Attribute], span: Span) -> bool {
        let skips = is_test_only(attributes);
        if skips {
            self.tests.push((span.start().line, span.end().line));
        }
        skips
    }

    fn define(&mut self, name: &syn::Ident) {
        if self.depth == 0 {
            let name = plain(name);
            self.scope().items.insert(name);
        }
    }

    fn mention(&mut self, path: Vec<String>, at: LineColumn) {
        // A lone name with a small letter is a local variable more often than anything else.
        let telling = path.len() > 1 || path[0].starts_with(char::is_uppercase);
        if telling {
            self.scope().mentions.push(Mention { path, line: at.line });
        }
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first, last) = (signature.fn_token.span.start().line, block.brace_token.span.close().end().line);
        let name = plain(&signature.ident);
        let name = self.types.last().map_or(name.clone(), |owner| format!("{owner}::{name}"));
        self.source.functions.push(Function { name, line: first, lines: last - first + 1 });
    }

    fn doc(&mut self, attributes: &[Attribute]) {
        let mut docs = attributes.iter().filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text),
                _ => None,
            },
            _ => None,
        });
        if let (Some(only), None) = (docs.next(), docs.next()) {
            let value = only.value();
            let word = value.trim().trim_end_matches(['.', '?']);
            if !word.is_empty() && !word.contains(char::is_whitespace) {
                self.source.one_word_docs.push(OneWordDoc { word: word.to_string(), line: only.span().start().line });
            }
        }
    }

    /// Adds what a `use` brings in, below the path `before`.
    fn import(&mut self, tree: &syn::UseTree, before: &[String], passed_on: bool) {
        let with = |name: &syn::Ident| {
            let mut path = before.to_vec();
            if name != "self" || path.is_empty() {
                path.push(plain(name));
            }
            path
        };
        let (name, path, line) = match tree {
            syn::UseTree::Path(part) => return self.import(&part.tree, &with(&part.ident), passed_on),
            syn::UseTree::Group(group) => {
                for part in &group.items {
                    self.import(part, before, passed_on);
                }
                return;
            }
            syn::UseTree::Name(part) => {
                let path = with(&part.ident);
                (path.last().cloned(), path, part.ident.span().start().line)
            }
            syn::UseTree::Rename(part) => {
                (Some(plain(&part.rename)), with(&part.ident), part.ident.span().start().line)
            }
            syn::UseTree::Glob(part) => (None, before.to_vec(), part.span().start().line),
        };
        self.scope().imports.push(Import { name, path, line, passed_on });
    }

    /// Notes the paths in tokens that no parser has seen: a macro's arguments, a macro's definition.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is =
            |at: usize, sign: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(first) => {
                    let own = at == 0 || !(is(at - 1, '.') || is(at - 1, ':') && at > 1 && is(at - 2, ':'));
                    let mut path = vec![plain(first)];
                    while is(at + 1, ':') && is(at + 2, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                        path.push(plain(next));
                        at += 3;
                    }
                    if own {
                        self.mention(path, first.span().start());
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn inside(&mut self, owner: String, walk: impl FnOnce(&mut Self)) {
        self.types.push(owner);
        walk(self);
        self.types.pop();
    }
}

/// An identifier's name, without the `r#` of a raw one.
fn plain(name: &syn::Ident) -> String {
    let name = name.to_string();
    name.strip_prefix("r#").map_or(name.clone(), str::to_string)
}

fn attributes_of(item: &syn::Item) -> &[Attribute] {
    use syn::Item;
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item;
        if self.skips(attributes_of(item), item.span()) {
            return;
        }
        match item {
            Item::Const(item) => self.define(&item.ident),
            Item::Enum(item) => self.define(&item.ident),
            Item::Fn(item) => self.define(&item.sig.ident),
            Item::Macro(item) => item.ident.iter().for_each(|name| self.define(name)),
            Item::Static(item) => self.define(&item.ident),
            Item::Struct(item) => self.define(&item.ident),
            Item::Trait(item) => self.define(&item.ident),
            Item::Type(item) => self.define(&item.ident),
            Item::Union(item) => self.define(&item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let path = module.attrs.iter().find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        });
        let inline = module.content.as_ref().map(|_| {
            self.source.scopes.push(Scope::default());
            self.source.scopes.len() - 1
        });
        let name = plain(&module.ident);
        self.scope().modules.push(Module { name, inline, path });
        if let (Some((_, items)), Some(scope)) = (&module.content, inline) {
            let (outer, depth) = (std::mem::replace(&mut self.scope, scope), std::mem::take(&mut self.depth));
            items.iter().for_each(|item| self.visit_item(item));
            (self.scope, self.depth) = (outer, depth);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            let passed_on = !matches!(item.vis, syn::Visibility::Inherited);
            self.import(&item.tree, &[], passed_on);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let owner = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|part| plain(&part.ident)),
            _ => None,
        };
        self.inside(owner.unwrap_or_default(), |walk| visit::visit_item_impl(walk, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.inside(plain(&item.ident), |walk| visit::visit_item_trait(walk, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !self.skips(&item.attrs, item.span()) {
            self.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !self.skips(&field.attrs, field.span()) {
            self.doc(&field.attrs);
            visit::visit_field(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if !self.skips(&variant.attrs, variant.span()) {
            self.doc(&variant.attrs);
            visit::visit_variant(self, variant);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !self.skips(&arm.attrs, arm.span()) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.mention(path.segments.iter().map(|part| plain(&part.ident)).collect(), path.span().start());
        }
        visit::visit_path(self, path);
    }

    // `pub(in crate::a)` says who sees an item, and uses nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.scan(invocation.tokens.clone());
    }

    // serde's attributes name functions and types in texts: `#[serde(with = "crate::hex")]`.
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let Meta::List(list) = &attribute.meta else { return };
        if !attribute.path().is_ident("serde") {
            return;
        }
        for token in list.tokens.clone() {
            let Ok(text) = syn::parse2::<syn::LitStr>(token.into()) else { continue };
            if let Ok(path) = text.parse::<syn::Path>() {
                self.mention(path.segments.iter().map(|part| plain(&part.ident)).collect(), text.span().start());
            }
        }
    }
}

/// Reads the Rust files of a test's tree.
#[cfg(test)]
pub(crate) fn sources_of(tree: &crate::Tree) -> std::collections::BTreeMap<String, Source> {
    let rust = tree.files().filter(|(path, _)| path.ends_with(".rs"));
    rust.map(|(path, text)| (path.to_string(), Source::parse(text).expect("the text is Rust"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Source {
        Source::parse(text).expect("the text is Rust")
    }

    #[test]
    fn names_imports_and_mentions_are_read() {
        let source = read(
            "use crate::a::{self, b as c, d::*};\nstruct Made;\nmod inner { pub fn there() {} }\nmod outer;\n\
             fn f() { inner::there(); let x = 1; println!(\"{}\", super::g(x).h::<I>()); }\n\
             #[serde(with = \"crate::hex\")]\nenum E { V }\n",
        );
        let scope = &source.scopes[0];
        assert_eq!(scope.items.iter().collect::<Vec<_>>(), ["E", "Made", "f"]);
        assert_eq!(source.scopes[1].items.iter().collect::<Vec<_>>(), ["there"]);
        let modules: Vec<_> = scope.modules.iter().map(|module| (module.name.as_str(), module.inline)).collect();
        assert_eq!(modules, [("inner", Some(1)), ("outer", None)]);
        let imports: Vec<_> = scope.imports.iter().map(|i| (i.name.as_deref(), i.path.join("::"), i.line)).collect();
        let expected = [(Some("a"), "crate::a", 1), (Some("c"), "crate::a::b", 1), (None, "crate::a::d", 1)];
        assert_eq!(imports, expected.map(|(name, path, line)| (name, path.to_string(), line)));
        let mentions: Vec<_> = scope.mentions.iter().map(|m| (m.path.join("::"), m.line)).collect();
        let expected = [("inner::there", 5), ("super::g", 5), ("I", 5), ("crate::hex", 6)];
        assert_eq!(mentions, expected.map(|(path, line)| (path.to_string(), line)));
    }

    #[test]
    fn test_only_code_is_left_out() {
        let source = read(
            "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n#[cfg(all(test, feature = \"x\"))]\nfn a() {}\n\
             #[cfg(any(test, feature = \"x\"))]\nfn b() {}\n#[cfg(not(test))]\nfn c() {}\n",
        );
        assert_eq!(source.scopes[0].items.iter().collect::<Vec<_>>(), ["b", "c"]);
        assert!(source.scopes[0].modules.is_empty() && source.scopes.len() == 1);
        assert_eq!(source.code_lines, 4);
    }

    #[test]
    fn lines_of_code_are_neither_blank_nor_comments() {
        let source = read("//! Says.\n\n/// Does.\nfn f() -> &'static str {\n    // Why.\n    \"a\n\nb\"\n}\n");
        assert_eq!(source.code_lines, 5);
        let function = &source.functions[0];
        assert_eq!((function.name.as_str(), function.line, function.lines), ("f", 4, 6));
    }

    #[test]
    fn methods_have_their_types_name() {
        let source = read("impl A for B<C> { fn f(&self) {} }\ntrait D { fn g() {} fn h(); }\n");
        let names: Vec<_> = source.functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["B::f", "D::g"]);
    }

    #[test]
    fn docs_of_one_word_are_seen() {
        let source = read(
            "struct S {\n    /// Who.\n    a: u8,\n    /// Who came.\n    b: u8,\n}\nenum E {\n    /// Why.\n    V,\n\
             }\n",
        );
        let docs: Vec<_> = source.one_word_docs.iter().map(|doc| (doc.word.as_str(), doc.line)).collect();
        assert_eq!(docs, [("Who", 2), ("Why", 8)]);
    }

    #[test]
    fn what_is_no_rust_is_said_with_its_line() {
        assert_eq!(Source::parse("fn f() {}\nfn {\n}\n").expect_err("a function has a name").0, 2);
        assert_eq!(Source::parse("fn f() {}\n}\n").expect_err("nothing was opened").0, 2);
    }

    #[test]
    fn unsafe_code_is_forbidden_by_an_attribute() {
        assert!(read("#![forbid(unsafe_code)]\n").forbids_unsafe);
        assert!(!read("#![deny(unsafe_code)]\n").forbids_unsafe);
    }
}
