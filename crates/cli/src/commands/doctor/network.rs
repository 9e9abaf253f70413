//! Checks what carries a migration: NICs, and the kernel's TCP.

use std::collections::BTreeMap;
use std::net::IpAddr;

use skein_host::{Kernel, Nic};
use skein_network::{
    Bond, BondBelow, BondHash, BondMode, Duplex, Interface, Layer, Offloads, Spread, bond_below, offloads,
};
use skein_units::about_bytes;

use super::finding::{Finding, bad, chain, ok, warn};
use crate::commands::text::count;

/// The kernel's own default for the largest send buffer (tcp_wmem of Documentation/networking/ip-sysctl.rst). A path
/// has up to 2 MiB queued beyond what is on the way, over two connections; the kernel's count includes its overhead.
const TCP_BUFFER_BYTES: u64 = 4 << 20;
/// The buffer that the mover asks of its unix sockets: two full packets of multifd. The kernel doubles what it grants
/// (socket(7)).
const UNIX_BUFFER_BYTES: u64 = 1 << 20;
/// In Mbit/s: a slower link is usually not intended.
const SLOW_MBIT: u32 = 1000;

pub fn nics() -> Vec<Finding> {
    match skein_host::nics() {
        Ok(nics) => judge(&nics, |nic| offloads(&Kernel::new(), nic)),
        Err(error) => vec![bad("nic", chain(error), "is this a container without a network?")],
    }
}

/// Judges the NICs that could carry a migration: those with addresses that other hosts can reach.
fn judge(nics: &[Nic], offloads: impl Fn(&str) -> Offloads) -> Vec<Finding> {
    let global = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let addressed =
        |nic: &&Nic| !nic.loopback && nic.addresses.iter().any(|address| address.usable && global(address.ip));
    let mut findings = Vec::new();
    let usable: Vec<&Nic> = nics.iter().filter(addressed).filter(|nic| nic.up()).collect();
    for nic in nics.iter().filter(addressed).filter(|nic| !nic.up()) {
        let (what, cure) = match nic.admin_up {
            true => ("has addresses and no link", "plug its cable in, and look at the switch"),
            false => ("has addresses and is switched off", "ip link set dev NIC up"),
        };
        findings.push(warn("nic", format!("{} {what}", nic.name), cure.replace("NIC", &nic.name)));
    }
    for nic in &usable {
        // The ports of a bond or bridge do the work.
        let ports: Vec<&Nic> = nics.iter().filter(|port| port.master == Some(nic.index)).collect();
        let speed =
            nic.speed_mbit.or_else(|| ports.iter().filter(|port| port.up()).filter_map(|port| port.speed_mbit).max());
        let speed_words =
            speed.map_or("speed not known".into(), |mbit| skein_units::measured::nominal(u64::from(mbit) * 1_000_000));
        let what = format!("{}: {speed_words}, MTU {}", nic.name, nic.mtu);
        match speed {
            Some(mbit) if mbit < SLOW_MBIT => {
                let cure = "if it is no faster link's half-broken cable, keep migrations off it: --nic of skein agent";
                findings.push(warn("nic", what, cure));
            }
            _ => findings.push(ok("nic", what)),
        }
        for port in ports.iter().filter(|port| port.admin_up && !port.carrier) {
            findings.push(warn(
                "nic",
                format!("{}, of {}, has no link", port.name, nic.name),
                "plug its cable in, and look at the switch",
            ));
        }
        let has = offloads(&nic.name);
        let missing: Vec<&str> = [("tso", has.tso), ("gso", has.gso), ("gro", has.gro)]
            .into_iter()
            .filter_map(|(name, on)| (on == Some(false)).then_some(name))
            .collect();
        if !missing.is_empty() {
            let what = format!(
                "{} has no {}: each packet costs its own way through the kernel",
                nic.name,
                missing.join(", no ")
            );
            let on: Vec<String> = missing.iter().map(|name| format!("{name} on")).collect();
            findings.push(warn("nic", what, format!("ethtool -K {} {}", nic.name, on.join(" "))));
        }
    }
    match usable.len() {
        0 => findings.push(bad("nic", "no NIC has a link and an address", "connect one, and give it an address")),
        1 => findings
            .push(ok("nic", "one NIC carries everything: a second would add its speed, and a way round the first")),
        number => findings.push(ok("nic", format!("{} carry migrations together", count(number, "NIC")))),
    }
    findings.extend(subnets(&usable));
    findings
}

