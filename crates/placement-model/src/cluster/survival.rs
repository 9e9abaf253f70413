//! Reports the result of letting hosts fail, in the user's words.

use serde::Serialize;

use super::Compiled;
use super::complaint::Complaint;
use super::model::HostState;
use super::names::{agree, listed};
use skein_placement::problem::{HostId, Strength};
use skein_placement::score::Score;
use skein_placement::survive::{Failure, Proof, impossible, survive};

/// The name of the rule in complaints.
const RULE: &str = "survive";

/// How many failures were tried and survived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Survived {
    /// How many hosts may fail at once.
    pub failures: u32,
    /// How many sets of hosts may fail.
    pub sets: u64,
    /// How many of these sets were tried: those of the fullest hosts.
    pub tried: u64,
    /// How many of the tried sets are survived.
    pub survived: u64,
    /// Why no placement of all guests survives all sets, if that is certain.
    pub impossible: Option<String>,
}

/// Returns the hosts that can fail: those that run.
pub fn failing(compiled: &Compiled) -> Vec<HostId> {
    let states = (0..).zip(&compiled.names.states);
    states.filter(|(_, state)| **state != HostState::Offline).map(|(host, _)| host).collect()
}

/// Lets hosts fail, if the file asks for that to be survived. Returns the result and the complaints.
pub(super) fn look(compiled: &Compiled, assignment: &[HostId]) -> Option<(Survived, Vec<Complaint>)> {
    let rule = compiled.survive?;
    let survival = survive(&compiled.problem, assignment, &failing(compiled), rule.failures);
    let told = Survived {
        failures: rule.failures,
        sets: survival.sets,
        tried: survival.tried,
        survived: survival.tried - survival.failures.len() as u64,
        impossible: impossible(&compiled.problem, &failing(compiled), rule.failures).map(|(resource, used, left)| {
            let row = &compiled.names.rows[resource];
            format!("{} of {row} are used by all, and {} are left then at worst", row.text(used), row.text(left))
        }),
    };
    Some((told, survival.failures.iter().map(|failure| complaint(compiled, failure, rule.strength)).collect()))
}

fn complaint(compiled: &Compiled, failure: &Failure, strength: Strength) -> Complaint {
    let names = &compiled.names;
    let mut hosts: Vec<&str> = failure.hosts.iter().map(|host| names.host(*host)).collect();
    hosts.sort_unstable();
    let fail = match hosts[..] {
        [host] => format!("if '{host}' fails"),
        _ => format!("if {} fail at once", listed(hosts.iter().copied())),
    };
    let score = strength.score(1);
    Complaint {
        key: format!("{RULE}: {}", hosts.join(", ")),
        hard: strength == Strength::Hard,
        gravity: if strength == Strength::Hard { Score::BREACH } else { score.cost },
        what: format!("{fail}, {}", why(compiled, failure)),
        rule: Some(RULE.to_owned()),
        guests: failure.left.iter().map(|guest| names.guest(*guest).to_owned()).collect(),
        hosts: hosts.into_iter().map(str::to_owned).collect(),
        since: 0,
    }
}

fn why(compiled: &Compiled, failure: &Failure) -> String {
    let names = &compiled.names;
    let left = names.list(&failure.left);
    let mut rules: Vec<String> = failure.rules.iter().map(|group| names.group(*group).to_string()).collect();
    rules.dedup();
    let best = match (failure.left.is_empty(), rules.is_empty()) {
        (false, true) => format!("{left} {} no room", agree(&failure.left, "finds", "find")),
        (true, false) => format!("its guests would break {}", rules.join(", ")),
        (false, false) => {
            format!("{left} {} no room, and {} is broken", agree(&failure.left, "finds", "find"), rules.join(", "))
        }
        (true, true) => "its guests find no room".to_owned(),
    };
    match failure.proof {
        Some(Proof::Guest(_)) => format!("no other host has room for {left}, or its rules allow none"),
        Some(Proof::Resource { resource, needs, free }) => {
            let row = &names.rows[resource];
            let (needs, free) = (row.text(needs), row.text(free));
            format!("{best}: {needs} of {row} are needed, and {free} are free on the others together")
        }
        Some(Proof::Tried) => format!("{best}, whatever goes where"),
        None => format!("no way was found, though there may be one: {best} in the best"),
    }
}
