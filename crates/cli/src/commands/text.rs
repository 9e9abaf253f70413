//! How things are printed: tables, sizes, times.

pub use skein_terminal::{clean, print};

/// A value as indented JSON, to standard output.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// As [`clean`], in one line.
pub fn clean_line(text: &str) -> String {
    clean(text).replace('\n', "; ")
}

/// Columns below their heads, two blanks apart; the last is as long as it is. An empty cell becomes a dash.
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

/// Names and values, a line each, indented; those without a value are left out.
pub fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let shown = fields.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(name, value)| format!("  {name:width$}  {}\n", clean_line(value))).collect()
}

/// `144 ms`, `7.3 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `9 days`.
pub fn duration(ms: u64) -> String {
    let s = ms.saturating_add(500) / 1000;
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..9950 => format!("{:.1} s", ms as f64 / 1000.0),
        _ if s < 120 => format!("{s} s"),
        _ if s < 7200 => format!("{} min {} s", s / 60, s % 60),
        _ if s < 172_800 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} days", s / 86_400),
    }
}

/// `2026-11-22T03:41:07.120Z` as `2026-11-22 03:41:07`; anything else as it is.
pub fn moment(rfc3339: &str) -> String {
    match rfc3339.get(..19) {
        Some(second) if second.is_ascii() && second.as_bytes()[10] == b'T' => second.replace('T', " "),
        _ => rfc3339.to_owned(),
    }
}

/// `1 error`, `2 errors`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A time as people write it, in milliseconds: `300ms`, `10s`, `10m`, `2h`. For clap; the error says what to write.
pub fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let example = "write a whole number and its unit, such as 300ms, 10s, 10m or 2h";
    let number: u64 = number.parse().map_err(|_| example.to_owned())?;
    let factor = match unit.trim() {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "" => return Err(format!("say of what: {number}ms, {number}s or {number}m")),
        _ => return Err(example.into()),
    };
    number.checked_mul(factor).ok_or_else(|| example.into())
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
    fn times_are_humane() {
        for (ms, expect) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1.0 s"),
            (9949, "9.9 s"),
            (9950, "10 s"),
            (119_499, "119 s"),
            (119_500, "2 min 0 s"),
            (7_200_000, "2 h 0 min"),
            (172_800_000, "2 days"),
            (u64::MAX, "213503982334 days"),
        ] {
            assert_eq!(duration(ms), expect, "{ms}");
        }
        assert_eq!(moment("2026-11-22T03:41:07.120Z"), "2026-11-22 03:41:07");
        for odd in ["", "soon", "2026-11-22 03:41:07Z", "éééééééééééééééé"] {
            assert_eq!(moment(odd), odd);
        }
    }

    #[test]
    fn times_are_read() {
        for (text, ms) in [("300ms", 300), ("10s", 10_000), ("10m", 600_000), ("2h", 7_200_000), ("1 min", 60_000)] {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        for text in ["", "300", "-1s", "1.5s", "10 ells", "99999999999999999999s", "9999999999999999999h"] {
            assert!(parse_duration_ms(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration_ms("300").unwrap_err(), "say of what: 300ms, 300s or 300m");
    }
}
