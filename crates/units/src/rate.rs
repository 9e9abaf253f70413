//! Rates of networks, and at which times of day which rate holds.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use thiserror::Error;

use crate::clock_times::{ClockTime, TimeWindow, TimeWindowError};
use crate::parse::{AmountError, split};

/// The least rate that may be set: 8 Mbit/s, which take a quarter of a second for 64 pages.
const BITS_PER_S_MIN: u64 = 8_000_000;
/// The greatest rate that may be set: 100 Tbit/s.
const BITS_PER_S_MAX: u64 = 100_000_000_000_000;
/// The most windows of a plan.
const WINDOWS_MAX: usize = 32;

const EXAMPLES: &str = "\"1 Gbit/s\", \"500 Mbit/s\" or \"100 MB/s\"";

/// A rate that is set: 8 Mbit/s to 100 Tbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    bits_per_s: u64,
}

/// Why a text is not a rate. The message says what to write.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RateError {
    #[error(transparent)]
    Amount(#[from] AmountError),
    #[error("a rate is {} to {}", Rate { bits_per_s: BITS_PER_S_MIN }, Rate { bits_per_s: BITS_PER_S_MAX })]
    OutOfRange,
}

impl Rate {
    /// The least rate.
    pub const MIN: Rate = Rate { bits_per_s: BITS_PER_S_MIN };

    /// Returns the rate of so many bits per second. `None`: that is out of range.
    pub fn of_bits_per_s(bits_per_s: u64) -> Option<Rate> {
        (BITS_PER_S_MIN..=BITS_PER_S_MAX).contains(&bits_per_s).then_some(Rate { bits_per_s })
    }

    /// Returns the bits per second.
    pub fn bits_per_s(self) -> u64 {
        self.bits_per_s
    }

    /// Returns the bytes per second.
    pub fn bytes_per_s(self) -> NonZeroU64 {
        NonZeroU64::new(self.bits_per_s / 8).unwrap_or(NonZeroU64::MIN)
    }
}

impl fmt::Display for Rate {
    /// Writes `1 Gbit/s`: exact, in the largest unit that divides the rate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")];
        let (unit, name) =
            units.into_iter().find(|(unit, _)| self.bits_per_s.is_multiple_of(*unit)).unwrap_or((1, "bit/s"));
        write!(f, "{} {name}", self.bits_per_s / unit)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    /// Reads a rate like `1 Gbit/s`, `1 Gb/s` or `100 MB/s`: a whole number, a power of 1000 or 1024, bits or bytes.
    ///
    /// # Errors
    /// A number without a unit, another unit, or a rate that is out of range.
    fn from_str(text: &str) -> Result<Rate, RateError> {
        let (number, unit) = split(text, EXAMPLES)?;
        if unit.is_empty() {
            let units = ["Mbit/s", "MB/s", "Gbit/s", "GB/s"].map(|unit| format!("{number} {unit}"));
            let mut meant = units.iter().filter(|text| Rate::from_str(text).is_ok()).map(|text| format!("{text:?}"));
            let first = meant.next().ok_or(RateError::OutOfRange)?;
            let second = meant.next().map(|second| format!(" or {second}")).unwrap_or_default();
            return Err(AmountError::NoUnit(first + &second).into());
        }
        let bits = bits_per_s(unit).ok_or(AmountError::NoAmount(EXAMPLES))?;
        number.checked_mul(bits).and_then(Rate::of_bits_per_s).ok_or(RateError::OutOfRange)
    }
}

/// Returns the bits per second of a unit like `Gbit/s`, `Gb/s`, `MB/s` or `MiB/s`.
fn bits_per_s(unit: &str) -> Option<u64> {
    let unit = unit.strip_suffix("/s")?;
    let bits = unit.strip_suffix("bit").or_else(|| unit.strip_suffix('b')).map(|prefix| (prefix, 1));
    let (prefix, bits) = bits.or_else(|| Some((unit.strip_suffix('B')?, 8)))?;
    let factor = match prefix.to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        "ti" => 1 << 40,
        _ => return None,
    };
    Some(factor * bits)
}

