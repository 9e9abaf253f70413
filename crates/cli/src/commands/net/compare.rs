//! Compares what was measured of the way to a host before and after a change. Pure.

use serde::Serialize;
use skein_api::{MeasuredRate, Probe, ProbedPath, UsedCpu};
use skein_units::measured::{bps, digits, millis};

/// Rates differ if they do by more than this share, whatever they seem to vary by.
const RATE_SHARE: f64 = 0.05;
/// Round trips differ if they do by more than this share …
const TIME_SHARE: f64 = 0.25;
/// … and by more microseconds than this.
const TIME_US: u64 = 50;
/// CPU times differ if they do by more than this share: other programs disturb the caches.
const CPU_SHARE: f64 = 0.15;
/// The parts of a million by which segments that go again differ.
const REPEATED_PPM: u64 = 10_000;

/// A number before and after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Difference {
    /// What the number is of: `eth0 > eth1: alone out`.
    pub(super) of: String,
    /// What it was, in words.
    pub(super) before: String,
    /// What it is now, in words.
    pub(super) after: String,
    /// By how much it changed, in per cent, if that can be said.
    pub(super) percent: Option<f64>,
    /// Whether that is more than such measurements differ by.
    pub(super) is_beyond_noise: bool,
}

impl Difference {
    pub(super) fn words(&self) -> String {
        // Adding zero makes +0 of -0.
        let percent = self.percent.map(|percent| format!(" ({:+.0} %)", percent.round() + 0.0)).unwrap_or_default();
        let noise = if self.is_beyond_noise { "" } else { ", within noise" };
        format!("{}: {} before, {} now{percent}{noise}", self.of, self.before, self.after)
    }
}

/// Returns all that differs, path by path, and of all paths together.
pub(super) fn compare(before: &Probe, after: &Probe) -> Vec<Difference> {
    // Rates of busy cores say nothing of a change.
    let are_rates_told = before.tells_rates() && after.tells_rates();
    let name = |path: &ProbedPath| format!("{} > {} {}", path.local.nic, path.remote.nic, path.remote.address);
    let mut differences = Vec::new();
    for path in &after.paths {
        match before.paths.iter().find(|old| name(old) == name(path)) {
            Some(old) => differences.extend(of_path(&name(path), old, path, are_rates_told)),
            None => differences.push(changed(&name(path), "no path", "a path")),
        }
    }
    let gone = before.paths.iter().filter(|old| !after.paths.iter().any(|path| name(path) == name(old)));
    differences.extend(gone.map(|old| changed(&name(old), "a path", "no path")));
    if let (Some(old), Some(new), true) = (before.together, after.together, are_rates_told) {
        differences.extend(of_rate("all paths: out", Some(old.out), Some(new.out)));
        differences.extend(of_rate("all paths: back", Some(old.back), Some(new.back)));
        let (from, to) = (&after.from, &after.to);
        for (what, old, new) in [
            (format!("{from}: CPU per GB sent"), old.sends, new.sends),
            (format!("{from}: CPU per GB received"), old.receives, new.receives),
            (format!("{to}: CPU per GB sent"), old.other_sends, new.other_sends),
            (format!("{to}: CPU per GB received"), old.other_receives, new.other_receives),
        ] {
            differences.extend(of_cpu(&what, old, new));
        }
    }
    differences
}

fn changed(of: &str, before: impl Into<String>, after: impl Into<String>) -> Difference {
    let (before, after) = (before.into(), after.into());
    Difference { of: of.to_owned(), before, after, percent: None, is_beyond_noise: true }
}

fn of_path(name: &str, old: &ProbedPath, new: &ProbedPath, are_rates_told: bool) -> Vec<Difference> {
    let mut differences = Vec::new();
    let bytes = |bytes: Option<u32>| bytes.map_or("not known".into(), |bytes| format!("{bytes} bytes"));
    if old.passes_bytes != new.passes_bytes {
        differences.push(changed(&format!("{name}: packets"), bytes(old.passes_bytes), bytes(new.passes_bytes)));
    }
    let rates = [
        ("alone out", old.out, new.out),
        ("alone back", old.back, new.back),
        ("both ways out", old.duplex_out, new.duplex_out),
        ("both ways back", old.duplex_back, new.duplex_back),
    ];
    for (what, old, new) in rates.into_iter().filter(|_| are_rates_told) {
        differences.extend(of_rate(&format!("{name}: {what}"), old, new));
    }
    if let (Some(old), Some(new)) = (old.round_trip, new.round_trip)
        && old.median_us != new.median_us
    {
        let ms = |us: u64| millis(us as f64 / 1e3);
        let by = old.median_us.abs_diff(new.median_us);
        differences.push(Difference {
            of: format!("{name}: round trip"),
            before: ms(old.median_us),
            after: ms(new.median_us),
            percent: percent(old.median_us, new.median_us),
            is_beyond_noise: by > TIME_US && by as f64 > TIME_SHARE * old.median_us.min(new.median_us) as f64,
        });
    }
    for (what, old, new) in [
        ("sent again out", old.repeated_out_ppm, new.repeated_out_ppm),
        ("sent again back", old.repeated_back_ppm, new.repeated_back_ppm),
    ] {
        if let (Some(old), Some(new)) = (old, new)
            && old.abs_diff(new) > REPEATED_PPM
        {
            let share = |ppm: u64| skein_units::measured::percent(ppm as f64 / 1e6);
            differences.push(changed(&format!("{name}: {what}"), share(old), share(new)));
        }
    }
    differences
}

