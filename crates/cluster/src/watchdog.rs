//! Hosts whose watchdog resets them unless their agent says in time that all is well: they are proven to be off by how
//! long the leader has not heard of them.
//!
//! An agent feeds its watchdog after a leader acknowledged a report, or while it and other voters that have no leader
//! are more than half of the *voters* (`skein_watchdog`). So two things are counted from: when the host was last heard
//! of, and since when more than half of the voters have told others, without a break, that they have a leader. These
//! have to be the same ones all the time: an agent asks one after the other. Which voters a silent host goes by is not
//! known exactly, so that this has to hold of all that it may have been told since it last said which.
//!
//! A report is acknowledged once the store has said, asked after it had come, that this controller leads: so no report
//! that was sent after an election is acknowledged by a leader of before.

use std::collections::BTreeSet;

use skein_api::cluster::{AuditRecord, Contact, HostWatchdog};
use skein_api::{HeardEcho, Term};
use skein_watchdog::{HAS_LEADER_MS, Times, with_drift};

use crate::observed::Attests;
use crate::records::{HostRecord, VotersRecord, WatchdogRecord};
use crate::state::{Controller, Output, Planted, Role};
use crate::time::Now;
use crate::words::NOBODY;

/// How many acknowledgements are remembered, until agents say that they took them.
const ROUNDS_MAX: usize = 16;
/// How many sets of voters there are at most. While so many are in use, hosts that have come since are in none.
const VOTERS_MAX: usize = 8;
/// Returns the number of a set of voters.
fn number_of(key: &str) -> u64 {
    key.parse().unwrap_or_default()
}

impl Controller {
    /// Forgets what belongs to a term.
    pub(crate) fn forget_attested(&mut self) {
        self.rounds.clear();
        self.rounds_count = 0;
        for observed in self.observed.values_mut() {
            observed.attests = None;
        }
    }

    /// Takes the store's word that this controller leads, which it was asked for at a time: acknowledges the reports
    /// that had come by then.
    pub(crate) fn lead_confirmed(&mut self, now: Now, term: Term, begun_ms: u64) {
        if self.term() != Some(term) {
            return;
        }
        let Some((voters, hosts)) = self.tables.voters.last_key_value() else { return };
        let (voters, hosts) = (number_of(voters), hosts.value.hosts.clone());
        self.rounds_count += 1;
        let number = self.rounds_count;
        let mut lines = Vec::new();
        for observed in self.observed.values_mut() {
            let Some(session) = observed.session else { continue };
            let mut heard = None;
            while let Some((sequence, _)) = observed.reports.pop_front_if(|(_, heard_ms)| *heard_ms < begun_ms) {
                heard = Some(sequence);
            }
            let Some(sequence) = heard else { continue };
            let hosts = if observed.voters == voters { BTreeSet::new() } else { hosts.clone() };
            lines.push(Output::Heard { session, term, number, sequence, voters, hosts });
        }
        self.rounds.push_back((number, now.mono_ms));
        self.rounds.drain(..self.rounds.len().saturating_sub(ROUNDS_MAX));
        lines.into_iter().for_each(|line| self.effect(line));
    }

    /// Takes over what a host has told of its watchdog.
    pub(crate) fn note_watchdog(&mut self, host: &str) {
        let Some(observed) = self.observed.get(host).filter(|observed| observed.is_whole) else { return };
        let Some(found) = self.tables.hosts.get(host).map(|found| &found.value) else { return };
        // Of three timeouts one is counted.
        let share = if self.has(Planted::WatchdogCloseForgotten) { 3 } else { 1 };
        let armed = observed.watchdog.as_ref().and_then(|state| state.armed.as_ref());
        let watchdog = armed.map(|armed| {
            let times =
                Times { acknowledged_ms: armed.acknowledged_ms, asked_ms: armed.asked_ms, period_ms: armed.period_ms };
            let resets_within_ms = times.resets_within_ms(armed.timeout_ms / share);
            let known = found.watchdog.as_ref().map_or(0, |before| before.voters);
            WatchdogRecord { identity: armed.identity.clone(), resets_within_ms, voters: known.max(observed.voters) }
        });
        if watchdog != found.watchdog {
            let record = HostRecord { watchdog, ..found.clone() };
            self.tables.put(host, record);
        }
    }

    /// Returns what is to be shown of a host's watchdog.
    pub(crate) fn watchdog_view(&self, name: &str, host: &HostRecord) -> Option<HostWatchdog> {
        let told = self.observed.get(name).and_then(|observed| observed.watchdog.as_ref());
        if let Some(watchdog) = &host.watchdog {
            let (identity, resets_within_ms) = (Some(watchdog.identity.clone()), Some(watchdog.resets_within_ms));
            return Some(HostWatchdog { identity, resets_within_ms, why_not: String::new() });
        }
        told.map(|told| HostWatchdog { why_not: told.why_not.clone(), ..HostWatchdog::default() })
    }

