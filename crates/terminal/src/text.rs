//! Prints text, JSON and tables.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Writes to standard output. A reader that has seen enough (`| head`) is not an error.
///
/// # Errors
/// Standard output cannot be written to for another reason.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_to_reader(text).map(drop)
}

/// Prints to standard output. Returns whether somebody reads there still: who prints without an end ends then.
///
/// # Errors
/// Standard output cannot be written to for another reason.
pub fn print_to_reader(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Prints a value as indented JSON to standard output.
///
/// # Errors
/// The value is none of JSON, or standard output cannot be written to.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Returns text from elsewhere without what could control a terminal. Line breaks stay.
pub fn clean(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(|c: char| c.is_control() && c != '\n' || turns(c), "\u{fffd}")
}

/// Returns the same as [`clean`], in one line.
pub fn clean_line(text: &str) -> String {
    clean(text).replace('\n', "; ")
}

/// Returns columns below their heads, two blanks apart. The last column is as wide as its cells. An empty cell becomes
/// a dash.
pub fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let cell = |text: &str| if text.is_empty() { "-".to_owned() } else { clean_line(text) };
    let rows: Vec<[String; N]> = rows.iter().map(|row| std::array::from_fn(|n| cell(&row[n]))).collect();
    let heads = heads.map(str::to_owned);
    let mut text = String::new();
    let width = |n: usize| rows.iter().chain([&heads]).map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in [&heads].into_iter().chain(&rows) {
        let line: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Returns `1 error`, `2 errors`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_drive_a_terminal_is_replaced() {
        assert_eq!(clean("a\u{1b}[2J\nb\u{202e}c\r"), "a\u{fffd}[2J\nb\u{fffd}c\u{fffd}");
    }

    #[test]
    fn columns_are_aligned() {
        let rows =
            [["web1", "4 GiB", "é"], ["db-with-a-long-name", "", "two\nlines\u{1b}[2J"]].map(|r| r.map(String::from));
        assert_eq!(
            table(["NAME", "MEMORY", "NOTE"], &rows),
            "NAME                 MEMORY  NOTE\n\
             web1                 4 GiB   é\n\
             db-with-a-long-name  -       two; lines\u{fffd}[2J\n"
        );
        assert_eq!(table(["NAME"], &[]), "NAME\n");
    }
}
