//! Decides what is done for a copy to converge: throttling the guest, as far as that is allowed, and calling the
//! migration off. Pure: takes samples, and gives actions for others to carry out.

use std::time::Duration;

use skein_forecast::{Convergence, ConvergenceStep, ConvergenceWatch, CopySample};

/// The share of a limit above which the limit is what holds a copy up.
const LIMIT_USED_SHARE: f64 = 0.8;

/// How far a source may go for a copy to converge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConvergencePolicy {
    /// The percentage by which the guest may be throttled; `None`: not at all.
    pub(super) allow_throttle: Option<u8>,
    /// Whether a person set a deadline: the copy goes on until then.
    pub(super) has_deadline: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ConvergenceAction {
    /// Log this.
    Note(String),
    /// Tell this as the reason for what comes next; empty: there is no reason any more.
    Detail(String),
    /// Throttle the guest by this percentage.
    Throttle(u8),
    /// Call the migration off.
    CallOff,
}

/// What one sample comes to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConvergenceDecision {
    /// Whether the copy converges; `None`: not known.
    pub(super) converges: Option<Convergence>,
    pub(super) verdict: ConvergenceVerdict,
}

/// What is to become of the copy.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ConvergenceVerdict {
    /// The copy goes on. Do this.
    GoOn(Vec<ConvergenceAction>),
    /// With what is allowed the copy does not end, for this reason. Call [`ConvergenceDriver::give_up`], unless the
    /// guest has got to the switchover meanwhile.
    GiveUp(String),
}

/// What is the slowest on the way of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slowest {
    /// The links are full: another link would carry more.
    Links,
    /// A limit of the rate.
    Limit,
    /// Neither: a host is short of CPU.
    Hosts,
}

impl Slowest {
    /// Returns what is the slowest. `limit` is in bytes a second.
    pub(super) fn of(limit: Option<f64>, carried_bits_per_s: impl Fn() -> u64, are_links_full: bool) -> Slowest {
        let is_used = |limit: f64| carried_bits_per_s() as f64 / 8.0 >= limit * LIMIT_USED_SHARE;
        match limit {
            Some(limit) if is_used(limit) => Slowest::Limit,
            _ if are_links_full => Slowest::Links,
            _ => Slowest::Hosts,
        }
    }
}

/// Decides for one copy.
#[derive(Debug)]
pub(super) struct ConvergenceDriver {
    policy: ConvergencePolicy,
    watch: ConvergenceWatch,
    /// Why the copy will not converge, as was told; `None`: it may.
    not_converging_why: Option<String>,
    /// Why the copy was said not to converge, at the last time.
    did_not_converge_why: Option<String>,
    /// Whether the copy converges, as was last seen.
    converges: Option<Convergence>,
    /// The highest percentage by which the guest was throttled, and since when; `None`: the guest is not throttled.
    throttled: Option<(u8, Duration)>,
}

impl ConvergenceDriver {
    pub(super) fn new(policy: ConvergencePolicy) -> ConvergenceDriver {
        ConvergenceDriver {
            policy,
            watch: ConvergenceWatch::new(policy.allow_throttle.unwrap_or(0)),
            not_converging_why: None,
            did_not_converge_why: None,
            converges: None,
            throttled: None,
        }
    }

    pub(super) fn watch(&self) -> &ConvergenceWatch {
        &self.watch
    }

    /// Returns whether nothing more is to be done for the copy: the migration is called off, as the copy does not
    /// converge.
    pub(super) fn has_given_up(&self) -> bool {
        self.not_converging_why.is_some() && !self.policy.has_deadline
    }

    /// Returns whether the guest's writes are to be sampled in this round. They are from the second round on, if the
    /// guest may be throttled or the copy will not converge: nothing else needs them.
    pub(super) fn wants_dirty_rate(&self, round: u64) -> bool {
        round >= 2 && (self.policy.allow_throttle.is_some() || self.watch.is_hopeless())
    }

