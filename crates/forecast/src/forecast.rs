//! How long a migration by pre-copy takes, and whether it ends.
//!
//! Round 0 sends `V`, the RAM in use, at rate `R`. Each later round sends what the guest dirtied, at rate `D`, during
//! the round before (Clark et al., "Live Migration of Virtual Machines", NSDI 2005, 3.1). So round `i` sends `V·λ^i`,
//! `λ = D/R`. With `λ < 1` the rounds shrink until what is left fits into the downtime limit `L`: QEMU switches over at
//! the first `n` with `V·λ^n <= R·L` (`migration_iteration_run` of its migration/migration.c). All rounds together, the
//! last one with the guest stopped, take
//!
//! ```text
//! T = V/R · (1 - λ^(n+1)) / (1 - λ) = (V - λ·V_n) / (R - D),   V_n = V·λ^n
//! ```
//!
//! as in Liu et al., "Performance and Energy Modeling for Live Migration of Virtual Machines", HPDC 2011. With
//! `λ >= 1` rounds never shrink.
//!
//! The forecast is a bound, and says so. Pages of zeros are not sent. A guest dirties the same pages again within a
//! round, and so dirties less than `D` says. Memory may compress. A transport that takes one path may take a faster
//! path than the slowest. How much that saves is not known before. What the forecast cannot bound: other traffic on the
//! links, CPU that is short, and QEMU throttling a guest.

use std::fmt;
use std::time::Duration;

use skein_inventory::Route;
use skein_units::{about_seconds, decimal};

use crate::convergence::{self, needed};

/// The part of a link's rate that is payload: TCP with timestamps over IPv4 at an MTU of 1500 puts 1448 bytes into 1538
/// on the wire.
const TCP_PAYLOAD_SHARE: f64 = 1448.0 / 1538.0;

/// The inputs that do not depend on the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForecastInputs {
    /// The time from the command to the first page: the target's QEMU starts, sessions connect.
    pub setup: Duration,
    /// The time of device state and the handover, with the guest stopped.
    pub switchover: Duration,
    /// QEMU's `downtime-limit`.
    pub downtime_limit: Duration,
    /// Per cent that the guest may be throttled by.
    pub allow_throttle: u8,
    /// The bits a second that the migration may send. `None`: as many as the paths carry.
    pub rate_limit_bits_per_s: Option<u64>,
}

impl Default for ForecastInputs {
    /// Assumes a QEMU that starts in a second, 50 ms of devices and handover, QEMU's default limit of 300 ms, and no
    /// throttling.
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            setup: ms(1000),
            switchover: ms(50),
            downtime_limit: ms(300),
            allow_throttle: 0,
            rate_limit_bits_per_s: None,
        }
    }
}

/// Whether rounds get shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForecastConvergence {
    /// Rounds get shorter.
    Yes,
    /// Rounds do not get shorter, and the guest would never be switched over.
    No,
    /// How fast the guest dirties its memory is not known, or is faster than the guest is sure to be moved.
    Unknown,
}

/// How long a migration takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// The longest time from the command to the guest running at the target: see the module. If convergence is unknown,
    /// the time is that of each page once, without the rounds to come. `None` if the migration never ends, or may not.
    pub seconds: Option<f64>,
    /// How long the guest stands still. `None`: not known.
    pub downtime_ms_estimate: Option<f64>,
    /// Whether the migration ends.
    pub converges: ForecastConvergence,
    /// The forecast in words: `at most about 12 s at 1.9 Gb/s on the wire over 2 paths (transport multichannel); less
    /// where its memory is zeros`.
    pub why: String,
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// Returns the bits a second on the wire that come with so many bits of payload a second.
pub fn wire_bits_per_s(payload_bits_per_s: u64) -> u64 {
    (payload_bits_per_s as f64 / TCP_PAYLOAD_SHARE) as u64
}

/// Returns what the paths that a transport takes carry together, in bits a second.
fn wire_rate(rates: impl Iterator<Item = f64>, transport: Route) -> f64 {
    match transport.uses_all_nics() {
        true => rates.sum(),
        // Which path it will be is not known.
        false => rates.reduce(f64::min).unwrap_or(0.0),
    }
}

