//! How many connections for bulk data each path of a session has, and why.

use std::fmt;
use std::str::FromStr;

use crate::any_bond::{BondBelow, Spread};

/// Connections of a NIC with several queues: each may land on a queue of its own.
const OF_QUEUES: u32 = 4;
/// Connections of a NIC with one queue, or whose queues are not known. A connection's TLS is the work of one thread at
/// each end, so one connection is slower than two wherever a core encrypts less than the NIC carries
/// (docs/decisions/0060-connections-per-nic.md).
const OF_ONE_QUEUE: u32 = 2;
/// Bounds the connections of a path whose bond has several members that send.
const OF_BOND_MAX: u32 = 8;
/// Bounds the connections of all paths of a session.
pub const PEER_MAX: u32 = 32;

/// What was configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantedConnections {
    /// As many as fit the NICs.
    #[default]
    Auto,
    /// So many on each path: 1 to [`PEER_MAX`].
    Fixed(u8),
}

/// The reason why words are no [`WantedConnections`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither auto nor a number of connections from 1 to {PEER_MAX}")]
pub struct WantedConnectionsError(String);

impl FromStr for WantedConnections {
    type Err = WantedConnectionsError;

    fn from_str(text: &str) -> Result<WantedConnections, WantedConnectionsError> {
        let number = || text.parse::<u8>().ok().filter(|number| (1..=PEER_MAX).contains(&u32::from(*number)));
        match text {
            "auto" => Ok(WantedConnections::Auto),
            _ => number().map(WantedConnections::Fixed).ok_or_else(|| WantedConnectionsError(text.to_owned())),
        }
    }
}

impl fmt::Display for WantedConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WantedConnections::Auto => f.write_str("auto"),
            WantedConnections::Fixed(number) => write!(f, "{number}"),
        }
    }
}

/// What is known of a path's ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionsPath {
    /// The queues of this end's NICs; `None`: nobody says.
    pub queues: Option<u32>,
    /// The queues of the other end's NICs; `None`: nobody says.
    pub remote_queues: Option<u32>,
    /// The bond that carries what this end sends.
    pub bond: Option<BondBelow>,
}

/// The connections that a path is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathConnections {
    /// Their number.
    pub number: u32,
    /// The reason.
    why: String,
}

/// Says for instance `4: the NICs have 8 queues or more at both ends`.
impl fmt::Display for PathConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.number, self.why)
    }
}

/// Decides for the paths of a session that carry data, in their order. Each has one connection at least, and all have
/// [`PEER_MAX`] at most, if there are no more paths than that.
pub fn connections(wanted: WantedConnections, paths: &[ConnectionsPath]) -> Vec<PathConnections> {
    let mut all: Vec<PathConnections> = paths.iter().map(|path| alone(wanted, path)).collect();
    let mut less = vec![false; all.len()];
    while all.iter().map(|path| path.number).sum::<u32>() > PEER_MAX {
        // The last of those that have most.
        let most = all.iter().enumerate().max_by_key(|(nth, path)| (path.number, *nth));
        let Some((nth, _)) = most.filter(|(_, path)| path.number > 1) else { break };
        all[nth].number -= 1;
        less[nth] = true;
    }
    for path in all.iter_mut().zip(less).filter_map(|(path, less)| less.then_some(path)) {
        path.why += &format!("; fewer, as all paths to a host have {PEER_MAX} at most");
    }
    all
}

