//! Amounts as people write them ("16 GiB", "4 cores", "200 MB/s", "10 %", 12), and as they are counted.
//!
//! They are counted in whole grains, which are coarse enough that sums stay exact
//! ([`Problem::check`](skein_placement::problem::Problem::check)).

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use thiserror::Error;

/// A number and the unit behind it, if any. What both mean depends on the resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Amount {
    /// The number: 0 or more, and below [`MOST`].
    pub(super) number: f64,
    /// The unit as it is written. Empty: there is none.
    pub(super) unit: String,
}

/// Why something is not an amount, or not one of a unit.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum AmountError {
    /// A text is not a number and a unit.
    #[error("'{0}' is no amount: a number and its unit, like '16 GiB'")]
    NoAmount(String),
    /// A number is below 0, or absurdly large.
    #[error("{0} is no amount: it is not within 0 to 2^60")]
    OutOfRange(f64),
    /// The unit is that of something else.
    #[error("'{amount}' has no unit of it: write {}", unit.examples())]
    OtherUnit {
        /// The amount as it is written.
        amount: Amount,
        /// The unit that it should have.
        unit: Unit,
    },
    /// The amount is less than a grain and has no unit: the unit was probably forgotten.
    #[error("'{number}' has no unit: write '{number} {likely}', or '{number} {plain}' if it is so little")]
    UnitMissing {
        /// The number as it is written.
        number: f64,
        /// The unit that is probably meant.
        likely: &'static str,
        /// The unit of plain numbers.
        plain: &'static str,
    },
    /// The amount is more than an exbibyte, in its unit.
    #[error("'{0}' is more than there can be")]
    TooMuch(Amount),
}

/// The largest amount in any unit: an exbibyte.
pub const MOST: f64 = (1u64 << 60) as f64;

/// What a resource is counted in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Plain numbers are bytes; grains are mebibytes.
    Bytes,
    /// Plain numbers are bytes per second; grains are thousands of them.
    Rate,
    /// Plain numbers are cores; grains are thousandths.
    Cores,
    /// Any other unit, by its name, which may follow the number. Grains are thousandths. Empty: numbers have no unit.
    Other(String),
}

/// The prefixes: powers of 1000 and of 1024. Case does not matter, except that `b` and `B` never stand for each other.
const PREFIXES: [(&str, f64); 11] = [
    ("", 1.0),
    ("k", 1e3),
    ("m", 1e6),
    ("g", 1e9),
    ("t", 1e12),
    ("p", 1e15),
    ("ki", 1024.0),
    ("mi", 1_048_576.0),
    ("gi", 1_073_741_824.0),
    ("ti", 1_099_511_627_776.0),
    ("pi", 1_125_899_906_842_624.0),
];

/// Returns how many bytes a unit is: "B", "kB", "GiB" and so on.
fn bytes_in(unit: &str) -> Option<f64> {
    prefix(unit.strip_suffix('B')?)
}

/// Returns how many bytes per second a unit is: "MB/s", "GiB/s", "Mbit/s" and so on.
fn rate_in(unit: &str) -> Option<f64> {
    let unit = unit.strip_suffix("/s")?;
    match unit.strip_suffix("bit") {
        Some(bits) => prefix(bits).map(|bits| bits / 8.0),
        None => bytes_in(unit),
    }
}

fn prefix(text: &str) -> Option<f64> {
    PREFIXES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, factor)| *factor)
}

impl Unit {
    /// Returns the unit of a resource from its `unit` field.
    pub fn named(name: &str) -> Unit {
        match name {
            "bytes" => Unit::Bytes,
            "bytes/s" => Unit::Rate,
            "cores" => Unit::Cores,
            other => Unit::Other(other.to_owned()),
        }
    }

    /// Returns how many plain units a grain is.
    fn grain(&self) -> f64 {
        match self {
            Unit::Bytes => 1_048_576.0,
            Unit::Rate => 1000.0,
            Unit::Cores | Unit::Other(_) => 0.001,
        }
    }

    /// Returns how many plain units the written unit is, or `None` if it is not one of this kind.
    fn factor(&self, written: &str) -> Option<f64> {
        match self {
            _ if written.is_empty() => Some(1.0),
            Unit::Bytes => bytes_in(written),
            Unit::Rate => rate_in(written),
            Unit::Cores => matches!(written, "core" | "cores").then_some(1.0),
            Unit::Other(name) => (written == name).then_some(1.0),
        }
    }

