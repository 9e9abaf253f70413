//! Leaves each host its part of the rate that all migrations of the cluster together may send with.
//!
//! Hosts from which guests migrate share the rate evenly. Another host may send with all of it, until it is seen that a
//! guest leaves it, too. A host forgets its part after [`HOLDS_S`], so a part that nobody repeats holds nobody back for
//! ever.

use std::collections::BTreeSet;

use skein_api::{Request, Role};
use skein_units::{ClockTime, Rate, RatePlan};

use crate::observed::SessionId;
use crate::state::{CommandPurpose, Controller, ToldLimit};
use crate::time::Now;

/// The seconds for which a host holds its part, unless it is told again.
const HOLDS_S: u64 = 300;
/// The milliseconds after which a host is told its part again.
const REPEAT_MS: u64 = 100_000;

impl Controller {
    /// Tells hosts what has changed of their parts, or has to be repeated.
    pub(crate) fn tick_rate_limits(&mut self, now: Now) {
        let plan = self.tables.settings.value.migration_rate.as_deref().map(str::parse::<RatePlan>);
        let rate = plan.and_then(Result::ok).and_then(|plan| plan.at(now.clock_time()));
        if rate.is_none() && self.limits_told.is_empty() {
            return;
        }
        let senders: BTreeSet<&String> = self.sessions.values().filter(|host| self.is_sender(host)).collect();
        let part = rate.map(|rate| part(rate, senders.len()));
        let sessions: Vec<(SessionId, Option<Rate>)> = self
            .sessions
            .iter()
            .map(|(session, host)| (*session, if senders.contains(host) { part } else { rate }))
            .collect();
        let mut told = std::mem::take(&mut self.limits_told);
        told.retain(|session, _| self.sessions.contains_key(session));
        for (session, limit) in sessions {
            let before = told.get(&session).copied();
            let is_due = match (limit, before) {
                (None, None) => false,
                (Some(rate), Some(told)) => told.rate != rate || now.ms_since(told.at_ms) >= REPEAT_MS,
                _ => true,
            };
            if !is_due {
                continue;
            }
            match limit {
                Some(rate) => drop(told.insert(session, ToldLimit { rate, at_ms: now.mono_ms })),
                None => drop(told.remove(&session)),
            }
            let rate_bits_per_s = limit.map(Rate::bits_per_s);
            self.send(session, CommandPurpose::Limit, None, Request::HostLimit { rate_bits_per_s, for_s: HOLDS_S });
        }
        self.limits_told = told;
    }

    /// Returns whether a guest migrates from a host.
    fn is_sender(&self, host: &str) -> bool {
        let migrations = self.observed.get(host).map(|observed| observed.migrations.values());
        migrations.into_iter().flatten().any(|of| of.role == Role::Source && of.outcome.is_none())
    }
}

/// Returns the part of each of so many senders.
fn part(rate: Rate, senders: usize) -> Rate {
    let senders = u64::try_from(senders).unwrap_or(u64::MAX).max(1);
    Rate::of_bits_per_s(rate.bits_per_s() / senders).unwrap_or(Rate::MIN)
}

impl Now {
    /// Returns the minute of the week, by the local clock.
    pub(crate) fn clock_time(self) -> ClockTime {
        ClockTime::of_unix(i64::try_from(self.wall.0 / 1000).unwrap_or(i64::MAX), self.utc_offset_s)
    }
}

#[cfg(test)]
mod tests {
    use skein_api::cluster::UnixMs;

    use super::*;

    #[test]
    fn the_minute_of_the_week_is_by_the_local_clock() {
        // `date -ud 2026-11-29T23:30:00` is a Sunday.
        let wall = UnixMs(1_795_995_000_000);
        let at = |utc_offset_s| Now { wall, utc_offset_s, mono_ms: 0 }.clock_time();
        assert_eq!(Some(at(0)), ClockTime::new(6, 23 * 60 + 30));
        assert_eq!(Some(at(3600)), ClockTime::new(0, 30));
        assert_eq!(Some(at(-86_400)), ClockTime::new(5, 23 * 60 + 30));
        assert_eq!(Some(Now::default().clock_time()), ClockTime::new(3, 0));
    }

    #[test]
    fn senders_share_evenly_down_to_the_least_rate() {
        let rate: Rate = "1 Gbit/s".parse().unwrap();
        let parts = [0, 1, 4, 1000].map(|senders| part(rate, senders).to_string());
        assert_eq!(parts, ["1 Gbit/s", "1 Gbit/s", "250 Mbit/s", "8 Mbit/s"]);
    }
}
