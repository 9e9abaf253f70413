//! What several NICs as one give to the connections between two hosts: a bond, a team, a bond of Open vSwitch.

use crate::layers::{Bond, BondHash, BondMode};
use crate::ovs::{OvsBondMode, OvsUplink};
use crate::team::{Team, TeamHash, TeamMode};

/// Several NICs as one, whoever makes them so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyBond {
    /// The kernel's bonding driver.
    Bond(Bond),
    /// The kernel's team driver.
    Team(Team),
    /// Open vSwitch.
    Ovs(OvsUplink),
}

/// A bond that carries the traffic of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondBelow {
    /// The bond's name.
    pub name: String,
    /// The bond.
    pub bond: AnyBond,
    /// How many members send, or could.
    pub members: u32,
}

/// How the connections between two hosts are spread over a bond's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// A connection's ports decide, by a hash that is known here ([`member_of`](crate::member_of)).
    ByPorts,
    /// A connection's ports decide, by a hash that is not known here.
    ByChance,
    /// All takes one member.
    OneMember,
    /// All takes one member at a time, as the bond is for losing one.
    OneAtATime,
    /// Packets of one connection take several members, and arrive in disorder.
    Packets,
    /// Each member carries all.
    Copies,
    /// All that goes to one host takes one member.
    OneOfEachHost,
    /// Nothing is carried.
    Nothing,
    /// That is not known.
    Unknown,
}

impl BondBelow {
    /// Returns how connections are spread (Documentation/networking/bonding.rst, teamd.conf(5), and the
    /// `choose_output_member` of Open vSwitch's ofproto/bond.c).
    pub fn spread(&self) -> Spread {
        match &self.bond {
            AnyBond::Bond(bond) => match (bond.mode, bond.hash) {
                (BondMode::Lacp | BondMode::BalanceXor, BondHash::Layer34) => Spread::ByPorts,
                (BondMode::Lacp | BondMode::BalanceXor, _) => Spread::OneMember,
                (BondMode::ActiveBackup, _) => Spread::OneAtATime,
                (BondMode::BalanceTlb | BondMode::BalanceAlb, _) => Spread::OneOfEachHost,
                (BondMode::BalanceRr, _) => Spread::Packets,
                (BondMode::Broadcast, _) => Spread::Copies,
                (BondMode::Other, _) => Spread::Unknown,
            },
            AnyBond::Team(team) => match (team.mode, team.hash.has_ports()) {
                (TeamMode::LoadBalance, Some(true)) => Spread::ByChance,
                (TeamMode::LoadBalance, Some(false)) => Spread::OneMember,
                (TeamMode::ActiveBackup, _) => Spread::OneAtATime,
                (TeamMode::RoundRobin | TeamMode::Random, _) => Spread::Packets,
                (TeamMode::Broadcast, _) => Spread::Copies,
                (TeamMode::LoadBalance, None) | (TeamMode::Other, _) => Spread::Unknown,
            },
            AnyBond::Ovs(uplink) => match uplink.mode_now() {
                Some(OvsBondMode::ActiveBackup) => Spread::OneAtATime,
                Some(OvsBondMode::BalanceSlb) => Spread::OneMember,
                Some(OvsBondMode::BalanceTcp) => Spread::ByChance,
                Some(OvsBondMode::Other) => Spread::Unknown,
                None => Spread::Nothing,
            },
        }
    }

    /// Returns whether a connection's ports decide which member carries the connection, by a hash that is known here.
    pub fn is_by_ports(&self) -> bool {
        self.spread() == Spread::ByPorts
    }

    /// Says what the bond gives, or cannot give.
    pub fn words(&self) -> String {
        let (of, members) = (self.shown(), self.members);
        let spread = self.spread();
        if members < 2 && spread != Spread::Nothing {
            return format!("{of} has {members} member that sends");
        }
        match spread {
            Spread::ByPorts => format!("each of the {members} members of {of} carries some"),
            Spread::ByChance => {
                format!("{of} gives each connection one of its {members} members, and which one cannot be chosen")
            }
            Spread::OneMember => format!(
                "{of} leads all between two hosts over one of its {members} members, at that one's rate{}",
                self.better()
            ),
            Spread::OneAtATime => format!("{of} uses one of its {members} members at a time, at that one's rate"),
            Spread::OneOfEachHost => format!(
                "{of} leads all that goes to one host over one of its {members} members, at that one's rate: 802.3ad \
                 by layer3+4 would use all"
            ),
            Spread::Packets => match &self.bond {
                AnyBond::Team(Team { mode: TeamMode::Random, .. }) => {
                    format!("{of} sends each packet over any of its {members} members: they arrive in disorder")
                }
                _ => format!("{of} sends packets in turn over its {members} members: they arrive in disorder"),
            },
            Spread::Copies => format!("{of} sends all over each of its {members} members, at one's rate"),
            Spread::Nothing => format!("{of} carries nothing by what Open vSwitch says, as it has no LACP"),
            Spread::Unknown => format!("{of} has {members} members, and which carries what is not known"),
        }
    }

    /// Returns the name with the mode, and with the hash where that decides.
    fn shown(&self) -> String {
        let name = &self.name;
        match &self.bond {
            AnyBond::Bond(Bond { mode, hash, .. }) => match mode {
                BondMode::Lacp | BondMode::BalanceXor => format!("{name} ({}, {})", mode.word(), hash.word()),
                _ => format!("{name} ({})", mode.word()),
            },
            AnyBond::Team(team) => match (team.mode, &team.hash) {
                (TeamMode::LoadBalance, TeamHash::None) => format!("{name} (team, loadbalance without a hash)"),
                (TeamMode::LoadBalance, hash) => format!("{name} (team, {} by {})", team.word(), hash.words()),
                _ => format!("{name} (team, {})", team.word()),
            },
            AnyBond::Ovs(uplink) => {
                let mode = uplink.bond.map_or("", |bond| bond.mode.word());
                format!("{name} (Open vSwitch, {mode})")
            }
        }
    }

