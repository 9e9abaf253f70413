//! Reads the tree's sources and says what they break of the house's rules: what nobody remembers, and no compiler
//! checks.
//!
//! `tests/tidy.rs` runs every rule over the tree; each module here is a rule, or what rules read the tree with:
//!
//! | module | rule |
//! |---|---|
//! | [`arrows`] | crates depend on each other as ARCHITECTURE.md lists it |
//! | [`book`] | documents in `docs/` are pages of the book |
//! | [`circles`] | no files import each other in a circle |
//! | [`dependencies`] | licences, bans, versions and sources of all dependencies |
//! | [`docs`] | no field is documented as "Who." |
//! | [`links`] | links in documents lead somewhere |
//! | [`purity`] | pure crates have their bans |
//! | [`sizes`] | functions and files are short |
//! | [`spelling`] | words are spelled right |
//! | [`units`] | systemd's units are no more open than they have to be |
//! | [`width`] | lines have at most 120 columns |
//!
//! What broke a rule before the rule was there is listed in [`exceptions`], a list that may only shrink.

#![forbid(unsafe_code)]

pub mod arrows;
pub mod book;
pub mod circles;
pub mod crates;
pub mod dependencies;
pub mod docs;
pub mod exceptions;
mod finding;
pub mod licence;
pub mod links;
pub mod modules;
pub mod purity;
pub mod sizes;
pub mod source;
pub mod spelling;
mod tree;
pub mod units;
pub mod width;

pub use finding::Finding;
pub use tree::{Tree, TreeError};