/// Checks what does not show in addresses: bonds, duplex, and offloads that do not go together.
pub fn interfaces() -> Vec<Finding> {
    match skein_network::read(&Kernel::new()) {
        Ok(interfaces) => judge_interfaces(&interfaces),
        // The check of NICs says so already.
        Err(_) => Vec::new(),
    }
}

fn judge_interfaces(interfaces: &[Interface]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for of in interfaces {
        let name = &of.nic.name;
        if of.nic.up() && of.driver.duplex == Some(Duplex::Half) {
            let cure = format!("let both ends agree (ethtool -s {name} autoneg on), and look at the cable");
            findings.push(warn("nic", format!("{name} is half duplex: it sends or receives"), cure));
        }
        let is_in_bridge = of.port_of.as_ref().is_some_and(|above| {
            interfaces.iter().any(|other| other.nic.name == *above && other.nic.kind.as_deref() == Some("bridge"))
        });
        if is_in_bridge && of.driver.offloads.lro == Some(true) {
            let what = format!("{name} joins what it receives (LRO) and is in a bridge: guests get packets too large");
            findings.push(warn("nic", what, format!("ethtool -K {name} lro off")));
        }
        if let Some(Layer::Bond(bond)) = &of.layer {
            let members = interfaces.iter().filter(|port| port.port_of.as_ref() == Some(name)).count();
            findings.extend(judge_bond(name, bond, members));
        }
        if let Some(why) = &of.not_known {
            findings.push(warn(
                "nic",
                format!("what {name} stands on is not known: {why}"),
                "run skein doctor as root",
            ));
        }
    }
    findings.extend(judge_teams_and_ovs(interfaces));
    findings
}

/// Judges teams and bonds of Open vSwitch by what they give to the connections between two hosts.
fn judge_teams_and_ovs(interfaces: &[Interface]) -> Vec<Finding> {
    let is_meant = |of: &&Interface| of.team.is_some() || of.ovs.is_some();
    let below = interfaces.iter().filter(is_meant).filter_map(|of| bond_below(interfaces, &of.nic.name));
    // Several interfaces of Open vSwitch may lead over one bond.
    let bonds: BTreeMap<String, BondBelow> = below.map(|bond| (bond.name.clone(), bond)).collect();
    let own = "give each NIC an address of its own, without a bond: migrations use them all";
    let judge = |bond: BondBelow| match bond.spread() {
        Spread::Nothing => Some(warn("bond", bond.words(), "make one link aggregation (LACP) of the switch's ports")),
        _ if bond.members < 2 => None,
        Spread::OneMember | Spread::Packets => Some(warn("bond", bond.words(), own)),
        Spread::OneAtATime | Spread::Copies => Some(ok("bond", bond.words())),
        _ => None,
    };
    bonds.into_values().filter_map(judge).collect()
}

/// Judges whether all members of a bond can carry what goes between two hosts (Documentation/networking/bonding.rst).
fn judge_bond(name: &str, bond: &Bond, members: usize) -> Option<Finding> {
    let is_answered = bond.partner.is_some_and(|partner| partner != [0; 6]);
    if bond.mode == BondMode::Lacp && !is_answered {
        let what = format!("nobody answers the LACP of {name}: one member carries everything");
        return Some(warn("bond", what, "make one link aggregation (LACP) of the switch's ports"));
    }
    if members < 2 {
        return None;
    }
    let own = "or give each NIC an address of its own, without a bond: migrations use them all";
    let what = match (bond.mode, bond.hash) {
        (BondMode::Lacp | BondMode::BalanceXor, BondHash::Layer34 | BondHash::Encap34) => return None,
        (BondMode::Lacp | BondMode::BalanceXor, hash) => format!("goes by {}", hash.word()),
        (BondMode::BalanceRr, _) => {
            let what = format!("{name} sends packets in turn (balance-rr): they arrive in disorder, which slows TCP");
            return Some(warn("bond", what, own.trim_start_matches("or ")));
        }
        // Both are meant so, and not slower than one NIC.
        (mode, _) => {
            let words = format!("{name} is a bond by {}: between two hosts it is as fast as one member", mode.word());
            return Some(ok("bond", words));
        }
    };
    let cure = format!("ip link set dev {name} type bond xmit_hash_policy layer3+4, and the switch likewise; {own}");
    Some(warn("bond", format!("{name} {what}: all between two hosts takes one member of {members}"), cure))
}