/// Forecasts a migration of a guest that uses `ram_bytes` and dirties `dirty_bytes_per_s` (`None`: not known), over
/// paths that carry `rates_bits_per_s` on the wire, and of which `transport` takes all or one.
pub fn forecast(
    ram_bytes: u64,
    dirty_bytes_per_s: Option<u64>,
    rates_bits_per_s: &[u64],
    transport: Route,
    fixed: ForecastInputs,
) -> Forecast {
    let rates = || rates_bits_per_s.iter().filter(|rate| **rate > 0).map(|rate| *rate as f64);
    let wire = wire_rate(rates(), transport);
    let limit = fixed.rate_limit_bits_per_s.map(|bits| bits as f64).filter(|limit| *limit < wire * TCP_PAYLOAD_SHARE);
    let (volume, rate) = (ram_bytes as f64, limit.unwrap_or(wire * TCP_PAYLOAD_SHARE) / 8.0);
    let (downtime_limit, setup, stop) =
        (fixed.downtime_limit.as_secs_f64(), fixed.setup.as_secs_f64(), fixed.switchover.as_secs_f64());
    let never =
        |why: String| Forecast { seconds: None, downtime_ms_estimate: None, converges: ForecastConvergence::No, why };
    if rate <= 0.0 {
        return never("will not happen: no path carries anything".into());
    }
    let paths = match rates().count() {
        1 => "1 path".to_owned(),
        paths if transport.uses_all_nics() => format!("{paths} paths"),
        paths => format!("the slowest of {paths} paths"),
    };
    let rate_words = match limit {
        Some(limit) => format!("its limit of {}/s", decimal(limit, "b")),
        None => format!("{}/s on the wire", decimal(wire, "b")),
    };
    let over = format!("at {rate_words} over {paths} (transport {transport})");
    let less = match transport.compresses() {
        true => "less where its memory is zeros or compresses",
        false => "less where its memory is zeros",
    };

    // What fits into the downtime limit at once is sent in one go, however fast it is dirtied.
    let dirty = if volume <= rate * downtime_limit { Some(0.0) } else { dirty_bytes_per_s.map(|rate| rate as f64) };
    let Some(dirty) = dirty else {
        let seconds = setup + volume / rate + stop;
        let why =
            format!("about {} {over} for each page once; more as the guest writes, {less}", about_seconds(seconds));
        return Forecast {
            seconds: Some(seconds),
            downtime_ms_estimate: None,
            converges: ForecastConvergence::Unknown,
            why,
        };
    };
    let throttle = needed(dirty, rate).filter(|_| dirty >= rate);
    let allowed = throttle.and_then(|_| convergence::throttle(dirty, rate, fixed.allow_throttle));
    let dirty = dirty * (1.0 - f64::from(allowed.unwrap_or(0)) / 100.0);
    if dirty >= rate {
        let (dirties, moves) = (decimal(dirty, "B"), decimal(rate, "B"));
        let throttle = convergence::advised(dirty, rate)
            .map(|percent| format!("; needs --allow-throttle {percent}"))
            .unwrap_or_default();
        let figures = format!("converge: dirties {dirties}/s, moves {moves}/s {over}{throttle}");
        let more = match transport {
            _ if transport.compresses() => "more where its memory compresses",
            _ if !transport.uses_all_nics() && rates().count() > 1 => "more over a faster one",
            _ => return never(format!("will not {figures}")),
        };
        return Forecast { converges: ForecastConvergence::Unknown, ..never(format!("may not {figures}; {more}")) };
    }
    let ratio = dirty / rate;
    let last = match volume / (rate * downtime_limit) {
        enough if enough <= 1.0 => volume,
        // Nothing is dirtied, so nothing is left after round 0.
        _ if ratio == 0.0 => 0.0,
        excess => volume * ratio.powf((excess.ln() / -ratio.ln()).ceil()),
    };
    let seconds = setup + (volume - ratio * last) / (rate - dirty) + stop;
    let throttled = allowed.map(|percent| format!(", the guest throttled by about {percent} %")).unwrap_or_default();
    let why = format!("at most about {} {over}{throttled}; {less}", about_seconds(seconds));
    let downtime_ms = (last / rate + stop) * 1000.0;
    Forecast {
        seconds: Some(seconds),
        downtime_ms_estimate: Some(downtime_ms),
        converges: ForecastConvergence::Yes,
        why,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use skein_units::GIB;

    const GBIT: u64 = 1_000_000_000;

    #[test]
    fn forecasts_are_in_words() {
        let two = &[GBIT, 900_000_000][..];
        for (ram, dirty, rates, transport, expect) in [
            (
                2_600_000_000,
                Some(0),
                two,
                Route::AUTO,
                "at most about 13 s at 1.9 Gb/s on the wire over 2 paths (transport auto); less where its memory \
                 is zeros or compresses",
            ),
            (
                2_600_000_000,
                Some(0),
                two,
                Route::MULTICHANNEL,
                "at most about 13 s at 1.9 Gb/s on the wire over 2 paths (transport multichannel); less where its \
                 memory is zeros",
            ),
            (
                2_600_000_000,
                Some(0),
                two,
                Route::TCP,
                "at most about 26 s at 900 Mb/s on the wire over the slowest of 2 paths (transport tcp)",
            ),
            (
                2_600_000_000,
                Some(0),
                &[GBIT, 0],
                Route::COMPRESSION,
                "at most about 23 s at 1 Gb/s on the wire over 1 path (transport c",
            ),
            (
                2_600_000_000,
                None,
                &[GBIT],
                Route::AUTO,
                "about 23 s at 1 Gb/s on the wire over 1 path (transport auto) for each page once; more as the guest \
                 writes, less where",
            ),
            (
                4 * GIB,
                Some(310_000_000),
                &[GBIT, GBIT],
                Route::MULTICHANNEL,
                "will not converge: dirties 310 MB/s, moves 235 MB/s at 2 Gb/s on the wire over 2 paths (transport \
                 multichannel)",
            ),
            (4 * GIB, Some(310_000_000), &[GBIT], Route::TCP, "will not converge: dirties 310 MB/s, moves 118 MB/s"),
            (4 * GIB, Some(310_000_000), two, Route::AUTO, "may not converge: dirties 310 MB/s, moves 224 MB/s"),
            (4 * GIB, Some(310_000_000), two, Route::TCP, "may not converge: dirties 310 MB/s, moves 106 MB/s"),
            (4 * GIB, Some(0), &[], Route::AUTO, "will not happen: no path carries anything"),
            (4 * GIB, Some(0), &[0, 0], Route::TCP, "will not happen"),
            (1 << 20, None, &[GBIT], Route::AUTO, "at most about 1.1 s at 1 Gb/s on the wire over 1 path"),
            (64 << 40, Some(1000), &[GBIT], Route::AUTO, "at most about 6 days at 1 Gb/s on the wire over 1 path"),
            (1 << 40, Some(1000), &[10 * GBIT], Route::AUTO, "at most about 15 min 35 s at 10 Gb/s"),
            (8 << 40, Some(1000), &[10 * GBIT], Route::AUTO, "at most about 2 h 4 min at 10 Gb/s"),
        ] {
            let forecast = forecast(ram, dirty, rates, transport, ForecastInputs::default());
            assert!(forecast.to_string().starts_with(expect), "{forecast} / {expect}");
            assert_eq!(forecast.converges == ForecastConvergence::No, expect.starts_with("will not"), "{forecast}");
        }
    }

    #[test]
    fn a_limit_counts_where_it_is_less_than_the_paths_carry() {
        let words = |limit| {
            let fixed = ForecastInputs { rate_limit_bits_per_s: Some(limit), ..ForecastInputs::default() };
            forecast(2_600_000_000, Some(0), &[GBIT], Route::TCP, fixed).to_string()
        };
        assert!(
            words(GBIT / 10).starts_with("at most about 3 min 29 s at its limit of 100 Mb/s over 1 path"),
            "{}",
            words(GBIT / 10)
        );
        assert!(words(2 * GBIT).starts_with("at most about 23 s at 1 Gb/s on the wire over 1 path"));
    }

    /// Counts the rounds one after the other. Returns the seconds of all rounds, and of the last.
    fn rounds(volume: f64, dirty: f64, rate: f64, limit: f64) -> (f64, f64) {
        let (mut left, mut seconds) = (volume, 0.0);
        while left > rate * limit {
            seconds += left / rate;
            left = dirty * (left / rate);
        }
        (seconds + left / rate, left / rate)
    }

    /// Makes a guest, and paths that are faster than the guest dirties its memory.
    fn moves() -> impl Strategy<Value = (u64, u64, Vec<u64>)> {
        (0u64..1 << 42, 0.0f64..0.98, vec(1_000_000u64..100 * GBIT, 1..5)).prop_map(|(ram, part, rates)| {
            let rate = rates.iter().sum::<u64>() as f64 * TCP_PAYLOAD_SHARE / 8.0;
            (ram, (rate * part) as u64, rates)
        })
    }

    proptest! {
        #[test]
        fn the_formula_is_the_sum_of_the_rounds((ram, dirty, rates) in moves()) {
            let fixed = ForecastInputs::default();
            let forecast = forecast(ram, Some(dirty), &rates, Route::AUTO, fixed);
            let rate = rates.iter().sum::<u64>() as f64 * TCP_PAYLOAD_SHARE / 8.0;
            let (seconds, last) = rounds(ram as f64, dirty as f64, rate, 0.3);
            prop_assert_eq!(forecast.converges, ForecastConvergence::Yes);
            // There is one round more or less where the last round is just about the limit.
            let near = |is: f64, expect: f64, by: f64| (is - expect).abs() <= expect * 1e-6 + by;
            prop_assert!(near(forecast.seconds.unwrap(), seconds + 1.05, 0.31), "{} {}", forecast, seconds);
            let downtime = forecast.downtime_ms_estimate.unwrap();
            let explained = near(downtime, last * 1e3 + 50.0, 0.1)
                || near(downtime / 350.0, 1.0, 1e-6)
                || near(last / 0.3, 1.0, 1e-6);
            prop_assert!(downtime <= 350.001 && explained, "{} {}", downtime, last);
        }

        #[test]
        fn more_to_move_takes_longer((ram, dirty, rates) in moves(), more in 0u64..1 << 40) {
            let seconds = |ram, dirty, rates: &[u64]| {
                let forecast = forecast(ram, Some(dirty), rates, Route::AUTO, ForecastInputs::default());
                forecast.seconds.unwrap_or(f64::INFINITY)
            };
            let now = seconds(ram, dirty, &rates);
            let no_less = |other: f64| other >= now * (1.0 - 1e-9);
            prop_assert!(no_less(seconds(ram + more, dirty, &rates)), "a larger guest");
            prop_assert!(no_less(seconds(ram, dirty.saturating_add(more), &rates)), "a busier guest");
            let mut slower = rates.clone();
            slower[0] -= more % slower[0];
            prop_assert!(no_less(seconds(ram, dirty, &slower)), "a slower path");
            prop_assert!(no_less(seconds(ram, dirty, &rates[1..])), "a path less");
        }

        #[test]
        fn no_number_is_too_odd(
            ram: u64, dirty: Option<u64>, rates in vec(any::<u64>(), 0..5), transport in 0usize..4, ms: u64
        ) {
            let fixed = ForecastInputs { downtime_limit: Duration::from_millis(ms), ..ForecastInputs::default() };
            let forecast = forecast(ram, dirty, &rates, Route::ALL[transport], fixed);
            let is_known = match forecast.converges {
                ForecastConvergence::Yes => forecast.seconds.is_some() && forecast.downtime_ms_estimate.is_some(),
                ForecastConvergence::No => forecast.seconds.is_none(),
                ForecastConvergence::Unknown => forecast.seconds.is_some() == dirty.is_none(),
            };
            prop_assert!(is_known, "{:?}", forecast);
            let seconds_are_possible = forecast.seconds.is_none_or(|seconds| seconds.is_finite() && seconds >= 0.0);
            prop_assert!(seconds_are_possible, "{:?}", forecast);
            prop_assert!(forecast.downtime_ms_estimate.is_none_or(|ms| ms.is_finite() && ms >= 0.0), "{:?}", forecast);
        }
    }
}