    /// Decides by a sample.
    pub(super) fn decide(&mut self, sample: &CopySample, slowest: Slowest) -> ConvergenceDecision {
        let (converges, step) = self.watch.sample(sample);
        let verdict = match step {
            ConvergenceStep::None => ConvergenceVerdict::GoOn(self.converges_again()),
            ConvergenceStep::Throttle(percent, rates) => {
                let note = format!("throttles the guest's CPUs by {percent} %: {rates}");
                ConvergenceVerdict::GoOn(vec![ConvergenceAction::Note(note), ConvergenceAction::Throttle(percent)])
            }
            ConvergenceStep::GiveUp(rates, needs) => {
                let short = match slowest {
                    Slowest::Links => "",
                    Slowest::Limit => {
                        "; its rate is limited, by its --rate, a host's or the cluster's: a higher one helps"
                    }
                    Slowest::Hosts => "; the links are not full: this host or the other is short of CPU",
                };
                ConvergenceVerdict::GiveUp(format!("will not converge: {rates}: {needs}{short}"))
            }
        };
        self.converges = converges.or(self.converges);
        ConvergenceDecision { converges, verdict }
    }

    /// Notes that the copy does not converge, for this reason. Returns what is to be done, the first time.
    pub(super) fn give_up(&mut self, why: String) -> Vec<ConvergenceAction> {
        if self.not_converging_why.is_some() {
            return Vec::new();
        }
        self.did_not_converge_why = Some(why.clone());
        self.not_converging_why = Some(why.clone());
        let mut actions = vec![ConvergenceAction::Note(why.clone()), ConvergenceAction::Detail(why)];
        // A person who set a deadline wants the copy to go on until then.
        actions.extend((!self.policy.has_deadline).then_some(ConvergenceAction::CallOff));
        actions
    }

    /// Notes that the copy may converge after all, or has. Takes the told reason back.
    pub(super) fn converges_again(&mut self) -> Vec<ConvergenceAction> {
        let was_told = self.not_converging_why.take().is_some();
        was_told.then(|| ConvergenceAction::Detail(String::new())).into_iter().collect()
    }

    /// Returns why the copy will not converge, as was told.
    pub(super) fn not_converging_why(&self) -> Option<&str> {
        self.not_converging_why.as_deref()
    }

    /// Returns why a copy did not end that is called off before its end, by what was last seen of the copy.
    pub(super) fn why_unfinished(&self) -> Option<String> {
        match self.converges {
            Some(never @ Convergence::Never(_)) => {
                self.did_not_converge_why.clone().or_else(|| Some(never.to_string()))
            }
            _ => None,
        }
    }

    /// Notes by how many per cent the guest is throttled. Returns what throttling cost the guest, once the throttling
    /// is over.
    pub(super) fn note_throttle(&mut self, now: Duration, percent: u8) -> Option<String> {
        match (percent, self.throttled) {
            (0, Some((most, since))) => {
                self.throttled = None;
                let seconds = now.saturating_sub(since).as_secs_f64();
                Some(format!("the guest was throttled by up to {most} % for {seconds:.1} s"))
            }
            (0, None) => None,
            (_, before) => {
                let (most, since) = before.unwrap_or((0, now));
                self.throttled = Some((most.max(percent), since));
                None
            }
        }
    }

