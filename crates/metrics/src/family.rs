//! What is said of a metric, before there is a value.

use prometheus_client::metrics::MetricType;

/// A metric with all its series: what Prometheus calls a metric family.
#[derive(Debug)]
pub struct Family {
    /// The name as queries have it, with unit and `_total`; of a histogram without `_bucket`, `_sum`, `_count`.
    pub name: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// The unit of its values, which ends the name.
    pub unit: Unit,
    /// What it says, in a sentence without a full stop at its end.
    pub help: &'static str,
    /// The labels, in the order in which [`Samples`](crate::Samples) takes their values.
    pub labels: &'static [Label],
}

/// What the values of a metric are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A total since the program was started, which only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Counts by size: the upper ends of the buckets, rising, without the infinite one.
    Histogram(&'static [f64]),
    /// Always 1: the labels say all.
    Info,
}

/// A base unit, as Prometheus has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things that are counted.
    Count,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
    /// Seconds; a time of day is in seconds since 1970.
    Seconds,
    /// A part of 1.
    Ratio,
}

/// A label, and which values it has.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// The label's name.
    pub name: &'static str,
    /// Which values it has.
    pub bound: Bound,
}

/// Which values a label has.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// These; another value is served as `other`.
    OneOf(&'static [&'static str]),
    /// As many as there are of what the words say, and never more than [`SERIES_MAX`](crate::SERIES_MAX).
    Of(&'static str),
}

impl Kind {
    /// Returns the kind in a word, as OpenMetrics has it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
            Kind::Info => "info",
        }
    }

    pub(crate) fn metric_type(self) -> MetricType {
        match self {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram(_) => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        }
    }

    /// Returns what OpenMetrics adds to the name for each sample.
    fn suffix(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram(_) => "",
        }
    }
}

impl Unit {
    /// Returns the unit as it ends names; empty for what is counted.
    pub fn word(self) -> &'static str {
        match self {
            Unit::Count => "",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "bytes_per_second",
            Unit::Seconds => "seconds",
            Unit::Ratio => "ratio",
        }
    }
}

impl Family {
    /// Returns the name without what its kind and unit add to it: `skein_nic_sent` of `skein_nic_sent_bytes_total`.
    pub(crate) fn stem(&self) -> &'static str {
        let name = self.name.strip_suffix(self.kind.suffix()).unwrap_or(self.name);
        let unit = self.unit.word();
        let stem = name.strip_suffix(unit).filter(|_| !unit.is_empty());
        stem.and_then(|stem| stem.strip_suffix('_')).unwrap_or(name)
    }

    /// Returns the names of its samples: one, or those of a histogram's parts.
    pub fn sample_names(&self) -> Vec<String> {
        match self.kind {
            Kind::Histogram(_) => ["bucket", "sum", "count"].map(|part| format!("{}_{part}", self.name)).into(),
            _ => vec![self.name.to_owned()],
        }
    }
}

/// Declares families and the list of them: `NAME = kind, "name", unit, "help", [labels];`.
macro_rules! families {
    ($(#[$doc:meta])* $list:ident; $($id:ident = $kind:expr, $name:literal, $unit:ident, $help:literal,
        [$($label:expr),*];)*) => {
        $(
            #[doc = $help]
            pub static $id: crate::Family = crate::Family {
                name: $name,
                kind: $kind,
                unit: crate::Unit::$unit,
                help: $help,
                labels: &[$($label),*],
            };
        )*
        $(#[$doc])*
        pub static $list: &[&crate::Family] = &[$(&$id),*];
    };
}
pub(crate) use families;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LISTS: [&[&Family]; 3] = [crate::agent::FAMILIES, crate::controller::FAMILIES, crate::scraping::FAMILIES];

    fn all() -> impl Iterator<Item = &'static Family> {
        LISTS.into_iter().flatten().copied()
    }

    #[test]
    fn names_are_as_prometheus_asks_for() {
        for family in all() {
            let Family { name, kind, unit, help, labels } = family;
            let plain =
                |text: &str| text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_')) && !text.contains("__");
            assert!(name.starts_with("skein_") && plain(name), "{name}");
            assert!(name.ends_with(kind.suffix()), "{name} is a {}", kind.word());
            assert!(*kind == Kind::Counter || !name.ends_with("_total"), "{name}");
            let whole = [family.stem(), unit.word()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
            assert_eq!(whole.join("_") + kind.suffix(), *name, "the unit is in the name");
            assert!(help.ends_with(|last: char| last.is_alphanumeric() || last == ')'), "{name}: {help}");
            assert!(!help.contains(['\n', '\\', '|']), "{name}");
            let names: BTreeSet<&str> = labels.iter().map(|label| label.name).collect();
            assert!(names.len() == labels.len() && names.iter().all(|name| plain(name) && *name != "le"), "{name}");
        }
    }

    #[test]
    fn no_name_is_declared_twice_and_no_family_can_have_too_many_series() {
        let mut names = BTreeSet::new();
        for family in all() {
            assert!(names.insert(family.name), "{} is declared twice", family.name);
            let listed = family.labels.iter().map(|label| match label.bound {
                Bound::OneOf(values) => values.len() + 1,
                Bound::Of(_) => 1,
            });
            assert!(listed.product::<usize>() <= crate::SERIES_MAX, "{}", family.name);
        }
    }

    #[test]
    fn buckets_rise() {
        for family in all() {
            if let Kind::Histogram(buckets) = family.kind {
                assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]) && buckets.len() < 20, "{}", family.name);
            }
        }
    }
}
