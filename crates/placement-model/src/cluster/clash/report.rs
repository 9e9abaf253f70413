//! What is reported of rules that clash.

use serde::Serialize;

use crate::cluster::names::{Names, RuleId, listed};
use skein_placement::problem::GuestId;

/// Rules that can never hold together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Clash {
    /// The rules. Without any of the rules these guests would not clash like this. Empty if the guests and hosts alone
    /// clash.
    pub rules: Vec<String>,
    /// The guests that the rules are about.
    pub guests: Vec<String>,
    /// Why the rules cannot hold together.
    pub what: String,
    /// What to do about the clash.
    pub todo: String,
}

impl Clash {
    /// Makes the warning about a rule that is about no guest.
    pub(in crate::cluster) fn nobody(rule: &str, what: String) -> Clash {
        Clash {
            rules: vec![format!("rule '{rule}'")],
            guests: Vec::new(),
            what: format!("it is about no guest: {what}"),
            todo: "correct the name, or remove the rule".into(),
        }
    }
}

/// Makes the warning about a property that a rule compares and that is not set on all hosts and guests of the group.
pub(in crate::cluster) fn unset(
    names: &Names,
    rule: RuleId,
    property: &str,
    hosts: &[&str],
    guests: &[GuestId],
) -> Option<Clash> {
    if hosts.is_empty() && guests.is_empty() {
        return None;
    }
    let mut lacking = Vec::new();
    if !hosts.is_empty() {
        lacking.push(format!("of hosts {}", listed(hosts.iter().copied())));
    }
    if !guests.is_empty() {
        lacking.push(format!("of guests {}", names.list(guests)));
    }
    Some(Clash {
        rules: vec![names.rules[rule as usize].to_string()],
        guests: guests.iter().map(|guest| names.guest(*guest).to_owned()).collect(),
        what: format!(
            "the property '{property}' is not set {}, so that it matches nothing there",
            lacking.join(" and ")
        ),
        todo: "set it on all hosts and guests of the group".into(),
    })
}
