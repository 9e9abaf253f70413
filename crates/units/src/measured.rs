//! Measured values, to three significant digits.

/// Returns bits per second as `940 Mb/s`, `1.88 Gb/s`.
pub fn bps(value: f64) -> String {
    match value.abs() {
        v if v >= 999.5e6 => format!("{} Gb/s", digits(value / 1e9)),
        v if v >= 999.5e3 => format!("{} Mb/s", digits(value / 1e6)),
        _ => format!("{} kb/s", digits(value / 1e3)),
    }
}

/// Returns a nominal rate as `1 Gb/s`, `2.5 Gb/s`, `250 Mb/s`.
pub fn nominal(bps: u64) -> String {
    if bps >= 1_000_000_000 { format!("{} Gb/s", bps as f64 / 1e9) } else { format!("{} Mb/s", bps as f64 / 1e6) }
}

/// Returns bytes in powers of 1000, as networks count: `350 MB`, `2.15 GB`.
pub fn bytes(value: f64) -> String {
    match value.abs() {
        v if v >= 999.5e6 => format!("{} GB", digits(value / 1e9)),
        v if v >= 999.5e3 => format!("{} MB", digits(value / 1e6)),
        _ => format!("{} kB", digits(value / 1e3)),
    }
}

/// Returns seconds as `0.34 s`, `4.2 s`, `103 s`.
pub fn seconds(value: f64) -> String {
    format!("{} s", digits(value))
}

/// Returns milliseconds as `0.34 ms`, `42 ms`.
pub fn millis(value: f64) -> String {
    format!("{} ms", digits(value))
}

/// Returns a share as `95.2 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns three significant digits: `1.88`, `18.8`, `188`, `1880`.
pub fn digits(value: f64) -> String {
    // Turns -0 into 0.
    let value = value + 0.0;
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(bps(1.8834e9), "1.88 Gb/s");
        assert_eq!(bps(999.6e6), "1.00 Gb/s");
        assert_eq!(bps(943.4e6), "943 Mb/s");
        assert_eq!((nominal(2_500_000_000).as_str(), nominal(250_000_000).as_str()), ("2.5 Gb/s", "250 Mb/s"));
        assert_eq!(bps(0.0), "0.00 kb/s");
        assert_eq!(bytes(2147483648.0), "2.15 GB");
        assert_eq!(bytes(65536.0), "65.5 kB");
        assert_eq!(seconds(103.4), "103 s");
        assert_eq!(millis(9.996), "10.0 ms");
        assert_eq!(percent(0.9512), "95.1 %");
    }
}