/// Which rate holds when: `4 Gbit/s; mon-fri 08:00-18:00 1 Gbit/s; sun unlimited`.
///
/// Of the windows that hold at a time, the first counts. The rate without a window holds at all other times; without
/// such a rate nothing is limited then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RatePlan {
    usual: Option<Rate>,
    windows: Vec<(TimeWindow, Option<Rate>)>,
}

/// Why a text is not a plan of rates. The message says what to write.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RatePlanError {
    #[error("{part:?}: {source}")]
    Rate { part: String, source: RateError },
    #[error("{part:?}: {source}")]
    Window { part: String, source: TimeWindowError },
    #[error("two rates hold at all times: give one of them times, such as \"mon-fri 08:00-18:00 1 Gbit/s\"")]
    TwoUsual,
    #[error("a plan has at most {WINDOWS_MAX} windows")]
    TooMany,
    #[error("write a rate, such as \"1 Gbit/s\", or rates with times: \"4 Gbit/s; mon-fri 08:00-18:00 1 Gbit/s\"")]
    Empty,
}

impl RatePlan {
    /// Returns the rate that holds at a time. `None`: nothing is limited.
    pub fn at(&self, time: ClockTime) -> Option<Rate> {
        match self.windows.iter().find(|(window, _)| window.holds(time)) {
            Some((_, rate)) => *rate,
            None => self.usual,
        }
    }
}

impl fmt::Display for RatePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.usual {
            Some(rate) => write!(f, "{rate}")?,
            None => write!(f, "unlimited")?,
        }
        for (window, rate) in &self.windows {
            match rate {
                Some(rate) => write!(f, "; {window} {rate}")?,
                None => write!(f, "; {window} unlimited")?,
            }
        }
        Ok(())
    }
}

impl FromStr for RatePlan {
    type Err = RatePlanError;

    /// Reads rates, each with its times or none, between semicolons.
    ///
    /// # Errors
    /// The first part that is wrong, and what to write.
    fn from_str(text: &str) -> Result<RatePlan, RatePlanError> {
        let (mut usual, mut windows) = (None, Vec::new());
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (window, rate) = split_window(part);
            let rate = match rate {
                "unlimited" => None,
                rate => {
                    let wrong = |source| RatePlanError::Rate { part: part.to_owned(), source };
                    Some(rate.parse::<Rate>().map_err(wrong)?)
                }
            };
            match window {
                None if usual.replace(rate).is_some() => return Err(RatePlanError::TwoUsual),
                None => {}
                Some(window) => {
                    let wrong = |source| RatePlanError::Window { part: part.to_owned(), source };
                    windows.push((window.parse().map_err(wrong)?, rate));
                }
            }
        }
        if windows.len() > WINDOWS_MAX {
            return Err(RatePlanError::TooMany);
        }
        if usual.is_none() && windows.is_empty() {
            return Err(RatePlanError::Empty);
        }
        Ok(RatePlan { usual: usual.flatten(), windows })
    }
}