    /// Says what would use all members.
    fn better(&self) -> &'static str {
        match &self.bond {
            AnyBond::Bond(_) => ": layer3+4 would use all",
            AnyBond::Team(_) => ": a tx_hash with l4 would use all",
            AnyBond::Ovs(_) => ": balance-tcp with LACP would use all",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovs::{OvsBond, OvsMember};

    fn team(mode: TeamMode, hash: TeamHash, runner: Option<&str>) -> BondBelow {
        let team = Team { mode, active: None, hash, runner: runner.map(str::to_owned) };
        BondBelow { name: "team0".into(), bond: AnyBond::Team(team), members: 2 }
    }

    fn ovs(mode: OvsBondMode, lacp: bool, answered: bool, fallback: bool) -> BondBelow {
        let member =
            |name: &str| OvsMember { name: name.into(), index: None, link: true, answered: lacp.then_some(answered) };
        let uplink = OvsUplink {
            port: "bond0".into(),
            bridges: vec!["br-ex".into()],
            vlan: None,
            bond: Some(OvsBond { mode, lacp, fallback }),
            members: vec![member("eth0"), member("eth1")],
        };
        let members = uplink.sending().count() as u32;
        BondBelow { name: "bond0".into(), bond: AnyBond::Ovs(uplink), members }
    }

    #[test]
    fn a_team_gives_what_its_mode_and_hash_give() {
        let fields = |names: &[&str]| TeamHash::Fields(names.iter().map(|name| (*name).to_owned()).collect());
        let said = |mode, hash, runner| {
            let team = team(mode, hash, runner);
            (team.spread(), team.words())
        };
        let balance = |hash, runner| said(TeamMode::LoadBalance, hash, runner);
        assert_eq!(
            balance(fields(&["eth", "ipv4", "ipv6"]), Some("lacp")),
            (
                Spread::OneMember,
                "team0 (team, lacp by eth, ipv4, ipv6) leads all between two hosts over one of its 2 members, at that \
                 one's rate: a tx_hash with l4 would use all"
                    .into()
            )
        );
        assert_eq!(
            balance(fields(&["ip", "l4"]), Some("loadbalance")),
            (
                Spread::ByChance,
                "team0 (team, loadbalance by ip, l4) gives each connection one of its 2 members, and which one cannot \
                 be chosen"
                    .into()
            )
        );
        assert_eq!(balance(fields(&["tcp"]), None).0, Spread::ByChance);
        assert_eq!(balance(fields(&["udp"]), None).0, Spread::OneMember, "migrations are TCP");
        assert!(balance(TeamHash::None, None).1.starts_with("team0 (team, loadbalance without a hash) leads all"));
        assert_eq!(
            balance(TeamHash::Unknown, None),
            (
                Spread::Unknown,
                "team0 (team, loadbalance by a hash that is not known here) has 2 members, and which carries what is \
                 not known"
                    .into()
            )
        );
        assert_eq!(said(TeamMode::ActiveBackup, TeamHash::None, None).0, Spread::OneAtATime);
        assert_eq!(said(TeamMode::Broadcast, TeamHash::None, None).0, Spread::Copies);
        assert!(
            said(TeamMode::Random, TeamHash::None, None)
                .1
                .ends_with("over any of its 2 members: they arrive in disorder")
        );
        assert_eq!(said(TeamMode::RoundRobin, TeamHash::None, None).0, Spread::Packets);
        assert_eq!(said(TeamMode::Other, TeamHash::None, None).0, Spread::Unknown);
    }

    #[test]
    fn a_bond_of_open_vswitch_goes_by_its_mode_and_its_lacp() {
        let spread = |mode, lacp, answered, fallback| ovs(mode, lacp, answered, fallback).spread();
        assert_eq!(spread(OvsBondMode::BalanceTcp, true, true, false), Spread::ByChance);
        assert_eq!(spread(OvsBondMode::BalanceTcp, true, false, false), Spread::Nothing);
        assert_eq!(spread(OvsBondMode::BalanceTcp, true, false, true), Spread::OneAtATime);
        assert_eq!(spread(OvsBondMode::BalanceTcp, false, false, true), Spread::Nothing);
        assert_eq!(spread(OvsBondMode::BalanceSlb, false, false, false), Spread::OneMember);
        assert_eq!(spread(OvsBondMode::BalanceSlb, true, false, false), Spread::Nothing);
        assert_eq!(spread(OvsBondMode::ActiveBackup, false, false, false), Spread::OneAtATime);
        assert_eq!(spread(OvsBondMode::Other, false, false, false), Spread::Unknown);
        assert_eq!(
            ovs(OvsBondMode::BalanceSlb, false, false, false).words(),
            "bond0 (Open vSwitch, balance-slb) leads all between two hosts over one of its 2 members, at that one's \
             rate: balance-tcp with LACP would use all"
        );
        assert_eq!(
            ovs(OvsBondMode::BalanceTcp, true, true, false).words(),
            "bond0 (Open vSwitch, balance-tcp) gives each connection one of its 2 members, and which one cannot be \
             chosen"
        );
    }
}
