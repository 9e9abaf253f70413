//! Amounts as people write and read them.

/// A kibibyte.
pub const KIB: u64 = 1 << 10;
/// A mebibyte.
pub const MIB: u64 = 1 << 20;
/// A gibibyte.
pub const GIB: u64 = 1 << 30;
/// A tebibyte.
pub const TIB: u64 = 1 << 40;

/// Bytes from `"4 GiB"`: a whole number and MiB, GiB or TiB. A bare number is refused, since nobody agrees on what it
/// means (QEMU: MiB, libvirt: KiB). The error says what to write.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let example = || "write a whole number and its unit, such as \"4 GiB\" or \"512 MiB\"".to_owned();
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let number: u64 = number.parse().map_err(|_| example())?;
    let factor = match unit {
        "MiB" => MIB,
        "GiB" => GIB,
        "TiB" => TIB,
        "" => return Err(format!("say of what: \"{number} MiB\" or \"{number} GiB\"")),
        _ => {
            let meant = match unit.to_ascii_lowercase().as_str() {
                "m" | "mb" | "mib" => "MiB",
                "g" | "gb" | "gib" => "GiB",
                "t" | "tb" | "tib" => "TiB",
                _ => return Err(example()),
            };
            return Err(format!("write \"{number} {meant}\": the units are MiB, GiB and TiB, powers of 1024"));
        }
    };
    number.checked_mul(factor).ok_or_else(example)
}

/// Seconds from `"1h"`: a whole number and s, m, h or d. The error says what to write.
pub(crate) fn parse_seconds(text: &str) -> Result<u64, String> {
    let example = || "write a whole number and its unit, such as \"10m\", \"1h\" or \"2d\"".to_owned();
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let number: u64 = number.parse().map_err(|_| example())?;
    let factor = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        "" => return Err(format!("say of what: \"{number}m\" or \"{number}h\"")),
        _ => return Err(example()),
    };
    number.checked_mul(factor).ok_or_else(example)
}

/// `1 h`: exact, in the largest unit that divides it.
pub fn exact_time(seconds: u64) -> String {
    let (unit, name) = [(86_400, "d"), (3600, "h"), (60, "min")]
        .into_iter()
        .find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit))
        .unwrap_or((1, "s"));
    format!("{} {name}", seconds / unit)
}

/// `4 GiB`: exact, in the largest unit that divides `bytes`.
pub fn exact_bytes(bytes: u64) -> String {
    let (unit, name) = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .unwrap_or((1, "bytes"));
    format!("{} {name}", bytes / unit)
}

/// `3.7 GiB`: to read, not to compute with.
pub fn about_bytes(bytes: u64) -> String {
    let (unit, name) =
        [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB")].into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((KIB, "KiB"));
    let text = format!("{:.1}", bytes as f64 / unit as f64);
    format!("{} {name}", text.strip_suffix(".0").unwrap_or(&text))
}

/// `1.9 Gb` or `230 MB`, in powers of 1000 as networks count: three digits, for rates ("/s" is the caller's).
pub fn decimal(amount: f64, of: &str) -> String {
    let (factor, prefix) = match amount {
        a if a >= 999.5e9 => (1e12, "T"),
        a if a >= 999.5e6 => (1e9, "G"),
        a if a >= 999.5e3 => (1e6, "M"),
        _ => (1e3, "k"),
    };
    let amount = amount / factor;
    let digits = if amount < 9.95 { 1 } else { 0 };
    let text = format!("{amount:.digits$}");
    format!("{} {prefix}{of}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        for (text, expect) in [("4 GiB", 4 * GIB), ("512MiB", 512 * MIB), (" 1 TiB ", TIB), ("0 MiB", 0)] {
            assert_eq!(parse_bytes(text), Ok(expect), "{text:?}");
        }
        for (text, expect) in [
            ("4096", "say of what: \"4096 MiB\""),
            ("4 GB", "write \"4 GiB\""),
            ("4g", "write \"4 GiB\""),
            ("512 mib", "write \"512 MiB\""),
            ("", "such as \"4 GiB\""),
            ("1.5 GiB", "whole number"),
            ("-1 GiB", "whole number"),
            ("much", "such as"),
            ("4 ells", "such as"),
            ("99999999999999999999 MiB", "such as"),
            ("99999999999999999 TiB", "such as"),
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains(expect), "{text:?}: {error}");
        }
    }

    #[test]
    fn times_are_read_and_written() {
        for (text, expect, written) in [
            ("90s", 90, "90 s"),
            ("10 m", 600, "10 min"),
            ("1h", 3600, "1 h"),
            ("2d", 172_800, "2 d"),
            ("0s", 0, "0 s"),
        ] {
            assert_eq!(parse_seconds(text), Ok(expect), "{text:?}");
            assert_eq!(exact_time(expect), written);
        }
        for (text, expect) in
            [("1", "say of what"), ("", "such as"), ("1.5h", "whole"), ("9999999999999999999d", "such as")]
        {
            assert!(parse_seconds(text).unwrap_err().contains(expect), "{text:?}");
        }
    }

    #[test]
    fn amounts_are_written() {
        for (bytes, exact, about) in [
            (0, "0 bytes", "0 KiB"),
            (4 * GIB, "4 GiB", "4 GiB"),
            (1536 * MIB, "1536 MiB", "1.5 GiB"),
            (5 * TIB, "5 TiB", "5 TiB"),
            (u64::MAX, "18446744073709551615 bytes", "16777216 TiB"),
        ] {
            assert_eq!((exact_bytes(bytes).as_str(), about_bytes(bytes).as_str()), (exact, about));
        }
        for (amount, text) in
            [(1.9e9, "1.9 Gb"), (1e9, "1 Gb"), (25e9, "25 Gb"), (230.2e6, "230 Mb"), (999.9e6, "1 Gb"), (0.0, "0 kb")]
        {
            assert_eq!(decimal(amount, "b"), text);
        }
    }
}
