//! Values at one moment, and their text.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::registry::{Registry, Unit as NamedUnit};

use crate::{Bound, Family, Histogram, Kind, Unit};

/// Bounds the series of a family. A host has tens of NICs, paths and guests that move; a hundred bytes for each series
/// make some 100 KB of the largest family.
pub const SERIES_MAX: usize = 1024;
/// Bounds a label's value, in bytes.
const VALUE_BYTES_MAX: usize = 128;
/// What stands for a value that a label does not list.
const OTHER: &str = "other";

/// Values of families at one moment.
#[derive(Debug, Default)]
pub struct Samples {
    families: BTreeMap<&'static str, Series>,
    left_out: u64,
}

#[derive(Debug)]
struct Series {
    family: &'static Family,
    values: BTreeMap<Vec<String>, Value>,
}

#[derive(Debug)]
enum Value {
    Number(Number),
    Counts(Histogram),
}

/// A value: whole numbers keep all their digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
}

impl From<u64> for Number {
    fn from(value: u64) -> Number {
        Number::Whole(value)
    }
}

impl From<usize> for Number {
    fn from(value: usize) -> Number {
        Number::Whole(value as u64)
    }
}

impl From<u32> for Number {
    fn from(value: u32) -> Number {
        Number::Whole(value.into())
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Number {
        Number::Real(value)
    }
}

impl From<bool> for Number {
    /// 1 for what is so.
    fn from(value: bool) -> Number {
        Number::Whole(value.into())
    }
}

impl Number {
    fn plus(self, other: Number) -> Number {
        match (self, other) {
            (Number::Whole(one), Number::Whole(other)) => Number::Whole(one.saturating_add(other)),
            (one, other) => Number::Real(one.real() + other.real()),
        }
    }

    fn real(self) -> f64 {
        match self {
            Number::Whole(value) => value as f64,
            Number::Real(value) => value,
        }
    }
}

impl Samples {
    /// Sets the value of a series. `labels` are the values of the family's labels, in their order.
    pub fn set(&mut self, family: &'static Family, labels: &[&str], value: impl Into<Number>) {
        let value = Value::Number(value.into());
        if let Some(place) = self.place(family, labels) {
            *place = value;
        }
    }

    /// Sets each series of a family to 0, if all its labels list their values: by a counter that appears with its first
    /// event no growth is seen.
    pub fn begin(&mut self, family: &'static Family) {
        let mut all: Vec<Vec<&'static str>> = vec![Vec::new()];
        for label in family.labels {
            let Bound::OneOf(listed) = label.bound else { return };
            let with = |labels: &Vec<&'static str>| {
                let labels = labels.clone();
                listed.iter().map(move |value| labels.iter().copied().chain([*value]).collect())
            };
            all = all.iter().flat_map(with).collect();
        }
        all.iter().for_each(|labels| self.set(family, labels, 0_u64));
    }

    /// Adds to the value of a series, which is 0 before.
    pub fn add(&mut self, family: &'static Family, labels: &[&str], value: impl Into<Number>) {
        let value = value.into();
        if let Some(Value::Number(place)) = self.place(family, labels) {
            *place = place.plus(value);
        }
    }

    /// Sets the counts of a series.
    pub fn counts(&mut self, family: &'static Family, labels: &[&str], counts: &Histogram) {
        let counts = Value::Counts(counts.clone());
        if let Some(place) = self.place(family, labels) {
            *place = counts;
        }
    }

    /// Returns how many series were left out, as their families had enough.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn place(&mut self, family: &'static Family, labels: &[&str]) -> Option<&mut Value> {
        debug_assert_eq!(labels.len(), family.labels.len(), "{}", family.name);
        let labels = family.labels.iter().zip(labels).map(|(label, value)| match label.bound {
            Bound::OneOf(listed) if !listed.contains(value) => OTHER.to_owned(),
            _ => value[..value.floor_char_boundary(VALUE_BYTES_MAX)].to_owned(),
        });
        let labels: Vec<String> = labels.collect();
        let series = self.families.entry(family.name).or_insert(Series { family, values: BTreeMap::new() });
        if series.values.len() >= SERIES_MAX && !series.values.contains_key(&labels) {
            self.left_out += 1;
            return None;
        }
        Some(series.values.entry(labels).or_insert(Value::Number(Number::Whole(0))))
    }

    /// Returns the text in OpenMetrics' format, version 1.0.0, which ends with `# EOF`.
    pub fn into_text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Held(self)));
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = text::encode(&mut text, &registry);
        text
    }
}

/// What the text is made of.
#[derive(Debug)]
struct Held(Samples);

impl Collector for Held {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Series { family, values } in self.0.families.values() {
            let unit = (family.unit != Unit::Count).then(|| NamedUnit::Other(family.unit.word().to_owned()));
            let kind = family.kind.metric_type();
            let mut metric = encoder.encode_descriptor(family.stem(), family.help, unit.as_ref(), kind)?;
            for (labels, value) in values {
                let names = family.labels.iter().map(|label| label.name);
                let labels: Vec<(&str, &str)> = names.zip(labels.iter().map(String::as_str)).collect();
                match family.kind {
                    Kind::Info => metric.encode_info(&labels)?,
                    kind => encode(metric.encode_family(&labels)?, kind, value)?,
                }
            }
        }
        Ok(())
    }
}