/// Warns of NICs that share a subnet.
fn subnets(nics: &[&Nic]) -> Vec<Finding> {
    let mut subnets: BTreeMap<(IpAddr, u8), Vec<&Nic>> = BTreeMap::new();
    for nic in nics {
        for address in nic.addresses.iter().filter(|address| address.usable) {
            let link_local = matches!(address.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            let subnet = subnets.entry((network(address.ip, address.prefix_len), address.prefix_len)).or_default();
            if !link_local && !subnet.iter().any(|known| known.index == nic.index) {
                subnet.push(nic);
            }
        }
    }
    let mut findings = Vec::new();
    let mut told: Vec<Vec<u32>> = Vec::new();
    for ((network, prefix), nics) in subnets.into_iter().filter(|(_, nics)| nics.len() > 1) {
        let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
        let names = names.join(" and ");
        let indices: Vec<u32> = nics.iter().map(|nic| nic.index).collect();
        if nics.iter().any(|nic| nic.mtu != nics[0].mtu) {
            let mtus: Vec<String> = nics.iter().map(|nic| format!("{} {}", nic.name, nic.mtu)).collect();
            let what = format!(
                "NICs of {network}/{prefix} have different MTUs ({}): large packets to the smaller are lost",
                mtus.join(", ")
            );
            findings.push(warn(
                "nic",
                what,
                "give all NICs of a segment, and its switch, the same MTU: ip link set dev NIC mtu N",
            ));
        }
        if !told.contains(&indices) {
            findings.push(ok(
                "nic",
                format!("{names} share {network}/{prefix}: fine, the agent keeps them apart (arp_ignore)"),
            ));
            told.push(indices);
        }
    }
    findings
}

fn network(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}

pub fn tcp() -> Vec<Finding> {
    judge_tcp(|name| std::fs::read_to_string(format!("/proc/sys/net/{}", name.replace('.', "/"))).ok())
}

/// Judges the settings of TCP. `read` returns a setting below `net.`, as text.
fn judge_tcp(read: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let last = |name: &str| read(name)?.split_whitespace().last()?.parse::<u64>().ok();
    for (name, value) in [("ipv4.tcp_rmem", "4096 131072 6291456"), ("ipv4.tcp_wmem", "4096 16384 4194304")] {
        if let Some(most) = last(name).filter(|most| *most < TCP_BUFFER_BYTES) {
            let what = format!(
                "net.{name} ends at {}: a connection holds no more, which is little for a fast or long path",
                about_bytes(most)
            );
            findings.push(warn("tcp", what, format!("sysctl -w net.{name}='{value}'")));
        }
    }
    if let Some(most) = last("core.wmem_max").filter(|most| *most < UNIX_BUFFER_BYTES) {
        let what = format!(
            "net.core.wmem_max is {}: sockets to QEMU get less than a packet of multifd, and each is more wake-ups",
            about_bytes(most)
        );
        findings.push(warn("tcp", what, format!("sysctl -w net.core.wmem_max={UNIX_BUFFER_BYTES}")));
    }
    for (name, why) in [
        ("ipv4.tcp_moderate_rcvbuf", "receive buffers stay as small as they begin"),
        ("ipv4.tcp_window_scaling", "no more than 64 KiB are on the way on a connection"),
        ("ipv4.tcp_sack", "what was sent after a lost packet is sent again"),
    ] {
        if last(name) == Some(0) {
            findings.push(warn("tcp", format!("net.{name} is 0: {why}"), format!("sysctl -w net.{name}=1")));
        }
    }
    let congestion = read("ipv4.tcp_congestion_control").map(|text| text.trim().to_owned()).unwrap_or_default();
    if ["reno", "lp", "vegas"].contains(&congestion.as_str()) {
        let what = format!("the congestion control {congestion} leaves fast links idle after a loss, or beside others");
        findings.push(warn("tcp", what, "sysctl -w net.ipv4.tcp_congestion_control=cubic"));
    }
    if findings.is_empty() {
        let with = if congestion.is_empty() { String::new() } else { format!(", {congestion}") };
        findings.push(ok("tcp", format!("buffers and options are wide enough{with}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    fn nic(name: &str, index: u32, address: &str, prefix_len: u8) -> Nic {
        let address = skein_host::InterfaceAddress { ip: address.parse().unwrap(), prefix_len, usable: true };
        Nic {
            name: name.into(),
            index,
            mtu: 1500,
            admin_up: true,
            carrier: true,
            speed_mbit: Some(10_000),
            rx_queues: 1,
            addresses: vec![address],
            ..Nic::default()
        }
    }

    fn findings(nics: &[Nic]) -> Vec<(Severity, String)> {
        let all = |_: &str| Offloads { tso: Some(true), gso: Some(true), ..Offloads::default() };
        judge(nics, all).into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    #[test]
    fn a_bond_is_judged_by_what_goes_between_two_hosts() {
        let recording = include_str!("../../../../network/tests/recordings/bond-vlan-bridge.json");
        let recording: skein_network::Recording = serde_json::from_str(recording).unwrap();
        let mut interfaces = skein_network::read(&recording).unwrap();
        let told = |of: &[Interface]| judge_interfaces(of).into_iter().map(|found| found.what).collect::<Vec<_>>();
        assert_eq!(told(&interfaces), ["nobody answers the LACP of bond0: one member carries everything"]);
        let mut with = |mode, hash, partner| {
            for of in &mut interfaces {
                if let Some(Layer::Bond(bond)) = &mut of.layer {
                    (bond.mode, bond.hash, bond.partner) = (mode, hash, partner);
                }
            }
            told(&interfaces)
        };
        let answers = Some([2, 0, 0, 0, 0, 1]);
        assert!(with(BondMode::Lacp, BondHash::Layer34, answers).is_empty());
        assert!(with(BondMode::BalanceXor, BondHash::Layer34, None).is_empty());
        let one = with(BondMode::Lacp, BondHash::Layer23, answers);
        assert_eq!(one, ["bond0 goes by layer2+3: all between two hosts takes one member of 2"]);
        let backup = with(BondMode::ActiveBackup, BondHash::Layer2, None);
        assert!(backup[0].contains("active-backup: between two hosts it is as fast as one member"), "{backup:?}");
        assert!(with(BondMode::BalanceRr, BondHash::Layer2, None)[0].contains("in disorder"));
        // A NIC in the bridge that joins packets, and a cable that is half broken.
        let bridged = interfaces.iter_mut().find(|of| of.nic.name == "bond0.7").unwrap();
        (bridged.driver.offloads.lro, bridged.driver.duplex) = (Some(true), Some(Duplex::Half));
        let told = told(&interfaces);
        assert!(told.iter().any(|what| what.contains("half duplex")), "{told:?}");
        assert!(told.iter().any(|what| what.contains("(LRO) and is in a bridge")), "{told:?}");
    }

    #[test]
    fn teams_and_open_vswitch_are_judged_by_what_they_give() {
        let read = |text: &str| skein_network::read(&serde_json::from_str::<skein_network::Recording>(text).unwrap());
        let told = |of: &[Interface]| judge_interfaces(of).into_iter().map(|found| found.what).collect::<Vec<_>>();
        let mut switch = read(include_str!("../../../../network/tests/recordings/open-vswitch.json")).unwrap();
        let mut teams = read(include_str!("../../../../network/tests/recordings/team.json")).unwrap();
        assert!(told(&switch).is_empty() && told(&teams).is_empty(), "{:?} {:?}", told(&switch), told(&teams));
        for member in switch.iter_mut().filter_map(|of| of.ovs.as_mut()).flat_map(|port| &mut port.uplinks) {
            member.members.iter_mut().for_each(|member| member.answered = Some(false));
        }
        assert_eq!(
            told(&switch),
            ["bond0 (Open vSwitch, balance-tcp) carries nothing by what Open vSwitch says, as it has no LACP"],
            "once, though two interfaces lead over it"
        );
        for team in teams.iter_mut().filter_map(|of| of.team.as_mut()) {
            team.hash = skein_network::TeamHash::None;
        }
        assert!(
            told(&teams)[0].starts_with("team0 (team, loadbalance without a hash) leads all"),
            "{:?}",
            told(&teams)
        );
        teams[0].not_known = Some("the team driver did not answer".into());
        assert!(told(&teams)[0].ends_with("is not known: the team driver did not answer"), "{:?}", told(&teams));
    }

    #[test]
    fn nics_are_judged() {
        let (a, b) = (nic("eth0", 2, "10.0.0.1", 24), nic("eth1", 3, "10.0.1.1", 24));
        assert_eq!(
            findings(&[a.clone(), b.clone()]),
            [
                (Severity::Ok, "eth0: 10 Gb/s, MTU 1500".into()),
                (Severity::Ok, "eth1: 10 Gb/s, MTU 1500".into()),
                (Severity::Ok, "2 NICs carry migrations together".into())
            ]
        );
        let unplugged = Nic { carrier: false, ..b.clone() };
        let slow = Nic { speed_mbit: Some(100), ..a.clone() };
        let said = findings(&[slow, unplugged.clone()]);
        assert_eq!(said[0], (Severity::Warn, "eth1 has addresses and no link".into()));
        assert_eq!(said[1], (Severity::Warn, "eth0: 100 Mb/s, MTU 1500".into()));
        assert!(said[2].1.starts_with("one NIC"));
        assert_eq!(findings(&[unplugged]).last().unwrap().0, Severity::Bad);
        assert_eq!(findings(&[]), [(Severity::Bad, "no NIC has a link and an address".into())]);
        let bond = Nic { speed_mbit: None, kind: Some("bond".into()), ..a };
        let port = |name: &str, index, carrier| Nic {
            master: Some(2),
            carrier,
            addresses: vec![],
            ..nic(name, index, "10.9.9.9", 8)
        };
        let said = findings(&[bond, port("p0", 7, true), port("p1", 8, false)]);
        assert_eq!(said[0].1, "eth0: 10 Gb/s, MTU 1500");
        assert_eq!(said[1], (Severity::Warn, "p1, of eth0, has no link".into()));
    }

    #[test]
    fn nics_of_one_subnet_are_told() {
        let (a, b) = (nic("eth0", 2, "10.0.0.1", 24), nic("eth1", 3, "10.0.0.200", 24));
        let said = findings(&[a.clone(), b.clone()]);
        let shared = "eth0 and eth1 share 10.0.0.0/24: fine, the agent keeps them apart (arp_ignore)";
        assert_eq!(said.last().unwrap(), &(Severity::Ok, shared.into()));
        let jumbo = Nic { mtu: 9000, ..b };
        let said = findings(&[a, jumbo]);
        assert!(
            said.iter().any(|(severity, what)| *severity == Severity::Warn && what.contains("eth0 1500, eth1 9000"))
        );
        assert_eq!(network("fd00::1:2".parse().unwrap(), 64), "fd00::".parse::<IpAddr>().unwrap());
        assert_eq!(network("10.1.2.3".parse().unwrap(), 0), "0.0.0.0".parse::<IpAddr>().unwrap());
        assert_eq!(network("10.1.2.3".parse().unwrap(), 32), "10.1.2.3".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn offloads_that_are_off_are_told() {
        let findings = judge(&[nic("eth0", 2, "10.0.0.1", 24)], |_| Offloads {
            tso: Some(false),
            gro: Some(false),
            ..Offloads::default()
        });
        assert_eq!(findings[1].cure, "ethtool -K eth0 tso on gro on");
    }

    #[test]
    fn settings_are_judged() {
        let judged = |values: &[(&str, &str)]| {
            judge_tcp(|name| values.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        let good = [("ipv4.tcp_rmem", "4096\t131072\t6291456\n"), ("ipv4.tcp_congestion_control", "bbr\n")];
        assert_eq!(judged(&good), [ok("tcp", "buffers and options are wide enough, bbr")]);
        let poor = [
            ("ipv4.tcp_rmem", "4096 131072 212992"),
            ("core.wmem_max", "212992"),
            ("ipv4.tcp_sack", "0"),
            ("ipv4.tcp_congestion_control", "reno"),
            ("ipv4.tcp_wmem", "odd"),
        ];
        let cures: Vec<String> = judged(&poor).into_iter().map(|finding| finding.cure).collect();
        assert_eq!(cures.len(), 4);
        assert_eq!(cures[1], "sysctl -w net.core.wmem_max=1048576");
    }
}
