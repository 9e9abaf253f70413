//! Prints fields and times, besides what all programs print.

pub use skein_terminal::{clean, clean_line, count, print, print_json, print_to_reader, table};

/// Returns names and values, one line each, indented. Those without a value are left out.
pub fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let shown = fields.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(name, value)| format!("  {name:width$}  {}\n", clean_line(value))).collect()
}

/// Prints words; beside JSON on standard error.
pub fn say(json: bool, text: &str) -> anyhow::Result<()> {
    if !json {
        return print(text);
    }
    eprint!("{text}");
    Ok(())
}

/// Returns `2026-11-22T03:41:07.120Z` as `2026-11-22 03:41:07`, and any other text as it is.
pub fn moment(rfc3339: &str) -> String {
    match rfc3339.get(..19) {
        Some(second) if second.is_ascii() && second.as_bytes()[10] == b'T' => second.replace('T', " "),
        _ => rfc3339.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_value_is_left_out() {
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
