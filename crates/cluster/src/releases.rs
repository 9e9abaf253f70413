//! The releases of the hosts' agents, and which of them need a person.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::state::Controller;

/// How many hosts a sentence names.
const NAMED_MAX: usize = 5;

/// A release, as `0.1.0`.
type Release = (u64, u64, u64);

impl Controller {
    /// Returns what needs a person as agents are of other releases than a controller of the release `own` is, or than
    /// each other; one sentence each. A release that is no number is passed over.
    pub fn release_attention(&self, own: &str) -> Vec<String> {
        let Some(own_release) = parse(own) else { return Vec::new() };
        let mut agents: BTreeMap<Release, (&str, Vec<&str>)> = BTreeMap::new();
        for (host, observed) in self.observed.iter().filter(|(_, observed)| observed.session.is_some()) {
            let Some(release) = observed.hello.as_ref().map(|hello| hello.release.as_str()) else { continue };
            if let Some(number) = parse(release) {
                agents.entry(number).or_insert((release, Vec::new())).1.push(host);
            }
        }
        let mut found = Vec::new();
        for (number, (release, hosts)) in &agents {
            let agents_of = format!("{} of release {release}", agents_of(hosts));
            if number.cmp(&own_release) == Ordering::Greater {
                found.push(format!("{agents_of}, newer than this controller's {own}: upgrade skein-controller"));
            } else if !is_known(*number, own_release) {
                found.push(format!(
                    "{agents_of}, which a controller of {own} does not know any more: upgrade skein there"
                ));
            }
        }
        if agents.len() > 1 && found.is_empty() {
            let releases: Vec<String> =
                agents.values().map(|(release, hosts)| format!("{release} on {}", names(hosts))).collect();
            found.push(format!("agents are of different releases: {}: upgrade the older ones", releases.join("; ")));
        }
        found
    }
}

/// Returns whether a controller of a release knows agents of another: its own minor version and the one before, as
/// agents know each other (docs/releases.md); of another major version the one before.
fn is_known(agent: Release, own: Release) -> bool {
    match own.0.checked_sub(agent.0) {
        Some(0) => agent.1 + 1 >= own.1,
        Some(majors) => majors == 1,
        None => true,
    }
}

fn parse(release: &str) -> Option<Release> {
    let mut parts = release.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok());
    let release = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(release)
}

fn agents_of(hosts: &[&str]) -> String {
    match hosts {
        [host] => format!("the agent of {host} is"),
        hosts => format!("the agents of {} are", names(hosts)),
    }
}

fn names(hosts: &[&str]) -> String {
    let named = hosts[..hosts.len().min(NAMED_MAX)].join(", ");
    match hosts.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        assert_eq!(["0.1.0", "1.12.3-rc1", "2.0.0+x"].map(parse), [Some((0, 1, 0)), Some((1, 12, 3)), Some((2, 0, 0))]);
        assert_eq!(["", "1", "1.2", "1.2.3.4", "a.b.c", "sim", "1.2.x"].map(parse), [None; 7]);
    }

    #[test]
    fn a_release_and_the_one_before_are_known() {
        let own = (1, 4, 0);
        let cases = [((1, 4, 9), true), ((1, 3, 0), true), ((1, 2, 9), false), ((0, 9, 0), true), ((2, 0, 0), true)];
        for (agent, known) in cases {
            assert_eq!(is_known(agent, own), known, "{agent:?}");
        }
        assert!(!is_known((0, 9, 0), (2, 0, 0)));
    }

    #[test]
    fn many_hosts_are_named_in_part() {
        assert_eq!(names(&["a", "b"]), "a, b");
        assert_eq!(names(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
    }
}
