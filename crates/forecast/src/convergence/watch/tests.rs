//! A watch over guests and QEMUs in virtual time.

use std::time::Duration;

use proptest::prelude::*;
use skein_units::GIB;

use super::*;
use crate::convergence::throttling::throttle;

const MB: f64 = 1e6;

#[test]
fn the_downtime_is_short_where_that_costs_next_to_nothing() {
    let mut watch = ConvergenceWatch::new(0);
    let mut sample = CopySample {
        at: Duration::ZERO,
        round: 1,
        sent: 0,
        remaining: GIB,
        fits: 80 << 20,
        throttle: 0,
        sampled: None,
        nics: 1,
        limit: None,
    };
    assert_eq!(watch.aim(sample.fits), sample.fits / 16, "as long as nothing is known");
    for (rate, aims) in [(20.0, sample.fits / 16), (190.0, sample.fits)] {
        // The first round takes 5 s, the others a second each, at 200 MB/s.
        let dirtied = |seconds: f64| (rate * MB * seconds) as u64;
        watch = ConvergenceWatch::new(0);
        for tenth in 0..80 {
            sample.at = Duration::from_millis(tenth * 100);
            sample.round = 1 + tenth / 50;
            sample.sent = (200.0 * MB * sample.at.as_secs_f64()) as u64;
            sample.remaining = GIB + dirtied((tenth / 50 * 5) as f64) - sample.sent.min(GIB);
            watch.sample(&sample);
        }
        assert_eq!((watch.aim(sample.fits), watch.is_hopeless()), (aims, false), "{rate}");
    }
}

#[test]
fn a_guest_that_is_not_throttled_though_it_may_be_is_given_up() {
    let mut watch = ConvergenceWatch::new(90);
    let mut said = Vec::new();
    for tenth in 0..400u64 {
        let at = Duration::from_millis(tenth * 100);
        let sent = (200.0 * MB * at.as_secs_f64()) as u64;
        let round = 1 + tenth / 20;
        // Each round of two seconds leaves as much again.
        let remaining = round * (400.0 * MB) as u64 - sent;
        let sample =
            CopySample { at, round, sent, remaining, fits: 50 << 20, throttle: 0, sampled: None, nics: 2, limit: None };
        said.extend(Some(watch.sample(&sample).1).filter(|help| *help != ConvergenceStep::None));
    }
    assert!(matches!(said[..], [ConvergenceStep::Throttle(..), ConvergenceStep::GiveUp(..), ..]), "{said:?}");
}

#[test]
fn a_link_that_is_lost_is_no_reason_to_give_up() {
    let mut watch = ConvergenceWatch::new(0);
    for tenth in 0..200u64 {
        let at = Duration::from_millis(tenth * 100);
        // Four rounds of a second leave the same, and then nothing moves.
        let moved = at.as_secs_f64().min(4.5);
        let (round, sent) = (1 + moved as u64, (200.0 * MB * moved) as u64);
        let remaining = round * (200.0 * MB) as u64 - sent;
        let sample =
            CopySample { at, round, sent, remaining, fits: 50 << 20, throttle: 0, sampled: None, nics: 2, limit: None };
        assert_eq!(watch.sample(&sample).1, ConvergenceStep::None, "{at:?}");
    }
}

#[test]
fn an_outage_is_not_in_the_figures_after_it() {
    let mut watch = ConvergenceWatch::new(99);
    let mut said = Vec::new();
    for tenth in 0..300u64 {
        let at = Duration::from_millis(tenth * 100);
        // Rounds of a second at 200 MB/s leave 150 MB each. From 10 s on nothing moves for ten.
        let moved = if tenth < 100 { tenth } else { tenth.saturating_sub(200) + 100 } as f64 / 10.0;
        let (round, sent) = (1 + (moved / 0.75) as u64, (200.0 * MB * moved) as u64);
        let remaining = round * (150.0 * MB) as u64 - sent.min(round * (150.0 * MB) as u64);
        let sample =
            CopySample { at, round, sent, remaining, fits: 5 << 20, throttle: 0, sampled: None, nics: 2, limit: None };
        let (convergence, _) = watch.sample(&sample);
        if tenth > 220 {
            said.extend(convergence);
        }
    }
    assert!(!said.is_empty());
    for convergence in said {
        let Convergence::Never(pace) = convergence else { continue };
        assert!((150_000_000..300_000_000).contains(&pace.dirties_bytes_per_s), "{pace}");
        assert!((150_000_000..300_000_000).contains(&pace.moves_bytes_per_s), "{pace}");
    }
}