fn encode(mut encoder: MetricEncoder<'_>, kind: Kind, value: &Value) -> Result<(), fmt::Error> {
    match (value, kind) {
        (Value::Counts(histogram), _) => {
            let counts = histogram.counts();
            encoder.encode_histogram::<NoLabelSet>(counts.sum, counts.count, &histogram.buckets(&counts), None)
        }
        (Value::Number(Number::Whole(value)), Kind::Counter) => {
            encoder.encode_counter::<NoLabelSet, _, f64>(value, None)
        }
        (Value::Number(Number::Real(value)), Kind::Counter) => {
            encoder.encode_counter::<NoLabelSet, _, f64>(value, None)
        }
        (Value::Number(Number::Whole(value)), _) => encoder.encode_gauge(value),
        (Value::Number(Number::Real(value)), _) => encoder.encode_gauge(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Label;

    static SENT: Family = Family {
        name: "skein_test_sent_bytes_total",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        help: "Bytes",
        labels: &[
            Label { name: "vm", bound: Bound::Of("guests") },
            Label { name: "kind", bound: Bound::OneOf(&["packed", "stored"]) },
        ],
    };
    static WAIT: Family = Family {
        name: "skein_test_wait_seconds",
        kind: Kind::Histogram(&[0.5, 2.0]),
        unit: Unit::Seconds,
        help: "Waits",
        labels: &[],
    };
    static BUILD: Family = Family {
        name: "skein_test_build_info",
        kind: Kind::Info,
        unit: Unit::Count,
        help: "The build",
        labels: &[Label { name: "version", bound: Bound::Of("versions") }],
    };

    #[test]
    fn values_become_openmetrics() {
        let mut samples = Samples::default();
        samples.add(&SENT, &["a\"b\\\n", "packed"], u64::MAX - 2);
        samples.add(&SENT, &["a\"b\\\n", "packed"], 1_u64);
        samples.set(&SENT, &["web1", "a kind that nobody declared"], 7_u64);
        samples.set(&BUILD, &["0.1.0"], true);
        let waits = Histogram::of(&WAIT);
        [0.25, 1.0, 3.0].iter().for_each(|wait| waits.observe(*wait));
        samples.counts(&WAIT, &[], &waits);
        assert_eq!(
            samples.into_text(),
            "# HELP skein_test_build The build\n# TYPE skein_test_build info\n\
             skein_test_build_info{version=\"0.1.0\"} 1\n\
             # HELP skein_test_sent_bytes Bytes\n# TYPE skein_test_sent_bytes counter\n\
             # UNIT skein_test_sent_bytes bytes\n\
             skein_test_sent_bytes_total{vm=\"a\\\"b\\\\\\n\",kind=\"packed\"} 18446744073709551614\n\
             skein_test_sent_bytes_total{vm=\"web1\",kind=\"other\"} 7\n\
             # HELP skein_test_wait_seconds Waits\n# TYPE skein_test_wait_seconds histogram\n\
             # UNIT skein_test_wait_seconds seconds\n\
             skein_test_wait_seconds_sum 4.25\nskein_test_wait_seconds_count 3\n\
             skein_test_wait_seconds_bucket{le=\"0.5\"} 1\nskein_test_wait_seconds_bucket{le=\"2.0\"} 2\n\
             skein_test_wait_seconds_bucket{le=\"+Inf\"} 3\n# EOF\n"
        );
    }

    #[test]
    fn a_family_begins_with_each_series_that_it_lists() {
        static ENDED: Family = Family {
            name: "skein_test_ended_total",
            kind: Kind::Counter,
            unit: Unit::Count,
            help: "Ends",
            labels: &[
                Label { name: "role", bound: Bound::OneOf(&["source", "target"]) },
                Label { name: "how", bound: Bound::OneOf(&["well", "ill", "never"]) },
            ],
        };
        let mut samples = Samples::default();
        [&ENDED, &SENT].iter().for_each(|family| samples.begin(family));
        samples.set(&ENDED, &["target", "ill"], 3_u64);
        let text = samples.into_text();
        assert_eq!(text.matches("skein_test_ended_total{").count(), 6);
        assert!(text.contains("\nskein_test_ended_total{role=\"source\",how=\"never\"} 0\n"), "{text}");
        assert!(text.contains("\nskein_test_ended_total{role=\"target\",how=\"ill\"} 3\n"), "{text}");
        assert!(!text.contains("skein_test_sent"), "which guests there are it does not list");
    }

    #[test]
    fn what_is_beyond_the_bound_is_left_out_and_counted() {
        let mut samples = Samples::default();
        for number in 0..SERIES_MAX + 5 {
            samples.set(&SENT, &[&format!("vm{number}"), "packed"], 1_u64);
            samples.add(&SENT, &["vm0", "packed"], 1_u64);
        }
        samples.set(&BUILD, &[&"ü".repeat(VALUE_BYTES_MAX)], true);
        assert_eq!(samples.left_out(), 5);
        let text = samples.into_text();
        assert_eq!(text.matches("skein_test_sent_bytes_total{").count(), SERIES_MAX);
        assert!(text.contains(&format!("\"{}\"", "ü".repeat(VALUE_BYTES_MAX / 2))), "cut between characters");
    }
}
