//! Agents that have heard of later leaders than any that this store can have had.
//!
//! A leader that was deposed hears of its successor's term, and steps down. Each election in a store makes a greater
//! term than those before: if one does not come to what an agent had heard of before that election, the agent heard of
//! it from the controllers of another store. That may be what became of this one before it was restored on a machine
//! whose clock was behind; or another store's controllers lead, and agents do well to refuse this one's. Only a person
//! knows which, so nothing is raised by itself.

use std::collections::BTreeMap;

use skein_api::Term;
use skein_api::cluster::UnixMs;

/// For how long an agent is told of that has connected no more.
const TOLD_MS: u64 = 600_000;
/// The most hosts that are told by name.
const NAMES_MAX: usize = 5;

/// What agents have heard of, by host.
#[derive(Debug, Default)]
pub(crate) struct LaterTerms(BTreeMap<String, Heard>);

#[derive(Debug)]
struct Heard {
    highest: Term,
    at: UnixMs,
    /// The term of a later election in this store that is below.
    outbids: Option<Term>,
}

impl LaterTerms {
    /// Takes note of the highest term that an agent has heard of.
    pub(crate) fn note(&mut self, host: &str, highest: Term, at: UnixMs) {
        let before = self.0.get(host).filter(|before| before.highest == highest);
        let outbids = before.and_then(|before| before.outbids);
        self.0.insert(host.to_owned(), Heard { highest, at, outbids });
    }

    /// Takes note of an election in this store: what was heard of before is not of this store if it is greater.
    pub(crate) fn elected(&mut self, term: Term) {
        self.0.retain(|_, heard| heard.highest > term);
        self.0.values_mut().for_each(|heard| heard.outbids = Some(term));
    }

    /// Says which hosts obey no controller of this store, and what to do.
    pub(crate) fn attention(&self, is_connected: impl Fn(&str) -> bool, now: UnixMs) -> Option<String> {
        let is_told = |host: &str, heard: &Heard| is_connected(host) || now.0.saturating_sub(heard.at.0) < TOLD_MS;
        let told: Vec<(&str, Term, Term)> = self
            .0
            .iter()
            .filter(|(host, heard)| is_told(host, heard))
            .filter_map(|(host, heard)| Some((host.as_str(), heard.highest, heard.outbids?)))
            .collect();
        let highest = told.iter().map(|(_, highest, _)| *highest).max()?;
        let own = told.iter().map(|(_, _, own)| *own).max()?;
        let mut names: Vec<String> = told.iter().take(NAMES_MAX).map(|(host, ..)| format!("'{host}'")).collect();
        if told.len() > names.len() {
            names.push(format!("{} more", told.len() - names.len()));
        }
        Some(format!(
            "{} obeyed a leader of the term {highest}, and none of this store's controllers, whose term is {own} only: \
             the store was made or restored while this machine's clock was behind, or it is not the one that is in \
             use. Make sure that no other controllers lead the cluster; stop all that use this store; skein-controller \
             raise-terms --above {highest}; start them again",
            names.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbids(later: &LaterTerms, host: &str) -> Option<Term> {
        later.0.get(host).and_then(|heard| heard.outbids)
    }

    #[test]
    fn only_an_election_after_the_word_says_that_a_term_is_of_another_store() {
        let mut later = LaterTerms::default();
        later.elected(Term(5));
        // A leader that does not know yet that it is deposed.
        later.note("a", Term(9), UnixMs(1));
        assert_eq!(outbids(&later, "a"), None);
        later.elected(Term(12));
        assert_eq!(outbids(&later, "a"), None);
        later.note("a", Term(12), UnixMs(2));
        later.note("b", Term(99), UnixMs(2));
        later.elected(Term(13));
        assert_eq!((outbids(&later, "a"), outbids(&later, "b")), (None, Some(Term(13))));
        // The agent comes back, and says the same.
        later.note("b", Term(99), UnixMs(3));
        assert_eq!(outbids(&later, "b"), Some(Term(13)));
        // Of another term nothing is known; and a file that was taken away is forgotten.
        later.note("b", Term(100), UnixMs(4));
        assert_eq!(outbids(&later, "b"), None);
        later.note("b", Term(0), UnixMs(5));
        later.elected(Term(14));
        assert!(later.0.is_empty());
    }
}