/// Tests a copy at 10 Mb/s, whose QEMU hands over 4 MiB every 3.4 s.
#[test]
fn a_copy_in_bursts_is_foretold_as_its_limit_says() {
    const LIMIT: u64 = 1_250_000;
    const BURST: u64 = 4 << 20;
    for limit in [None, Some(LIMIT)] {
        let mut watch = ConvergenceWatch::new(0);
        for tenth in 0..1000u64 {
            let sent = tenth * LIMIT / 10 / BURST * BURST;
            let sample = CopySample {
                at: Duration::from_millis(tenth * 100),
                round: 1,
                sent,
                remaining: 300_000_000 - sent,
                fits: 50_000,
                throttle: 0,
                sampled: None,
                nics: 1,
                limit,
            };
            let seconds = match watch.sample(&sample).0 {
                Some(Convergence::FirstRound { seconds }) => seconds,
                None => continue,
                other => panic!("{other:?}"),
            };
            // With the limit from the first moment, else once some bursts were seen.
            let is = sample.remaining as f64 / LIMIT as f64;
            if limit.is_some() || tenth > 200 {
                assert!((is / 1.6..is * 1.6).contains(&seconds), "{limit:?} {tenth}: {seconds} {is}");
            }
        }
    }
}

#[test]
fn a_pause_of_qemu_is_no_slow_link() {
    let mut watch = ConvergenceWatch::new(0);
    let mut sample = CopySample {
        at: Duration::ZERO,
        round: 1,
        sent: 0,
        remaining: GIB,
        fits: 0,
        throttle: 0,
        sampled: None,
        nics: 2,
        limit: None,
    };
    for tenth in 0..100u64 {
        // Seven seconds pass after each second at 200 MB/s.
        sample.at = Duration::from_millis(tenth * 100 + tenth / 10 * 7000);
        sample.sent = tenth * 20_000_000;
        watch.sample(&sample);
        let moves = watch.moves().unwrap_or(200.0 * MB);
        assert!((150.0..=250.0).contains(&(moves / MB)), "{moves}");
    }
}

#[test]
fn a_guest_that_should_converge_and_does_not_is_given_up_late() {
    let mut watch = ConvergenceWatch::new(0);
    let given_up = (0..1000u64).find_map(|tenth| {
        // Rounds of half a second move 50 MB/s. After each round QEMU answers nobody for two seconds.
        let (round, part) = (tenth / 5, tenth % 5);
        let at = Duration::from_millis(tenth * 100 + round * 2000);
        let sent = round * 25_000_000 + part * 5_000_000;
        let remaining = (round + 1) * 25_000_000 - sent;
        match watch.sample(&CopySample {
            at,
            round: 1 + round,
            sent,
            remaining,
            fits: 1 << 20,
            throttle: 0,
            sampled: None,
            nics: 2,
            limit: None,
        }) {
            (_, ConvergenceStep::GiveUp(_, lack)) => Some((tenth / 10, lack)),
            (convergence, _) => {
                assert!(!matches!(convergence, Some(Convergence::Never(_))), "{convergence:?}");
                None
            }
        }
    });
    let (after, lack) = given_up.expect("is given up");
    assert!((15..30).contains(&after), "{after}");
    assert_eq!(lack, ConvergenceNeeds { nics: None, throttle: None, throttle_without_effect: None });
}

/// A guest and its QEMU: rounds, and the throttle as `migration_trigger_throttle` sets it, at the end of every other
/// round that is a second after the last.
#[derive(Debug, Clone)]
struct Guest {
    ram: f64,
    writes: WriteModel,
    moves: f64,
    fits: f64,
    /// Whether what the guest dirties in a second is sampled.
    is_sampled: bool,
    /// Whether QEMU says that it throttles the guest, and does not.
    is_numb: bool,
}

/// How a guest's copy ended.
struct End {
    seconds: f64,
    given_up: Option<ConvergenceNeeds>,
    throttle: u8,
    /// What was said, and when.
    said: Vec<(f64, u64, Convergence)>,
}

