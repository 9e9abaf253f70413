//! Parses amounts as people write them: a whole number and its unit.

use thiserror::Error;

use crate::{GIB, MIB, TIB};

/// Why a text is not an amount. The message says what to write.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AmountError {
    /// The text is something else, or the amount is too large.
    #[error("write a whole number and its unit, such as {0}")]
    NoAmount(&'static str),
    /// The number has no unit. Programs disagree on what it means (QEMU: MiB, libvirt: KiB).
    #[error("say of what: {0}")]
    NoUnit(String),
    /// The unit has another name.
    #[error("write \"{0}\": the units are MiB, GiB and TiB, powers of 1024")]
    OtherUnit(String),
}

/// Returns the number at the beginning of `text`, and the unit after it.
pub(crate) fn split<'a>(text: &'a str, examples: &'static str) -> Result<(u64, &'a str), AmountError> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    Ok((number.parse().map_err(|_| AmountError::NoAmount(examples))?, unit.trim_start()))
}

/// Parses bytes like `"4 GiB"`: a whole number and MiB, GiB or TiB.
///
/// # Errors
/// A number without a unit, another unit, or more than 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, AmountError> {
    const EXAMPLES: &str = "\"4 GiB\" or \"512 MiB\"";
    let (number, unit) = split(text, EXAMPLES)?;
    let factor = match unit {
        "MiB" => MIB,
        "GiB" => GIB,
        "TiB" => TIB,
        "" => return Err(AmountError::NoUnit(format!("\"{number} MiB\" or \"{number} GiB\""))),
        _ => {
            let meant = match unit.to_ascii_lowercase().as_str() {
                "m" | "mb" | "mib" => "MiB",
                "g" | "gb" | "gib" => "GiB",
                "t" | "tb" | "tib" => "TiB",
                _ => return Err(AmountError::NoAmount(EXAMPLES)),
            };
            return Err(AmountError::OtherUnit(format!("{number} {meant}")));
        }
    };
    number.checked_mul(factor).ok_or(AmountError::NoAmount(EXAMPLES))
}

/// Parses seconds like `"1h"`: a whole number and s, m, h or d.
///
/// # Errors
/// A number without a unit, another unit, or more than 64 bits.
pub fn parse_seconds(text: &str) -> Result<u64, AmountError> {
    const EXAMPLES: &str = "\"10m\", \"1h\" or \"2d\"";
    let (number, unit) = split(text, EXAMPLES)?;
    let factor = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        "" => return Err(AmountError::NoUnit(format!("\"{number}m\" or \"{number}h\""))),
        _ => return Err(AmountError::NoAmount(EXAMPLES)),
    };
    number.checked_mul(factor).ok_or(AmountError::NoAmount(EXAMPLES))
}

/// Parses milliseconds of an option like `300ms`: a whole number and ms, s, m, h or d.
///
/// # Errors
/// A number without a unit, another unit, or more than 64 bits.
pub fn parse_millis(text: &str) -> Result<u64, AmountError> {
    const EXAMPLES: &str = "300ms, 10s, 10m or 2h";
    let (number, unit) = split(text, EXAMPLES)?;
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => return Err(AmountError::NoUnit(format!("{number}ms, {number}s or {number}m"))),
        _ => return Err(AmountError::NoAmount(EXAMPLES)),
    };
    number.checked_mul(factor).ok_or(AmountError::NoAmount(EXAMPLES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read() {
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
            let error = parse_bytes(text).unwrap_err().to_string();
            assert!(error.contains(expect), "{text:?}: {error}");
        }
    }

    #[test]
    fn seconds_are_read() {
        for (text, expect) in [("90s", 90), ("10 m", 600), ("1h", 3600), ("2d", 172_800), ("0s", 0)] {
            assert_eq!(parse_seconds(text), Ok(expect), "{text:?}");
        }
        for (text, expect) in
            [("1", "say of what"), ("", "such as"), ("1.5h", "whole"), ("9999999999999999999d", "such as")]
        {
            assert!(parse_seconds(text).unwrap_err().to_string().contains(expect), "{text:?}");
        }
    }

    #[test]
    fn milliseconds_are_read() {
        for (text, ms) in [
            ("300ms", 300),
            ("10s", 10_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("1 min", 60_000),
            ("30d", 2_592_000_000),
        ] {
            assert_eq!(parse_millis(text), Ok(ms), "{text}");
        }
        for text in ["", "300", "-1s", "1.5s", "10 ells", "99999999999999999999s", "9999999999999999999h"] {
            assert!(parse_millis(text).is_err(), "{text}");
        }
        assert_eq!(parse_millis("300").unwrap_err().to_string(), "say of what: 300ms, 300s or 300m");
    }
}