    /// Returns examples of what can be written, and which units there are, for messages.
    fn examples(&self) -> String {
        match self {
            Unit::Bytes => "'16 GiB' or '500 MB' (B; kB, MB, GB, TB, PB; KiB, MiB, GiB, TiB, PiB)".into(),
            Unit::Rate => "'200 MB/s' or '10 Gbit/s' (B/s, bit/s; kB/s, MiB/s, Mbit/s and so on)".into(),
            Unit::Cores => "'4 cores' or 0.5".into(),
            Unit::Other(name) if name.is_empty() => "a number without a unit".into(),
            Unit::Other(name) => format!("'5 {name}' or 5"),
        }
    }

    /// Returns which unit a small number without a unit probably means, and the plain unit, if a grain is more than a
    /// plain unit.
    fn meant(&self) -> Option<[&'static str; 2]> {
        match self {
            Unit::Bytes => Some(["GiB", "B"]),
            Unit::Rate => Some(["MB/s", "B/s"]),
            Unit::Cores | Unit::Other(_) => None,
        }
    }

    /// Returns an amount in plain units.
    ///
    /// # Errors
    ///
    /// - [`AmountError::OtherUnit`]: the amount's unit is not one of this kind. The text names those that are.
    /// - [`AmountError::UnitMissing`]: the amount has no unit and is less than a grain. The unit was probably
    ///   forgotten.
    /// - [`AmountError::TooMuch`]: the amount is more than an exbibyte.
    pub fn plain(&self, amount: &Amount) -> Result<f64, AmountError> {
        let factor = self.factor(&amount.unit);
        let factor = factor.ok_or_else(|| AmountError::OtherUnit { amount: amount.clone(), unit: self.clone() })?;
        if let Some([likely, plain]) = self.meant()
            && amount.unit.is_empty()
            && 0.0 < amount.number
            && amount.number < self.grain()
        {
            return Err(AmountError::UnitMissing { number: amount.number, likely, plain });
        }
        let plain = amount.number * factor;
        if plain <= MOST { Ok(plain) } else { Err(AmountError::TooMuch(amount.clone())) }
    }

    /// Returns an amount that is used, in grains, rounded up.
    ///
    /// # Errors
    ///
    /// Those of [`Unit::plain`].
    pub fn used(&self, amount: &Amount) -> Result<i64, AmountError> {
        let grains = self.plain(amount)? / self.grain();
        Ok((grains - noise(grains)).ceil().max(0.0) as i64)
    }

    /// Returns an amount that is available, in grains, rounded down.
    pub fn there_is(&self, plain: f64) -> i64 {
        let grains = plain / self.grain();
        (grains + noise(grains)).floor().max(0.0) as i64
    }

    /// Returns grains in plain units.
    pub fn of_grains(&self, grains: i64) -> f64 {
        grains as f64 * self.grain()
    }