/// Decides for a path by itself.
fn alone(wanted: WantedConnections, path: &ConnectionsPath) -> PathConnections {
    let members_if = |spread| path.bond.as_ref().filter(|bond| bond.spread() == spread).map_or(1, |bond| bond.members);
    let members = members_if(Spread::ByPorts).clamp(1, OF_BOND_MAX);
    let is_by_chance = members_if(Spread::ByChance) > 1;
    let queues = path.queues.into_iter().chain(path.remote_queues).min();
    let (number, mut why) = match (wanted, queues) {
        (WantedConnections::Fixed(number), _) => {
            (u32::from(number).clamp(members, PEER_MAX), "as configured".to_owned())
        }
        // The more there are, the less likely it is that a member has none.
        (WantedConnections::Auto, _) if is_by_chance => {
            (OF_BOND_MAX, "which of several NICs a connection takes is chance".to_owned())
        }
        // As many over each member.
        (WantedConnections::Auto, Some(queues @ 2..)) => {
            let number = (OF_QUEUES * members).min(OF_BOND_MAX);
            let ends = match path.queues.is_some() && path.remote_queues.is_some() {
                true => "at both ends",
                false => "at one end; the other does not say",
            };
            (number - number % members, format!("the NICs have {queues} queues or more {ends}"))
        }
        (WantedConnections::Auto, Some(_)) => (OF_ONE_QUEUE.max(members), "a NIC has one queue".to_owned()),
        (WantedConnections::Auto, None) => {
            (OF_ONE_QUEUE.max(members), "the queues of the NICs are not known".to_owned())
        }
    };
    if let Some(bond) = &path.bond {
        why += &format!("; {}", bond.words());
    }
    PathConnections { number, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any_bond::AnyBond;
    use crate::layers::{Bond, BondHash, BondMode};
    use crate::team::{Team, TeamHash, TeamMode};

    fn path(queues: Option<u32>, remote_queues: Option<u32>) -> ConnectionsPath {
        ConnectionsPath { queues, remote_queues, bond: None }
    }

    fn bond(mode: BondMode, hash: BondHash, members: u32) -> Option<BondBelow> {
        let bond = Bond { mode, hash, active: None, aggregated: None, partner: None };
        Some(BondBelow { name: "bond0".into(), bond: AnyBond::Bond(bond), members })
    }

    fn words(wanted: WantedConnections, path: ConnectionsPath) -> String {
        connections(wanted, &[path])[0].to_string()
    }

    #[test]
    fn queues_decide_and_the_end_with_fewer_of_them() {
        let auto = |queues, remote| words(WantedConnections::Auto, path(queues, remote));
        assert_eq!(auto(Some(8), Some(16)), "4: the NICs have 8 queues or more at both ends");
        assert_eq!(auto(Some(16), Some(2)), "4: the NICs have 2 queues or more at both ends");
        assert_eq!(auto(Some(8), None), "4: the NICs have 8 queues or more at one end; the other does not say");
        assert_eq!(auto(Some(8), Some(1)), "2: a NIC has one queue");
        assert_eq!(auto(Some(1), None), "2: a NIC has one queue");
        assert_eq!(auto(None, None), "2: the queues of the NICs are not known");
        let fixed = WantedConnections::Fixed(7);
        assert_eq!(words(fixed, path(Some(1), Some(1))), "7: as configured");
    }

    #[test]
    fn what_is_configured_is_auto_or_a_number() {
        for (words, wanted) in [("auto", WantedConnections::Auto), ("1", WantedConnections::Fixed(1))] {
            assert_eq!((words.parse(), wanted.to_string().as_str()), (Ok(wanted), words));
        }
        assert_eq!("32".parse(), Ok(WantedConnections::Fixed(32)));
        for bad in ["0", "33", "-1", "300", "", "all"] {
            assert_eq!(bad.parse::<WantedConnections>(), Err(WantedConnectionsError(bad.into())), "{bad}");
        }
    }

    #[test]
    fn each_member_of_a_bond_by_ports_carries_as_many() {
        let of = |queues, members| {
            let path = ConnectionsPath { bond: bond(BondMode::Lacp, BondHash::Layer34, members), ..path(queues, None) };
            connections(WantedConnections::Auto, &[path])[0].number
        };
        assert_eq!([1, 2, 3, 5, 8, 40].map(|members| of(Some(8), members)), [4, 8, 6, 5, 8, 8]);
        assert_eq!([0, 1, 2, 3, 5, 40].map(|members| of(Some(1), members)), [2, 2, 2, 3, 5, 8]);
        let one = WantedConnections::Fixed(1);
        let three = bond(BondMode::BalanceXor, BondHash::Layer34, 3);
        let path = ConnectionsPath { bond: three, ..path(Some(8), Some(8)) };
        assert_eq!(
            words(one, path),
            "3: as configured; each of the 3 members of bond0 (balance-xor, layer3+4) carries some"
        );
    }

    #[test]
    fn where_chance_spreads_connections_there_are_many() {
        let of = |wanted, queues, members| {
            let hash = TeamHash::Fields(vec!["l4".into()]);
            let team = Team { mode: TeamMode::LoadBalance, active: None, hash, runner: None };
            let bond = Some(BondBelow { name: "team0".into(), bond: AnyBond::Team(team), members });
            words(wanted, ConnectionsPath { bond, ..path(queues, None) })
        };
        assert_eq!(
            of(WantedConnections::Auto, Some(1), 2),
            "8: which of several NICs a connection takes is chance; team0 (team, loadbalance by l4) gives each \
             connection one of its 2 members, and which one cannot be chosen"
        );
        assert!(of(WantedConnections::Auto, None, 2).starts_with("8: "));
        assert!(of(WantedConnections::Auto, Some(1), 1).starts_with("2: a NIC has one queue; team0"));
        assert!(of(WantedConnections::Fixed(3), Some(8), 2).starts_with("3: as configured"), "as the user knows best");
    }

    #[test]
    fn what_a_bond_cannot_give_is_said() {
        let said = |mode, hash, members| {
            let path = ConnectionsPath { bond: bond(mode, hash, members), ..path(Some(8), Some(8)) };
            let said = words(WantedConnections::Auto, path);
            said.strip_prefix("4: the NICs have 8 queues or more at both ends; ").map(str::to_owned).unwrap_or(said)
        };
        assert_eq!(
            said(BondMode::Lacp, BondHash::Layer2, 2),
            "bond0 (802.3ad, layer2) leads all between two hosts over one of its 2 members, at that one's rate: \
             layer3+4 would use all"
        );
        assert_eq!(
            said(BondMode::ActiveBackup, BondHash::Layer34, 2),
            "bond0 (active-backup) uses one of its 2 members at a time, at that one's rate"
        );
        assert!(
            said(BondMode::BalanceTlb, BondHash::Layer34, 2).starts_with("bond0 (balance-tlb) leads all that goes")
        );
        assert_eq!(said(BondMode::Lacp, BondHash::Layer34, 1), "bond0 (802.3ad, layer3+4) has 1 member that sends");
    }

    #[test]
    fn all_paths_together_have_a_bound() {
        let numbers = |paths: usize| -> Vec<u32> {
            let paths = vec![path(Some(8), Some(8)); paths];
            connections(WantedConnections::Auto, &paths).iter().map(|of| of.number).collect()
        };
        assert_eq!(numbers(8), [4; 8]);
        assert_eq!(numbers(9), [4, 4, 4, 4, 4, 3, 3, 3, 3]);
        assert_eq!(numbers(16), [2; 16]);
        assert_eq!(numbers(40), [1; 40], "each has one");
        let said = connections(WantedConnections::Auto, &vec![path(Some(8), Some(8)); 9])[8].to_string();
        assert!(said.starts_with("3: ") && said.ends_with("fewer, as all paths to a host have 32 at most"), "{said}");
        assert!(connections(WantedConnections::Auto, &[]).is_empty());
    }
}
