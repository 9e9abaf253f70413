//! Cuts links in mid-migration, and judges how that affected the traffic.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::{case::Fault, chain, goodput, results::FaultSeen, site::Site, watch::Watched};

/// A fault as it was inflicted. Times count from the start of the migration.
#[derive(Clone, Debug, PartialEq)]
pub struct Inflicted {
    /// The fault.
    pub fault: Fault,
    /// The links with the fault.
    pub links: Vec<usize>,
    /// When the fault began, in seconds of the run.
    pub at_s: f64,
    /// When the fault was healed, if not only because all was over.
    pub healed_s: Option<f64>,
}

/// Cuts links once `sent` is large enough, and heals them in time, or when the migration is over. Returns what was
/// done, or `None` if the migration was over before, or a link could not be cut.
pub fn inflict(
    site: &Site,
    fault: Fault,
    start: Instant,
    fill_bytes: u64,
    sent: impl Fn() -> u64,
    over: &AtomicBool,
) -> Option<Inflicted> {
    const STEP: Duration = Duration::from_millis(10);
    let threshold = fill_bytes / 100 * u64::from(fault.after_percent);
    let ended = || over.load(Ordering::Relaxed);
    while sent() < threshold {
        if ended() {
            return None;
        }
        std::thread::sleep(STEP);
    }
    let links: Vec<usize> = if fault.all_links { (0..site.links()).collect() } else { vec![site.links() - 1] };
    let at_s = start.elapsed().as_secs_f64();
    for &link in &links {
        if let Err(error) = site.lose(link, fault.kind) {
            tracing::error!("{}", chain(&error));
            return None;
        }
    }
    let lost = Instant::now();
    while lost.elapsed() < fault.lasts && !ended() {
        std::thread::sleep(STEP);
    }
    let in_time = !ended();
    for &link in &links {
        if let Err(error) = site.heal(link) {
            tracing::error!("{}", chain(&error));
        }
    }
    let healed_s = in_time.then(|| start.elapsed().as_secs_f64());
    Some(Inflicted { fault, links, at_s, healed_s })
}

impl Inflicted {
    /// Judges how the fault affected the target's NICs. `can_carry` is what each link's NIC counts when it is full, in
    /// bits per second; `None` if that is unknown. `last_byte_s` is the end of the transfer.
    pub fn judge(
        &self,
        watched: &Watched,
        target: &str,
        last_byte_s: Option<f64>,
        can_carry: &[Option<f64>],
    ) -> FaultSeen {
        let lost = |link: usize| self.links.contains(&link);
        let end_s = last_byte_s.unwrap_or(self.at_s);
        let rest: Option<f64> = (0..can_carry.len()).filter(|&l| !lost(l)).map(|l| can_carry[l]).sum();
        let below_90_s = rest.filter(|bps| *bps > 0.0).map(|bps| {
            let others = watched.received(target, |link| !lost(link));
            goodput::time_below(&others, 0.9 * bps, self.at_s, self.healed_s.unwrap_or(end_s).min(end_s))
        });
        let used_again_s = self.healed_s.and_then(|healed| {
            let each = self.links.iter().map(|&link| {
                let counter = watched.received(target, |l| l == link);
                goodput::time_until(&counter, 0.5 * can_carry[link]?, healed, end_s)
            });
            each.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)
        });
        FaultSeen {
            kind: self.fault.kind.name().into(),
            links: self.links.clone(),
            at_s: self.at_s,
            healed_s: self.healed_s,
            below_90_s,
            used_again_s,
            went_on_s: self.healed_s.map(|healed| end_s - healed).filter(|s| *s > 0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{case::FaultKind, goodput::Counter, watch::Nic};

    const GIGABIT: Option<f64> = Some(1e9);

    /// Makes 10 s of 1 Gb/s on each of two links, except for silences.
    fn watched(silent: [(f64, f64); 2]) -> Watched {
        let nic = |(from, to): (f64, f64)| {
            let mut rx = Counter::default();
            let mut bytes = 0.0;
            for n in 0..=500 {
                let t = f64::from(n) * 0.02;
                rx.push(t, bytes);
                if !(from..to).contains(&t) {
                    bytes += 0.02 * 1e9 / 8.0;
                }
            }
            Nic { tx: Counter::default(), rx }
        };
        let mut watched = Watched::default();
        watched.nics.insert("b".into(), silent.map(nic).into());
        watched
    }

    fn inflicted(links: &[usize], at_s: f64, healed_s: Option<f64>) -> Inflicted {
        let kind = FaultKind::BlackHole;
        let lasts = Duration::from_secs(3);
        let fault = Fault { kind, all_links: false, after_percent: 20, lasts };
        Inflicted { fault, links: links.to_vec(), at_s, healed_s }
    }

    #[test]
    fn a_dip_of_the_others_and_the_return_of_the_lost() {
        // Link 1 is cut from 2 to 5 s, and used again from 5.7 s on. Link 0 stands still for 0.4 s.
        let watched = watched([(2.0, 2.4), (2.0, 5.7)]);
        let seen = inflicted(&[1], 2.0, Some(5.0)).judge(&watched, "b", Some(10.0), &[GIGABIT, GIGABIT]);
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 0.11;
        assert!(near(seen.below_90_s, 0.4), "{seen:?}");
        assert!(near(seen.used_again_s, 0.75), "{seen:?}");
        assert_eq!((seen.kind.as_str(), seen.went_on_s), ("black-hole", Some(5.0)));
    }

    #[test]
    fn not_used_again_before_the_end() {
        let watched = watched([(0.0, 0.0), (2.0, 10.0)]);
        let seen = inflicted(&[1], 2.0, Some(5.0)).judge(&watched, "b", Some(9.0), &[GIGABIT, GIGABIT]);
        assert_eq!((seen.below_90_s, seen.used_again_s, seen.went_on_s), (Some(0.0), None, Some(4.0)));
        let early = inflicted(&[1], 2.0, None).judge(&watched, "b", Some(4.0), &[GIGABIT, GIGABIT]);
        assert_eq!((early.used_again_s, early.went_on_s), (None, None));
    }

    #[test]
    fn all_links_leave_no_others() {
        let watched = watched([(2.0, 5.2), (2.0, 5.4)]);
        let seen = inflicted(&[0, 1], 2.0, Some(5.0)).judge(&watched, "b", Some(10.0), &[GIGABIT, GIGABIT]);
        assert_eq!(seen.below_90_s, None);
        // The slower of the two to return counts.
        assert!((0.4..0.61).contains(&seen.used_again_s.unwrap()), "{seen:?}");
        let unknown = inflicted(&[1], 2.0, Some(5.0)).judge(&watched, "b", Some(10.0), &[None, None]);
        assert_eq!((unknown.below_90_s, unknown.used_again_s), (None, None));
    }
}
