//! Tables that fit the terminal.

use std::io::IsTerminal;

use rustix::termios::tcgetwinsize;

use crate::commands::text::{print, table};

/// Prints a table. On a terminal a line ends at its edge; in a pipe nothing is cut.
pub fn print_table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    let text = table(heads, rows);
    let out = std::io::stdout();
    let width =
        out.is_terminal().then(|| tcgetwinsize(&out).ok()).flatten().map(|size| size.ws_col).filter(|width| *width > 0);
    print(&width.map_or(text.clone(), |width| fitted(&text, usize::from(width))))
}

/// Returns each line in so many columns.
pub fn fitted(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.chars().count() <= width {
            out += line;
        } else {
            out.extend(line.chars().take(width.saturating_sub(1)));
            out.push('…');
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_end_at_the_edge() {
        assert_eq!(fitted("NAME  NOTE\na     éèêë123456789\n", 10), "NAME  NOTE\na     éèê…\n");
        assert_eq!(fitted("", 10), "");
    }
}