    /// Returns grains as a text for people.
    pub fn text(&self, grains: i64) -> String {
        let plain = self.of_grains(grains);
        let scaled = |scale: &[(&str, f64)]| {
            let fits = scale.iter().rev().find(|(_, factor)| plain.abs() >= *factor).or(scale.first());
            fits.map_or_else(String::new, |(name, factor)| format!("{} {name}", short(plain / factor)))
        };
        match self {
            Unit::Bytes => scaled(&[("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0), ("TiB", 1_099_511_627_776.0)]),
            Unit::Rate => scaled(&[("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9)]),
            Unit::Cores if plain == 1.0 => "1 core".into(),
            Unit::Cores => format!("{} cores", short(plain)),
            Unit::Other(name) => format!("{} {name}", short(plain)).trim_end().to_owned(),
        }
    }
}

/// Returns the most by which binary fractions differ from decimal ones, so that 0.1 cores are 100 thousandths, not 101.
/// A byte is more than this.
fn noise(grains: f64) -> f64 {
    1e-7 + grains * 1e-15
}

/// Formats a number with at most two decimals.
fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Amount {
    /// Parses a number without a unit, or with one behind it.
    ///
    /// # Errors
    ///
    /// [`AmountError`] if the text is not an amount, or if the number is below 0 or absurdly large.
    pub fn parse(text: &str) -> Result<Amount, AmountError> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let number: f64 = text[..end].parse().map_err(|_| AmountError::NoAmount(text.to_owned()))?;
        Amount::new(number, text[end..].trim())
    }

    /// Makes an amount of a number and a unit, which may be empty.
    ///
    /// # Errors
    ///
    /// [`AmountError::OutOfRange`] if the number is below 0, absurdly large, or not a number.
    pub fn new(number: f64, unit: &str) -> Result<Amount, AmountError> {
        if !(0.0..MOST).contains(&number) {
            return Err(AmountError::OutOfRange(number));
        }
        Ok(Amount { number, unit: unit.to_owned() })
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.number, if self.unit.is_empty() { "" } else { " " }, self.unit)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Amount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount like 12 or '16 GiB'")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Amount, E> {
                self.visit_f64(number as f64)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Amount, E> {
                self.visit_f64(number as f64)
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Amount, E> {
                Amount::new(number, "").map_err(E::custom)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                Amount::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn used(unit: Unit, text: &str) -> Result<i64, String> {
        Amount::parse(text).and_then(|amount| unit.used(&amount)).map_err(|error| error.to_string())
    }

    #[test]
    fn amounts_are_counted_in_grains() {
        assert_eq!(used(Unit::Bytes, "16 GiB"), Ok(16 * 1024));
        assert_eq!(used(Unit::Bytes, "1 B"), Ok(1));
        assert_eq!(used(Unit::Bytes, "1.5GiB"), Ok(1536));
        assert_eq!(used(Unit::Rate, "200 MB/s"), Ok(200_000));
        assert_eq!(used(Unit::Rate, "10 Gbit/s"), Ok(1_250_000));
        assert_eq!(used(Unit::Cores, "0.1"), Ok(100));
        assert_eq!(used(Unit::Cores, "4 cores"), Ok(4000));
        assert_eq!(used(Unit::Other("GPUs".into()), "2 GPUs"), Ok(2000));
        assert_eq!(Unit::Bytes.there_is(1_048_577.0), 1);
    }

    #[test]
    fn what_is_no_amount_is_told() {
        assert!(used(Unit::Bytes, "16 G").unwrap_err().contains("write '16 GiB'"));
        assert!(used(Unit::Bytes, "160G").unwrap_err().contains("GB, TB, PB; KiB, MiB, GiB"));
        assert!(used(Unit::Cores, "4 GiB").unwrap_err().contains("'4 cores'"));
        assert!(used(Unit::Bytes, "-1").unwrap_err().contains("no amount"));
        assert!(used(Unit::Bytes, "900000 PiB").unwrap_err().contains("more than there can be"));
        assert!(used(Unit::Bytes, "1.2.3").is_err());
        assert!(used(Unit::Bytes, "").is_err());
    }

    #[test]
    fn a_unit_that_was_forgotten_is_told() {
        for (unit, number, told) in [
            (Unit::Bytes, "64", "'64' has no unit: write '64 GiB', or '64 B' if it is so little"),
            (Unit::Bytes, "1048575", "'1048575' has no unit: write '1048575 GiB', or '1048575 B' if it is so little"),
            (Unit::Rate, "10", "'10' has no unit: write '10 MB/s', or '10 B/s' if it is so little"),
        ] {
            assert_eq!(used(unit, number), Err(told.to_owned()));
        }
        assert_eq!(used(Unit::Bytes, "0"), Ok(0));
        assert_eq!(used(Unit::Bytes, "64 B"), Ok(1));
        assert_eq!(used(Unit::Bytes, "1048576"), Ok(1));
        assert_eq!(used(Unit::Rate, "1000"), Ok(1));
        assert_eq!(used(Unit::Cores, "0.5"), Ok(500));
    }

    proptest! {
        #[test]
        fn what_is_told_is_what_was_written(grains in 0i64..1 << 40) {
            for unit in [Unit::Bytes, Unit::Rate, Unit::Cores, Unit::Other("x".into())] {
                let told = used(unit.clone(), &unit.text(grains)).unwrap();
                prop_assert!((told - grains).abs() as f64 <= 1.0 + 0.006 * grains as f64, "{} {}", told, grains);
                prop_assert_eq!(unit.there_is(unit.of_grains(grains)), grains);
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = used(Unit::Rate, &text);
        }
    }
}
