//! Amounts and times as people write and read them. Pure.
#![forbid(unsafe_code)]

mod clock_times;
pub mod measured;
mod parse;
mod rate;

pub use clock_times::{ClockTime, TimeWindow, TimeWindowError};
pub use parse::{AmountError, parse_bytes, parse_millis, parse_seconds};
pub use rate::{Rate, RateError, RatePlan, RatePlanError};

/// A kibibyte.
pub const KIB: u64 = 1 << 10;
/// A mebibyte.
pub const MIB: u64 = 1 << 20;
/// A gibibyte.
pub const GIB: u64 = 1 << 30;
/// A tebibyte.
pub const TIB: u64 = 1 << 40;

/// Returns seconds as `1 h`: exact, in the largest unit that divides them.
pub fn exact_time(seconds: u64) -> String {
    let (unit, name) = [(86_400, "d"), (3600, "h"), (60, "min")]
        .into_iter()
        .find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit))
        .unwrap_or((1, "s"));
    format!("{} {name}", seconds / unit)
}

/// Returns milliseconds as `144 ms`, `7.3 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `9 days`: to read, not to compute
/// with.
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

/// Returns seconds that are expected as `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `9 days`: to read, not to compute
/// with.
pub fn about_seconds(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 9.95 => format!("{seconds:.1} s"),
        0..120 => format!("{whole} s"),
        120..7200 => format!("{} min {} s", whole / 60, whole % 60),
        7200..172_800 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} days", whole / 86_400),
    }
}

/// Returns bytes as `4 GiB`: exact, in the largest unit that divides them.
pub fn exact_bytes(bytes: u64) -> String {
    let (unit, name) = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .unwrap_or((1, "bytes"));
    format!("{} {name}", bytes / unit)
}

/// Returns bytes as `3.7 GiB`: to read, not to compute with.
pub fn about_bytes(bytes: u64) -> String {
    let (unit, name) =
        [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB")].into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((KIB, "KiB"));
    let text = format!("{:.1}", bytes as f64 / unit as f64);
    format!("{} {name}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Returns an amount as `1.9 Gb` or `230 MB`, in powers of 1000 as networks count, to three digits. For a rate the
/// caller appends "/s".
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
    fn exact_times_are_written() {
        for (seconds, text) in [(90, "90 s"), (600, "10 min"), (3600, "1 h"), (172_800, "2 d"), (0, "0 s")] {
            assert_eq!(exact_time(seconds), text);
        }
    }

    #[test]
    fn durations_are_humane() {
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
