//! A part of a figure: a number that was measured, its bound, and both in words.

use skein_units::measured;

use crate::{mover::Mover, results::Part};

pub(super) fn labels(movers: &[Mover]) -> String {
    movers.iter().map(|mover| mover.label()).collect::<Vec<_>>().join(", ")
}

/// A measured number with its words, or why there is none.
pub(crate) type Measured = Result<(f64, String), String>;

pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

pub(super) use self::Limit::{AtLeast, AtMost};

pub(crate) fn part(figure: String, limit: Limit, measured: Measured) -> Part {
    let (AtLeast(bound) | AtMost(bound)) = limit;
    let (value, measured) = match measured {
        Ok((value, words)) => (Some(value), words),
        Err(why) => (None, why),
    };
    let met = value.map(|value| match limit {
        AtLeast(bound) => value >= bound,
        AtMost(bound) => value <= bound,
    });
    // JSON has no infinity: 'never' is only in the words, and not a number.
    Part { figure, measured, value: value.filter(|v| v.is_finite()), limit: bound, met }
}

/// Returns the largest number of all rounds, with its words.
pub(crate) fn most<T>(rounds: &[T], of: impl Fn(&T) -> (f64, String)) -> Measured {
    rounds.iter().map(of).max_by(|a, b| a.0.total_cmp(&b.0)).ok_or_else(nothing)
}

/// Returns the smallest number of all rounds, with its words.
pub(crate) fn least<T>(rounds: &[T], of: impl Fn(&T) -> (f64, String)) -> Measured {
    rounds.iter().map(of).min_by(|a, b| a.0.total_cmp(&b.0)).ok_or_else(nothing)
}

fn nothing() -> String {
    "nothing was measured".into()
}

pub(super) fn figure(stage: &str, words: String) -> String {
    if stage.is_empty() { words } else { format!("{stage}: {words}") }
}

pub(super) fn ratio(own: Result<f64, String>, reference: Result<f64, String>, unit: fn(f64) -> String) -> Measured {
    let (own, reference) = (own?, reference?);
    Ok((own / reference, format!("{} ({} of {})", measured::percent(own / reference), unit(own), unit(reference))))
}

pub(super) fn times(own: Result<f64, String>, reference: Result<f64, String>, unit: fn(f64) -> String) -> Measured {
    let (own, reference) = (own?, reference?);
    Ok((own / reference, format!("{:.3} x ({} against {})", own / reference, unit(own), unit(reference))))
}