/// Splits a part of a plan into its window, if it has one, and its rate: the number and its unit, or `unlimited`.
fn split_window(part: &str) -> (Option<&str>, &str) {
    let words: Vec<&str> = part.split_whitespace().collect();
    // "1Gbit/s" is one word, "1 Gbit/s" are two; a window's words have a letter or a colon before any slash.
    let rate_words = match words[..] {
        [.., number, unit] if number.bytes().all(|b| b.is_ascii_digit()) && unit.ends_with("/s") => 2,
        _ => 1,
    };
    let Some(first) = words.len().checked_sub(rate_words).and_then(|nth| words.get(nth)) else { return (None, part) };
    let at = first.as_ptr() as usize - part.as_ptr() as usize;
    let window = part[..at].trim();
    ((!window.is_empty()).then_some(window), &part[at..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn rates_are_read_and_written() {
        for (text, bits, written) in [
            ("1 Gbit/s", 1_000_000_000, "1 Gbit/s"),
            ("1Gb/s", 1_000_000_000, "1 Gbit/s"),
            ("2500 Mbit/s", 2_500_000_000, "2500 Mbit/s"),
            ("100 MB/s", 800_000_000, "800 Mbit/s"),
            ("1 MiB/s", 8_388_608, "8388608 bit/s"),
            ("8 mbit/s", 8_000_000, "8 Mbit/s"),
        ] {
            assert_eq!((rate(text).bits_per_s(), rate(text).to_string()), (bits, written.to_owned()), "{text}");
        }
        assert_eq!(rate("8 Mbit/s").bytes_per_s().get(), 1_000_000);
        for (text, told) in [
            ("", "such as"),
            ("1", "say of what: \"1 MB/s\""),
            ("500", "say of what: \"500 Mbit/s\" or \"500 MB/s\""),
            ("0", "8 Mbit/s to"),
            ("1 G", "such as"),
            ("1 Gbit", "such as"),
            ("1.5 Gbit/s", "whole number"),
            ("1 Xbit/s", "such as"),
            ("1 Mbit/s", "8 Mbit/s to 100000 Gbit/s"),
            ("0 Gbit/s", "8 Mbit/s to"),
            ("9999999999999 Tbit/s", "8 Mbit/s to"),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(told), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_first_window_that_holds_counts() {
        let plan: RatePlan =
            "4 Gbit/s; mon-fri 08:00-18:00 1 Gbit/s; sun unlimited; 00:00-24:00 2Gbit/s".parse().unwrap();
        let at = |day, hour: u16| plan.at(ClockTime::new(day, hour * 60).unwrap());
        assert_eq!(at(0, 9), Some(rate("1 Gbit/s")));
        assert_eq!(at(0, 18), Some(rate("2 Gbit/s")));
        assert_eq!(at(6, 9), None);
        let plan: RatePlan = "mon 8:00-9:00 1 Gbit/s".parse().unwrap();
        assert_eq!(plan.at(ClockTime::new(1, 500).unwrap()), None);
        assert_eq!(plan.at(ClockTime::new(0, 500).unwrap()), Some(rate("1 Gbit/s")));
        assert_eq!("unlimited".parse::<RatePlan>().unwrap().at(ClockTime::new(1, 500).unwrap()), None);
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused_with_its_place() {
        for (text, told) in [
            ("", "write a rate"),
            (" ; ", "write a rate"),
            ("1 Gbit/s; 2 Gbit/s", "two rates"),
            ("mon-fry 1 Gbit/s", "\"mon-fry 1 Gbit/s\""),
            ("mon 08:00-18:00 fast", "\"mon 08:00-18:00 fast\""),
            ("mon 08:00-18:00", "such as \"1 Gbit/s\""),
            ("1 Gbit/s mon", "such as"),
        ] {
            let error = text.parse::<RatePlan>().unwrap_err().to_string();
            assert!(error.contains(told), "{text:?}: {error}");
        }
        assert_eq!("mon 1 Gbit/s;".repeat(33).parse::<RatePlan>(), Err(RatePlanError::TooMany));
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(text in ".{0,60}") {
            let _ = text.parse::<RatePlan>();
        }

        #[test]
        fn what_is_written_is_read_again(
            usual in proptest::option::of(8_000_000..10_000_000_000_u64),
            windows in proptest::collection::vec((0_u16..1440, 1_u16..=1440, 0_u8..7, 0_u8..7, 8_u64..100_000), 0..5),
        ) {
            let mut text = usual.map_or("unlimited".to_owned(), |bits| format!("{bits} bit/s"));
            for (from, to, first, last, mbit) in windows {
                let to = if from == to { (to % 1440) + 1 } else { to };
                let day = |day: u8| ["mon", "tue", "wed", "thu", "fri", "sat", "sun"][usize::from(day)];
                let time = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
                text += &format!("; {}-{} {}-{} {mbit} Mbit/s", day(first), day(last), time(from), time(to));
            }
            let plan: RatePlan = text.parse().unwrap();
            prop_assert_eq!(plan.to_string().parse::<RatePlan>().unwrap(), plan);
        }
    }
}