    pub(super) fn is_throttled(&self) -> bool {
        self.throttled.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives the copy of a guest that writes as much as is moved, 100 MB/s, in rounds of a second. Stops after `until`
    /// tenths of a second.
    fn driven(policy: ConvergencePolicy, until: u64) -> (ConvergenceDriver, Vec<ConvergenceVerdict>) {
        let mut driver = ConvergenceDriver::new(policy);
        let mut verdicts = Vec::new();
        for tenths in 0..until {
            let sample = CopySample {
                at: Duration::from_millis(tenths * 100),
                round: 1 + tenths / 10,
                sent: tenths * 10_000_000,
                remaining: 100_000_000 - tenths % 10 * 10_000_000,
                fits: 1_000_000,
                throttle: 0,
                sampled: None,
                nics: 1,
                limit: None,
            };
            let decision = driver.decide(&sample, Slowest::Links);
            if decision.verdict != ConvergenceVerdict::GoOn(Vec::new()) {
                verdicts.push(decision.verdict);
            }
        }
        (driver, verdicts)
    }

    const NEVER: ConvergencePolicy = ConvergencePolicy { allow_throttle: None, has_deadline: false };

    #[test]
    fn what_does_not_converge_is_given_up_once_with_what_would_be_enough() {
        let (mut driver, verdicts) = driven(NEVER, 100);
        let ConvergenceVerdict::GiveUp(why) = verdicts[0].clone() else { panic!("{verdicts:?}") };
        let begins = "will not converge: dirties 100 MB/s, moves 100 MB/s: needs 1 more NIC, or --allow-throttle 60";
        assert_eq!(why, begins);
        assert!(driver.wants_dirty_rate(2) && !driver.wants_dirty_rate(1), "of one that will not converge");
        assert!(!driver.has_given_up());
        let expected =
            [ConvergenceAction::Note(why.clone()), ConvergenceAction::Detail(why.clone()), ConvergenceAction::CallOff];
        assert_eq!(driver.give_up(why.clone()), expected);
        assert_eq!((driver.give_up(why.clone()), driver.not_converging_why()), (vec![], Some(&why[..])), "once");
        assert!(driver.has_given_up());
    }

    #[test]
    fn where_it_is_tried_until_a_deadline_it_goes_on_and_may_converge_after_all() {
        let (mut driver, _) = driven(ConvergencePolicy { has_deadline: true, ..NEVER }, 100);
        let actions = driver.give_up("too fast".into());
        assert_eq!(
            actions,
            [ConvergenceAction::Note("too fast".into()), ConvergenceAction::Detail("too fast".into())],
            "it is not called off"
        );
        assert!(!driver.has_given_up());
        assert_eq!(driver.converges_again(), [ConvergenceAction::Detail(String::new())]);
        assert_eq!(driver.converges_again(), [], "once");
        // The reason is known if the migration is called off at its deadline.
        assert_eq!(driver.why_unfinished().as_deref(), Some("too fast"));
    }

    #[test]
    fn a_guest_is_throttled_first_where_that_is_allowed() {
        let (driver, verdicts) = driven(ConvergencePolicy { allow_throttle: Some(80), ..NEVER }, 40);
        let note = "throttles the guest's CPUs by 50 %: dirties 100 MB/s, moves 100 MB/s";
        let expected =
            ConvergenceVerdict::GoOn(vec![ConvergenceAction::Note(note.into()), ConvergenceAction::Throttle(50)]);
        assert_eq!(verdicts, [expected]);
        assert!(driver.wants_dirty_rate(2) && !driver.wants_dirty_rate(1));
    }

    #[test]
    fn links_that_are_not_full_are_said_to_be_so() {
        let (mut driver, _) = driven(NEVER, 80);
        let sample = CopySample {
            at: Duration::from_secs(9),
            round: 10,
            sent: 900_000_000,
            remaining: 100_000_000,
            fits: 1_000_000,
            throttle: 0,
            sampled: None,
            nics: 0,
            limit: None,
        };
        let ConvergenceVerdict::GiveUp(why) = driver.decide(&sample, Slowest::Hosts).verdict else { panic!() };
        assert!(why.ends_with("; the links are not full: this host or the other is short of CPU"), "{why}");
        assert!(!why.contains("NIC"), "{why}");
        assert!(driver.why_unfinished().unwrap().starts_with("will not converge: dirties"));
    }

    #[test]
    fn what_is_the_slowest_is_told() {
        let limit = Some(12_500_000.0);
        assert_eq!(Slowest::of(limit, || 95_000_000, false), Slowest::Limit);
        assert_eq!(Slowest::of(limit, || 50_000_000, true), Slowest::Links);
        assert_eq!(
            (Slowest::of(limit, || 50_000_000, false), Slowest::of(None, || 0, true)),
            (Slowest::Hosts, Slowest::Links)
        );
    }

    #[test]
    fn what_throttling_cost_is_told_when_it_is_over() {
        let (mut driver, _) = driven(NEVER, 0);
        let at = Duration::from_secs;
        assert_eq!(driver.note_throttle(at(1), 0), None);
        assert_eq!((driver.note_throttle(at(2), 30), driver.note_throttle(at(3), 60)), (None, None));
        assert_eq!((driver.note_throttle(at(4), 40), driver.is_throttled()), (None, true));
        let told = driver.note_throttle(at(7), 0).unwrap();
        assert_eq!((&told[..], driver.is_throttled()), ("the guest was throttled by up to 60 % for 5.0 s", false));
    }
}