fn of_rate(of: &str, old: Option<MeasuredRate>, new: Option<MeasuredRate>) -> Option<Difference> {
    let (old, new) = old.zip(new)?;
    let by = old.bits_per_s.abs_diff(new.bits_per_s);
    let noise = (old.spread_bits_per_s + new.spread_bits_per_s) / 2;
    let least = old.bits_per_s.min(new.bits_per_s) as f64 * RATE_SHARE;
    (by > 0).then(|| Difference {
        of: of.to_owned(),
        before: bps(old.bits_per_s as f64),
        after: bps(new.bits_per_s as f64),
        percent: percent(old.bits_per_s, new.bits_per_s),
        is_beyond_noise: old.is_sure() && new.is_sure() && by > noise && by as f64 > least,
    })
}

fn of_cpu(of: &str, old: UsedCpu, new: UsedCpu) -> Option<Difference> {
    let by = old.ms_per_gb.abs_diff(new.ms_per_gb);
    let seconds = |ms: u64| format!("{} s", digits(ms as f64 / 1e3));
    (by > 0).then(|| Difference {
        of: of.to_owned(),
        before: seconds(old.ms_per_gb),
        after: seconds(new.ms_per_gb),
        percent: percent(old.ms_per_gb, new.ms_per_gb),
        is_beyond_noise: by as f64 > CPU_SHARE * old.ms_per_gb.min(new.ms_per_gb) as f64,
    })
}

fn percent(old: u64, new: u64) -> Option<f64> {
    (old > 0).then(|| (new as f64 / old as f64 - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use skein_api::{ProbedEnd, RoundTrip, Together};

    use super::*;

    fn rate(mbit: u64, spread: u64) -> MeasuredRate {
        MeasuredRate { bits_per_s: mbit * 1_000_000, spread_bits_per_s: spread * 1_000_000 }
    }

    fn probe(mbit: u64, spread: u64) -> Probe {
        let end = |nic: &str| ProbedEnd { nic: nic.into(), address: "10.0.0.2".into(), ..ProbedEnd::default() };
        let path = ProbedPath {
            local: end("eth0"),
            remote: end("eth1"),
            round_trip: Some(RoundTrip { least_us: 90, median_us: 100 }),
            passes_bytes: Some(1500),
            out: Some(rate(mbit, spread)),
            repeated_out_ppm: Some(100),
            ..ProbedPath::default()
        };
        let cpu = UsedCpu { ms_per_gb: 400, host_percent: 50, agent_percent: 50 };
        let all = rate(mbit, spread);
        let together =
            Together { out: all, back: all, sends: cpu, other_receives: cpu, receives: cpu, other_sends: cpu };
        Probe { paths: vec![path], together: Some(together), ..Probe::default() }
    }

    fn beyond(before: &Probe, after: &Probe) -> Vec<String> {
        let all = compare(before, after);
        all.into_iter().filter(|found| found.is_beyond_noise).map(|found| found.words()).collect()
    }

    #[test]
    fn noise_is_no_difference() {
        assert_eq!(compare(&probe(940, 5), &probe(940, 5)), []);
        let close = compare(&probe(940, 5), &probe(960, 5));
        assert_eq!(
            close[0].words(),
            "eth0 > eth1 10.0.0.2: alone out: 940 Mb/s before, 960 Mb/s now (+2 %), within noise"
        );
        assert_eq!(beyond(&probe(940, 5), &probe(960, 5)), Vec::<String>::new());
        assert_eq!(beyond(&probe(940, 300), &probe(1100, 300)), Vec::<String>::new(), "it varies by more");
    }

    #[test]
    fn what_is_unsure_is_no_difference() {
        assert_eq!(beyond(&probe(100, 100), &probe(940, 5)), Vec::<String>::new());
        assert_eq!(beyond(&probe(940, 5), &probe(100, 100)), Vec::<String>::new());
        let busy = Probe { busy_hosts: vec!["hostb".into()], ..probe(100, 5) };
        assert_eq!(compare(&probe(940, 5), &busy), []);
        assert_eq!(compare(&busy, &probe(940, 5)), []);
    }

    #[test]
    fn what_a_change_brought_is_told() {
        let before = probe(500, 5);
        let mut after = probe(990, 5);
        after.paths[0].passes_bytes = Some(9000);
        after.paths[0].round_trip = Some(RoundTrip { least_us: 190, median_us: 200 });
        after.paths[0].repeated_out_ppm = Some(19_000);
        after.together.as_mut().unwrap().sends.ms_per_gb = 200;
        let told = beyond(&before, &after);
        let of = "eth0 > eth1 10.0.0.2";
        assert_eq!(
            told[..4],
            [
                format!("{of}: packets: 1500 bytes before, 9000 bytes now"),
                format!("{of}: alone out: 500 Mb/s before, 990 Mb/s now (+98 %)"),
                format!("{of}: round trip: 0.10 ms before, 0.20 ms now (+100 %)"),
                format!("{of}: sent again out: 0.0 % before, 1.9 % now"),
            ]
        );
        assert!(told[6].starts_with(": CPU per GB sent: ") && told[6].ends_with("(-50 %)"), "{}", told[6]);
        let mut other = before.clone();
        other.paths[0].local.nic = "eth5".into();
        let told = beyond(&before, &other);
        assert_eq!(
            told,
            ["eth5 > eth1 10.0.0.2: no path before, a path now", "eth0 > eth1 10.0.0.2: a path before, no path now"]
        );
    }
}