    /// Notes that a host has taken an acknowledgement: from now on, as it says, until so long after that was sent it
    /// tells others that it has a leader.
    pub(crate) fn note_heard(&mut self, now: Now, host: &str, heard: HeardEcho) {
        let is_own = self.term() == Some(heard.term);
        let sent_ms = self.rounds.iter().find(|(number, _)| *number == heard.number && is_own).map(|(_, at)| *at);
        let Some(observed) = self.observed.get_mut(host) else { return };
        observed.voters = heard.voters;
        let Some(sent_ms) = sent_ms else { return };
        let until_ms = sent_ms + HAS_LEADER_MS - (with_drift(HAS_LEADER_MS) - HAS_LEADER_MS);
        match &mut observed.attests {
            Some(attests) if attests.until_ms > now.mono_ms => attests.until_ms = attests.until_ms.max(until_ms),
            attests if until_ms > now.mono_ms => *attests = Some(Attests { since_ms: now.mono_ms, until_ms }),
            _ => {}
        }
    }

    /// Keeps the voters up to date, and notes which hosts their watchdogs have reset.
    pub(crate) fn tick_watchdogs(&mut self, now: Now) {
        self.renew_voters();
        let lost = self.tables.hosts.iter().filter(|(_, host)| host.value.contact == Contact::Lost);
        let reset: Vec<String> = lost
            .map(|(name, _)| name.clone())
            .filter(|name| self.is_reset_at_ms(name, now).is_some_and(|at_ms| now.mono_ms >= at_ms))
            .collect();
        for host in reset {
            let detail = format!("not heard of for {} s, its watchdog has reset it", self.silent_ms(now, &host) / 1000);
            let what = format!("note that {host} is proven to be off");
            let (by, from) = (NOBODY.to_owned(), String::new());
            self.audit(now, AuditRecord { id: String::new(), at: now.wall, by, from, what, status: 200, detail });
            self.proven_off(now, &host, NOBODY);
        }
    }

    /// Returns by when a host that says nothing was reset by its watchdog, by the clock that never jumps. `None`: that
    /// is not proven, however long it says nothing.
    pub(crate) fn is_reset_at_ms(&self, host: &str, now: Now) -> Option<u64> {
        let Role::Leader { since_ms, .. } = self.role else { return None };
        let watchdog = self.tables.hosts.get(host)?.value.watchdog.as_ref()?;
        let heard_ms = self.observed.get(host).and_then(|observed| observed.heard_ms).unwrap_or(0);
        let mut from_ms = heard_ms.max(since_ms);
        if !self.has(Planted::WatchdogVotersForgotten) {
            let newest = number_of(self.tables.voters.last_key_value()?.0);
            if watchdog.voters == 0 {
                return None;
            }
            for number in watchdog.voters..=newest {
                let voters = &self.tables.voters.get(&VotersRecord::key(number))?.value.hosts;
                from_ms = from_ms.max(self.attested_since_ms(voters, now)?);
            }
        }
        Some(from_ms + watchdog.resets_within_ms)
    }

    /// Returns since when more than half of these have told others, all the time, that they have a leader.
    fn attested_since_ms(&self, voters: &BTreeSet<String>, now: Now) -> Option<u64> {
        let attests = voters.iter().filter_map(|host| self.observed.get(host)?.attests);
        let mut since: Vec<u64> = attests.filter(|of| of.until_ms > now.mono_ms).map(|of| of.since_ms).collect();
        since.sort_unstable();
        since.get(voters.len() / 2).copied()
    }

    /// Names the hosts that there are as voters, once any is to have a watchdog; forgets those that no host goes by any
    /// more.
    fn renew_voters(&mut self) {
        let watchdogs: Vec<u64> =
            self.tables.hosts.values().filter_map(|host| Some(host.value.watchdog.as_ref()?.voters)).collect();
        let is_wanted = self.observed.values().any(|observed| observed.watchdog.is_some());
        if watchdogs.is_empty() && !is_wanted {
            return;
        }
        let newest = self.tables.voters.last_key_value();
        let number = newest.map_or(0, |(key, _)| number_of(key));
        let is_new = newest.is_none_or(|(_, of)| !of.value.hosts.iter().eq(self.tables.hosts.keys()));
        // A host that has not said by which voters it goes is not proven to be off.
        let least = watchdogs.into_iter().filter(|voters| *voters > 0).min().unwrap_or(number);
        let old: Vec<String> =
            self.tables.voters.keys().filter(|key| number_of(key) < least.min(number)).cloned().collect();
        old.iter().for_each(|key| self.tables.delete::<VotersRecord>(key));
        if is_new && self.tables.voters.len() < VOTERS_MAX {
            let hosts = self.tables.hosts.keys().cloned().collect();
            self.tables.put(&VotersRecord::key(number + 1), VotersRecord { hosts });
        }
    }
}
