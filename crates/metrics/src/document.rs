//! The tables of docs/metrics.md.

use std::fmt::Write;

use crate::{Bound, Family, SERIES_MAX};

/// How long a line of a document is at most, but for tables.
const COLUMNS: usize = 120;

/// Returns the table of a list's families, in Markdown: name, kind, labels with their bounds, and what each says.
pub fn tables(families: &[&Family]) -> String {
    let mut text = String::from("| metric | kind | labels | what it says |\n|---|---|---|---|\n");
    for family in families {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{}`", label.name)).collect();
        let (name, kind, labels, help) = (family.name, family.kind.word(), labels.join(", "), family.help);
        // Writing to a text does not fail.
        let _ = writeln!(text, "| `{name}` | {kind} | {labels} | {help} |");
    }
    text += "\nThe labels have these values, and no others:\n\n";
    for (name, values, of) in labels(families) {
        text += &wrapped(&format!("- `{name}`{of}: {values}"));
    }
    text
}

/// Breaks an item of a list into lines.
fn wrapped(item: &str) -> String {
    let mut lines = vec![String::new()];
    for word in item.split(' ') {
        let at = lines.len() - 1;
        if !lines[at].is_empty() && lines[at].chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(format!("  {word}"));
        } else {
            let space = if lines[at].is_empty() { "" } else { " " };
            lines[at] += &format!("{space}{word}");
        }
    }
    lines.join("\n") + "\n"
}

/// Returns each label's name and values, with whose it is where several families have labels of the same name.
fn labels(families: &[&Family]) -> Vec<(&'static str, String, String)> {
    let mut found: Vec<(&str, String, Vec<&str>)> = Vec::new();
    for family in families {
        for label in family.labels {
            let values = match label.bound {
                Bound::OneOf(listed) => listed.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", "),
                Bound::Of(what) => format!("{what}; with all others {SERIES_MAX} series at most"),
            };
            match found.iter_mut().find(|(name, known, _)| *name == label.name && *known == values) {
                Some((_, _, of)) => of.push(family.name),
                None => found.push((label.name, values, vec![family.name])),
            }
        }
    }
    found.sort();
    let is_alone = |name: &str| found.iter().filter(|(other, ..)| *other == name).count() == 1;
    let whose = |name: &str, of: &[&str]| match is_alone(name) {
        true => String::new(),
        false => format!(" of {}", of.iter().map(|family| format!("`{family}`")).collect::<Vec<_>>().join(", ")),
    };
    found.iter().map(|(name, values, of)| (*name, values.clone(), whose(name, of))).collect()
}