impl Guest {
    /// Copies the guest. `None`: the copy went on for ever.
    fn copied(&self, allowed: u8) -> Option<End> {
        const STEP_S: f64 = 0.01;
        let mut watch = ConvergenceWatch::new(allowed);
        let (mut at, mut sent, mut remaining, mut round, mut lived) = (0.0, 0.0, self.ram, 1, 0.0);
        let (mut throttle, mut wanted, mut synced, mut high, mut throttled_at) = (0, 0, 0.0, false, 0.0);
        let mut waited = 0.0;
        let mut said = Vec::new();
        for step in 0..400_000 {
            let bytes = (self.moves * STEP_S).min(remaining);
            (at, sent, remaining) = (at + STEP_S, sent + bytes, remaining - bytes);
            let slowed = if self.is_numb { 0 } else { throttle };
            lived += STEP_S * running_share(slowed);
            // QEMU waits for a virtual CPU that sleeps (`CPU_THROTTLE_TIMESLICE_NS`).
            let sleeps = 0.01 * f64::from(slowed) / 100.0 / running_share(slowed);
            if remaining <= 0.0 && waited + STEP_S <= sleeps {
                waited += STEP_S;
            } else if remaining <= 0.0 {
                waited = 0.0;
                (remaining, round, lived) = (self.writes.dirtied(lived), round + 1, 0.0);
                if remaining <= self.fits {
                    return Some(End { seconds: at + remaining / self.moves, given_up: None, throttle, said });
                }
                if at - synced >= 1.0 {
                    (synced, high) = (at, !high);
                    if !high && throttle != wanted {
                        (throttle, throttled_at) = (wanted, at);
                    }
                }
            }
            if step % 10 == 0 {
                // The sample is a tenth more or less.
                let seen = self.writes.throttled(slowed).dirtied(1.0) * (1.0 + 0.1 * at.sin());
                let sampled = (self.is_sampled && at - throttled_at >= 1.0).then_some(seen as u64);
                let sample = CopySample {
                    at: Duration::from_secs_f64(at),
                    round,
                    sent: sent as u64,
                    remaining: remaining as u64,
                    fits: self.fits as u64,
                    throttle,
                    sampled,
                    nics: 2,
                    limit: None,
                };
                let (convergence, help) = watch.sample(&sample);
                said.extend(convergence.map(|convergence| (at, round, convergence)));
                match help {
                    ConvergenceStep::None => {}
                    ConvergenceStep::Throttle(percent, _) => {
                        assert!(percent > wanted && percent <= allowed, "{percent} {wanted}");
                        wanted = percent;
                    }
                    ConvergenceStep::GiveUp(_, lack) => {
                        assert_eq!(throttle, allowed, "not all was tried");
                        return Some(End { seconds: at, given_up: Some(lack), throttle, said });
                    }
                }
            }
        }
        None
    }
}

/// Makes a guest. `hot` is a part of the RAM, `writes` is relative to what is moved.
fn guest(ram: u64, hot: f64, moves: f64, writes: f64) -> Guest {
    let ram = ram as f64;
    let rate = writes * moves;
    let writes = WriteModel { rate, turns: rate / (ram * hot) };
    Guest { ram, writes, moves, fits: moves * 0.25, is_sampled: false, is_numb: false }
}

fn guests(writes: std::ops::Range<f64>) -> impl Strategy<Value = Guest> {
    (GIB..16 * GIB, 0.1f64..0.7, 100.0f64..1200.0, writes, any::<bool>())
        .prop_map(|(ram, hot, moves, writes, is_sampled)| Guest { is_sampled, ..guest(ram, hot, moves * MB, writes) })
}

/// A guest that writes 60,000 pages a second, over two links of 1 Gb/s.
#[test]
fn a_guest_that_is_a_little_too_hot() {
    let guest = Guest { fits: 50.0 * MB, ..guest(2_000_000_000, 0.3, 230.0 * MB, 1.07) };
    let end = guest.copied(0).unwrap();
    let lack = end.given_up.expect("is given up");
    assert!(lack.nics == Some(1) && matches!(lack.throttle, Some(60)), "{lack}");
    assert!((10.0..35.0).contains(&end.seconds), "{}", end.seconds);
    let end = guest.copied(99).unwrap();
    assert!(end.given_up.is_none() && end.throttle <= 60 && end.seconds < 25.0, "{} {}", end.throttle, end.seconds);
}

