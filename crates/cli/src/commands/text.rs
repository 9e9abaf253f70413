//! Prints tables, fields, and times.

pub use skein_terminal::{clean, print};

/// Prints a value as indented JSON to standard output.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
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

/// Returns names and values, one line each, indented. Those without a value are left out.
pub fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let shown = fields.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(name, value)| format!("  {name:width$}  {}\n", clean_line(value))).collect()
}

/// Returns `2026-11-22T03:41:07.120Z` as `2026-11-22 03:41:07`, and any other text as it is.
pub fn moment(rfc3339: &str) -> String {
    match rfc3339.get(..19) {
        Some(second) if second.is_ascii() && second.as_bytes()[10] == b'T' => second.replace('T', " "),
        _ => rfc3339.to_owned(),
    }
}

/// Returns `1 error`, `2 errors`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let shown = fields(&[("a", "1".into()), ("long", String::new()), ("b", "2".into())]);
        assert_eq!(shown, "  a     1\n  b     2\n");
    }

    #[test]
    fn moments_lose_what_nobody_reads() {
        assert_eq!(moment("2026-11-22T03:41:07.120Z"), "2026-11-22 03:41:07");
        for odd in ["", "soon", "2026-11-22 03:41:07Z", "éééééééééééééééé"] {
            assert_eq!(moment(odd), odd);
        }
    }
}