/// A guest that writes as much however much it is throttled: its life is slower, the user's is not.
#[test]
fn what_does_not_help_is_given_up_in_time() {
    for allowed in [50, 95, 99] {
        let mut watch = ConvergenceWatch::new(allowed);
        let (mut throttle, mut asked, mut wanted) = (0, 0, 0);
        let given_up = (0..2000u64).find(|tenth| {
            // Each round takes a second, and sends for a tenth of it.
            let (round, part) = (tenth / 10, tenth % 10);
            if wanted > throttle && tenth - asked > 20 {
                throttle = wanted;
            }
            let sent = round * 3_000_000 + if part > 0 { 3_000_000 } else { 0 };
            let sample = CopySample {
                at: Duration::from_millis(tenth * 100),
                round: 1 + round,
                sent,
                remaining: (round + 1) * 3_000_000 - sent,
                fits: 700_000,
                throttle,
                sampled: None,
                nics: 2,
                limit: None,
            };
            match watch.sample(&sample).1 {
                ConvergenceStep::None => false,
                ConvergenceStep::Throttle(percent, _) => {
                    (wanted, asked) = (percent, *tenth);
                    false
                }
                ConvergenceStep::GiveUp(..) => true,
            }
        });
        // The time counts since all that is allowed was asked for.
        let seconds = (given_up.expect("is given up") - asked) / 10;
        assert!(throttle == allowed && (10..30).contains(&seconds), "{allowed}: {seconds} s, {throttle} %");
    }
}

#[test]
fn a_throttle_without_effect_counts() {
    let guest = Guest { is_sampled: true, is_numb: true, ..guest(2_000_000_000, 0.3, 100.0 * MB, 2.0) };
    let numb = |allowed| guest.copied(allowed).unwrap().given_up.expect("is given up").throttle_without_effect;
    assert_eq!((numb(0), numb(60), numb(99)), (None, None, Some(99)));
    assert!(Guest { is_numb: false, ..guest }.copied(99).unwrap().given_up.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_converges_is_let_alone_and_foretold(guest in guests(0.0..0.9)) {
        let end = guest.copied(99).unwrap();
        prop_assert!(end.given_up.is_none() && end.throttle == 0, "{:?}", end.throttle);
        // One round tells less of how the guest writes than two. There is one round more or less where the last round
        // just fits.
        let told = end.said.iter().filter_map(|(at, round, said)| match said {
            // Where a guest writes nearly as fast as it is moved, a little more or less makes many rounds.
            Convergence::In { seconds }
                if *round > 3 && guest.writes.rate < DIRTY_SHARE_CONVERGING * guest.moves =>
            {
                Some((end.seconds - at, *seconds))
            }
            _ => None,
        });
        for (is, said) in told {
            prop_assert!((is - said).abs() < 0.5 * is + 1.5, "{} {}", is, said);
        }
    }

    #[test]
    fn a_guest_that_may_be_throttled_is_moved(guest in guests(1.2..3.5)) {
        let end = guest.copied(99).unwrap();
        prop_assert!(end.given_up.is_none());
        let hurried = throttle(guest.writes.rate, guest.moves, 99).unwrap();
        prop_assert!(end.throttle <= hurried + 20, "{} of {}", end.throttle, hurried);
    }

    #[test]
    fn what_is_said_to_be_enough_is(guest in guests(1.2..1.5), allowed in 0u8..20) {
        let is_small = guest.copied(0).is_some_and(|end| end.given_up.is_none());
        prop_assume!(!is_small);
        let Some(lack) = guest.copied(allowed).expect("is not copied for ever").given_up else { return Ok(()) };
        prop_assert!(guest.copied(lack.throttle.unwrap()).unwrap().given_up.is_none(), "{}", lack);
        let moves = guest.moves * f64::from(2 + lack.nics.unwrap()) / 2.0;
        let end = Guest { moves, fits: moves * 0.25, ..guest }.copied(allowed).unwrap();
        prop_assert!(end.given_up.is_none(), "{}", lack);
    }

    #[test]
    fn no_number_is_too_odd(
        samples in prop::collection::vec((0u64..1 << 40, any::<[u64; 4]>(), any::<(u8, u32, Option<u64>)>()), 1..40),
        allowed: u8,
    ) {
        let mut watch = ConvergenceWatch::new(allowed);
        for (at, [round, sent, remaining, fits], (throttle, nics, sampled)) in samples {
            let at = Duration::from_millis(at);
            let sample = CopySample { at, round, sent, remaining, fits, throttle, sampled, nics, limit: None };
            let (convergence, _) = watch.sample(&sample);
            if let Some(Convergence::FirstRound { seconds } | Convergence::In { seconds }) = convergence {
                prop_assert!(seconds.is_finite() && seconds >= 0.0);
            }
        }
    }
}
