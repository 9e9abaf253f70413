//! `skein net show`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use skein_api::{Probe, Reply, Request};
use skein_network::{BondMode, Dcb, Duplex, Interface, Layer, OvsPort, OvsUplink, Recording, Team, TeamMode, mac};
use skein_units::measured::nominal;

use super::carriers::{below, carried_by, is_guests_end};
use super::picture::Picture;
use super::probe::summaries;
use crate::commands::local::{LocalAgent, unexpected};
use crate::commands::text::{clean_line, count, fields, print, print_json};

/// How long the agent may take to say what was measured last.
const PROBES_TIME: Duration = Duration::from_secs(2);
/// How long the agent may take to ask another host: it gives up after 20 s itself.
const ASKED_TIME: Duration = Duration::from_secs(30);

/// Show a host's NICs and what stands on them, with all that decides how fast they are
///
/// Each interface stands above those that carry its traffic: a bridge above its VLAN, a bond or team above its members,
/// an interface of Open vSwitch above the NICs by which its bridge leads out of the host. Guests'
/// own ends are counted.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein net show
  skein net show hostb                as its agent sees them
  skein net show --to hostb           the networks that both hosts are in
  skein net show --evidence host.json
  skein net show --json | jq '.[].name'")]
pub struct Args {
    /// The host; else this one, which is asked without an agent
    host: Option<String>,
    /// Show what a file says that `skein doctor --evidence` wrote, on this host or another
    #[arg(long, value_name = "FILE", conflicts_with = "host")]
    evidence: Option<PathBuf>,
    /// Show how this host and that one are joined: the networks that both are in, and their NICs there
    #[arg(long, value_name = "HOST", conflicts_with_all = ["host", "evidence"])]
    to: Option<String>,
    /// A JSON array with an object an interface; with --to an object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(local: &LocalAgent, args: Args) -> anyhow::Result<()> {
    if let Some(host) = args.to {
        return joined(local, host, args.json);
    }
    let is_own = args.host.is_none() && args.evidence.is_none();
    let interfaces = match (args.host, args.evidence) {
        (Some(name), _) => of_host(local, name)?,
        (None, Some(file)) => {
            let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let of_file = || format!("{} was not written by skein doctor --evidence", file.display());
            let recording: Recording = serde_json::from_str(&text).with_context(of_file)?;
            skein_network::read(&recording).with_context(of_file)?
        }
        (None, None) => skein_network::read(&skein_host::Kernel::new())?,
    };
    if args.json {
        return print_json(&interfaces);
    }
    let probes = if is_own { measured(local) } else { Vec::new() };
    print(&(shown(&interfaces) + &summaries(&probes)))
}

/// Shows how this host is joined to another.
fn joined(local: &LocalAgent, host: String, json: bool) -> anyhow::Result<()> {
    let picture = Picture::of(&skein_network::read(&skein_host::Kernel::new())?, &of_host(local, host.clone())?);
    if json {
        return print_json(&picture);
    }
    let probes: Vec<Probe> = measured(local).into_iter().filter(|probe| probe.to == host).collect();
    let what_passes = if probes.is_empty() {
        format!("what passes there was not measured: skein net probe --to {}\n", clean_line(&host))
    } else {
        summaries(&probes)
    };
    print(&(picture.text(&host) + &what_passes))
}

/// Asks this host's agent for another host's interfaces.
fn of_host(local: &LocalAgent, name: String) -> anyhow::Result<Vec<Interface>> {
    match local.client().call(&Request::NetShow { name }, ASKED_TIME)? {
        Reply::Network { interfaces } => Ok(interfaces),
        reply => Err(unexpected(&reply).into()),
    }
}

/// Returns what this host's agent measured last of others: without an agent nothing.
fn measured(local: &LocalAgent) -> Vec<Probe> {
    match local.client().call(&Request::NetProbes, PROBES_TIME) {
        Ok(Reply::Probes { probes }) => probes,
        _ => Vec::new(),
    }
}

/// Returns all interfaces as text: those on which nothing stands, and below each what it stands on.
fn shown(interfaces: &[Interface]) -> String {
    let mut text = String::new();
    let mut told = BTreeSet::new();
    let carries_another = |of: &Interface| {
        of.nic.master.is_some()
            || interfaces.iter().any(|upper| below(interfaces, upper).any(|under| under.nic.index == of.nic.index))
    };
    let is_hidden = |of: &&Interface| is_guests_end(of) || is_idle(of);
    let tops = interfaces.iter().filter(|of| !carries_another(of) && !is_hidden(of));
    for top in tops {
        tree(interfaces, top, 0, &mut told, &mut text);
    }
    // Whatever stands in a circle, or upon what is in another network namespace.
    for rest in interfaces.iter().filter(|of| !is_hidden(of)) {
        if !told.contains(&rest.nic.index) {
            tree(interfaces, rest, 0, &mut told, &mut text);
        }
    }
    if text.is_empty() { "no interface but loopback\n".into() } else { text }
}

/// Returns whether an interface is there only because a module made it.
fn is_idle(of: &Interface) -> bool {
    let nic = &of.nic;
    !nic.admin_up && nic.addresses.is_empty() && nic.kind.is_some() && nic.master.is_none() && of.layer.is_none()
}

fn tree(all: &[Interface], of: &Interface, depth: usize, told: &mut BTreeSet<u32>, text: &mut String) {
    let indent = "  ".repeat(depth);
    let name = clean_line(&of.nic.name);
    if !told.insert(of.nic.index) {
        *text += &format!("{indent}{name} (above)\n");
        return;
    }
    *text += &format!("{indent}{name}: {}\n", summary(of));
    for line in fields(&details(of)).lines() {
        *text += &format!("{indent}  {line}\n");
    }
    for below in carried_by(all, of) {
        tree(all, below, depth + 1, told, text);
    }
    let guests: Vec<&Interface> = below(all, of).filter(|below| is_guests_end(below)).collect();
    if !guests.is_empty() {
        told.extend(guests.iter().map(|of| of.nic.index));
        *text += &format!("{indent}  {} of guests\n", count(guests.len(), "end"));
    }
}

/// Returns what matters most of an interface, in one line.
fn summary(of: &Interface) -> String {
    let nic = &of.nic;
    let mut words = vec![match (nic.admin_up, nic.carrier) {
        (true, true) => "up".to_owned(),
        (true, false) => "NO LINK".to_owned(),
        (false, _) => "off".to_owned(),
    }];
    words.extend(kind(of));
    words.push(nic.speed_mbit.map_or("speed not known".into(), |mbit| nominal(u64::from(mbit) * 1_000_000)));
    if of.driver.duplex == Some(Duplex::Half) {
        words.push("HALF DUPLEX".into());
    }
    words.push(format!("MTU {}", nic.mtu));
    words.join(", ")
}

fn kind(of: &Interface) -> Option<String> {
    Some(match (&of.layer, of.nic.kind.as_deref()) {
        (Some(Layer::Bond(bond)), _) => match bond.mode {
            BondMode::BalanceXor | BondMode::Lacp | BondMode::BalanceTlb => {
                format!("bond {} by {}", bond.mode.word(), bond.hash.word())
            }
            mode => format!("bond {}", mode.word()),
        },
        (Some(Layer::Vlan { id }), _) => format!("VLAN {id}"),
        (Some(Layer::Macvlan { mode }), kind) => format!("{} {}", kind.unwrap_or_default(), clean_line(mode)),
        (None, Some("team")) => of.team.as_ref().map_or_else(|| "team".into(), team),
        (None, _) if let Some(port) = &of.ovs => {
            let vlan = port.vlan.map(|vlan| format!(", VLAN {vlan}")).unwrap_or_default();
            format!("Open vSwitch {}{vlan}", clean_line(&port.bridge))
        }
        (None, Some("openvswitch")) => "Open vSwitch".into(),
        (None, Some(kind)) => clean_line(kind),
        (None, None) => clean_line(of.driver.name.as_deref()?),
    })
}

/// Returns a team's runner or mode, and what its hash goes by.
fn team(of: &Team) -> String {
    match of.mode {
        TeamMode::LoadBalance => format!("team {} by {}", clean_line(of.word()), clean_line(&of.hash.words())),
        _ => format!("team {}", clean_line(of.word())),
    }
}

/// Returns where Open vSwitch leads an interface.
fn ways(port: &OvsPort) -> String {
    let ways: Vec<String> = port.uplinks.iter().map(way).collect();
    match ways.as_slice() {
        [] => "nowhere out of this host".into(),
        [one] => one.clone(),
        several => format!("{}: its flows decide", several.join(", or ")),
    }
}

fn way(uplink: &OvsUplink) -> String {
    let mut words = vec![match &uplink.bond {
        Some(bond) => format!("{} (bond {}", clean_line(&uplink.port), bond.mode.word()),
        None => clean_line(&uplink.port),
    }];
    if uplink.bond.is_some() {
        let lacp = match (uplink.is_answered(), uplink.mode_now()) {
            (Some(true), _) => format!(", LACP with {}", count(uplink.sending().count(), "member")),
            (Some(false), Some(_)) => ", LACP that NOBODY ANSWERS: as active-backup".into(),
            (Some(false), None) => ", LACP that NOBODY ANSWERS: it carries NOTHING".into(),
            (None, None) => ", without LACP: it carries NOTHING".into(),
            (None, Some(_)) => String::new(),
        };
        words.push(format!("{lacp})"));
    }
    let unseen = uplink.members.iter().filter(|member| member.index.is_none()).map(|member| clean_line(&member.name));
    let unseen = unseen.collect::<Vec<_>>().join(", ");
    if !unseen.is_empty() {
        words.push(format!(", the kernel does not have {unseen}"));
    }
    if let Some(vlan) = uplink.vlan {
        words.push(format!(", VLAN {vlan}"));
    }
    if uplink.bridges.len() > 1 {
        let bridges = uplink.bridges.iter().map(|name| clean_line(name)).collect::<Vec<_>>().join(" > ");
        words.push(format!(", by {bridges}"));
    }
    words.concat()
}

fn details(of: &Interface) -> Vec<(&'static str, String)> {
    let nic = &of.nic;
    let driver = &of.driver;
    let addresses = nic.addresses.iter().map(|address| {
        let note = if address.usable { "" } else { " (not usable)" };
        format!("{}/{}{note}", address.ip, address.prefix_len)
    });
    let mut details = vec![("addresses", addresses.collect::<Vec<_>>().join(", "))];
    if let Some(Layer::Bond(bond)) = &of.layer
        && bond.mode == BondMode::Lacp
    {
        let partner = match bond.partner {
            Some(mac) if mac != [0; 6] => format!("with {}", mac::text(mac)),
            _ => "NOBODY ANSWERS".into(),
        };
        details.push(("LACP", format!("{}, {partner}", count(bond.aggregated.unwrap_or(0).into(), "member"))));
    }
    if let Some(port) = &of.bond_port {
        let state = if port.active { "active" } else { "waits" };
        let link = if port.link { "" } else { ", without a link" };
        let failures = if port.failures > 0 {
            format!(", failed {}", count(port.failures as usize, "time"))
        } else {
            String::new()
        };
        details.push(("in the bond", format!("{state}{link}{failures}")));
    }
    let in_team = of.team_port.map(|port| if port.active { "active" } else { "waits" }.to_owned());
    let of_others = [
        ("in the team", in_team),
        ("leads to", of.ovs.as_ref().map(ways)),
        ("NOT KNOWN", of.not_known.as_deref().map(clean_line)),
    ];
    details.extend(of_others.into_iter().filter_map(|(name, words)| Some((name, words?))));
    let firmware = driver.firmware.as_ref().map(|version| format!(", firmware {version}")).unwrap_or_default();
    if of.device.is_some() {
        details.push(("driver", driver.name.as_ref().map(|name| format!("{name}{firmware}")).unwrap_or_default()));
    }
    details.push(("queues", queues(of)));
    if let Some(device) = &of.device {
        let near = device.near_cores.as_ref().map(|cores| format!("near cores {cores}"));
        let node = device.numa_node.map(|node| format!("NUMA node {node}"));
        let place = [Some(format!("{} {}", device.bus, device.name)), device.slot.clone(), node, near];
        details.push(("place", place.into_iter().flatten().collect::<Vec<_>>().join(", ")));
        details.push(("interrupts", interrupts(of)));
        details.push((
            "functions",
            match (device.functions, device.functions_max, device.is_function) {
                (_, _, true) => "a virtual function itself".into(),
                (Some(used), Some(max), _) if max > 0 => format!("{used} of {max} virtual functions (SR-IOV)"),
                _ => String::new(),
            },
        ));
    }
    let rdma = of.rdma.iter().map(|port| {
        let state = if port.active { "active" } else { "NOT ACTIVE" };
        format!("{} port {}, {}, {}, {state}", port.device, port.port, port.link_layer, port.rate)
    });
    details.push(("RDMA", rdma.collect::<Vec<_>>().join("; ")));
    details.push(("DCB", of.dcb.as_ref().map(dcb).unwrap_or_default()));
    if of.device.is_some() {
        details.push(("offloads", offloads(of)));
    }
    details.push(("qdisc", of.qdisc.clone().filter(|kind| kind != "noqueue").unwrap_or_default()));
    details.push(("trouble", trouble(of)));
    details
}

fn queues(of: &Interface) -> String {
    let part = |used: u32, max: u32, what: &str| (max > 0).then(|| format!("{used} of {max}{what}"));
    let channels = of.driver.channels.map(|channels| {
        let parts = [
            part(channels.combined, channels.combined_max, ""),
            part(channels.rx, channels.rx_max, " received"),
            part(channels.tx, channels.tx_max, " sent"),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    });
    let rings = of.driver.rings.filter(|_| of.device.is_some());
    let rings = rings.map(|rings| {
        format!("; rings {} of {} received, {} of {} sent", rings.rx, rings.rx_max, rings.tx, rings.tx_max)
    });
    match channels.filter(|words| !words.is_empty()) {
        Some(words) => words + &rings.unwrap_or_default(),
        None if of.device.is_some() => {
            format!("{} received, {} sent{}", of.nic.rx_queues, of.tx_queues, rings.unwrap_or_default())
        }
        None => String::new(),
    }
}

/// Returns how many interrupts there are, and the cores that they go to.
fn interrupts(of: &Interface) -> String {
    let list = of.device.iter().flat_map(|device| &device.interrupts);
    let cores: BTreeSet<&str> = list.clone().filter_map(|interrupt| interrupt.cores.as_deref()).collect();
    let cores: Vec<&str> = cores.into_iter().collect();
    match (list.count(), cores.len()) {
        (0, _) => String::new(),
        (number, 0) => number.to_string(),
        (number, 1..=8) => format!("{number}, to cores {}", cores.join(" ")),
        (number, sets) => format!("{number}, to {sets} sets of cores"),
    }
}

fn dcb(dcb: &Dcb) -> String {
    let mut words = Vec::new();
    if let Some(pfc) = &dcb.pfc {
        let list = pfc.priorities.iter().map(u8::to_string).collect::<Vec<_>>().join(" ");
        words.push(if list.is_empty() {
            "no priority is paused".into()
        } else {
            format!("priorities {list} are paused")
        });
    }
    if let Some(ets) = &dcb.ets {
        let shares = ets.share_percent.iter().enumerate().filter_map(|(class, share)| Some((class, share.as_ref()?)));
        let shares =
            shares.filter(|(_, share)| **share > 0).map(|(class, share)| format!("{share} % for class {class}"));
        let shares = shares.collect::<Vec<_>>().join(", ");
        words.push(if shares.is_empty() { "no shares".into() } else { shares });
        if ets.willing {
            words.push("takes the switch's word".into());
        }
    }
    if let Some(dcbx) = dcb.dcbx {
        words.push(format!("DCBX by {}", if dcbx.host { "a program of the host" } else { "the NIC" }));
    }
    words.join("; ")
}

fn offloads(of: &Interface) -> String {
    let has = of.driver.offloads;
    let list = [
        ("tso", has.tso),
        ("gso", has.gso),
        ("gro", has.gro),
        ("lro", has.lro),
        ("tx checksum", has.tx_checksum),
        ("rx checksum", has.rx_checksum),
    ];
    let words =
        list.into_iter().filter_map(|(name, on)| Some(if on? { name.to_owned() } else { format!("no {name}") }));
    words.collect::<Vec<_>>().join(", ")
}

fn trouble(of: &Interface) -> String {
    let counters = of.nic.counters;
    let list = [
        ("received broken", counters.rx_errors),
        ("dropped on receipt", counters.rx_dropped),
        ("not sent", counters.tx_errors),
        ("dropped before sending", counters.tx_dropped),
    ];
    let words = list.into_iter().filter(|(_, number)| *number > 0).map(|(what, number)| format!("{number} {what}"));
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_tree_of_what_carries_what() {
        let recording = include_str!("../../../../network/tests/recordings/bond-vlan-bridge.json");
        let recording: Recording = serde_json::from_str(recording).unwrap();
        let interfaces = skein_network::read(&recording).unwrap();
        let text = shown(&interfaces);
        let firsts: Vec<&str> = text.lines().filter(|line| line.contains(": ")).collect();
        assert_eq!(
            firsts,
            [
                "vmbr7: up, bridge, 1 Gb/s, MTU 1500",
                "  bond0.7: up, VLAN 7, 1 Gb/s, MTU 1500",
                "    bond0: up, bond 802.3ad by layer3+4, 1 Gb/s, MTU 1500",
                "      eth0: up, igb, 1 Gb/s, MTU 1500",
                "      eth1: up, igb, 1 Gb/s, MTU 1500",
                "mv0: off, macvlan bridge, 1 Gb/s, MTU 1500",
            ]
        );
        for line in [
            "        LACP       1 member, NOBODY ANSWERS",
            "          in the bond  waits",
            "          queues       2 of 8; rings 256 of 4096 received, 256 of 4096 sent",
            "          functions    0 of 7 virtual functions (SR-IOV)",
            "  1 end of guests",
            "  bond0 (above)",
        ] {
            assert!(text.lines().any(|found| found == line), "'{line}' is not in:\n{text}");
        }
        assert!(!text.contains("ifb0"), "nobody made that: {text}");
    }

    #[test]
    fn open_vswitch_and_teams_are_seen_through() {
        let read = |text: &str| skein_network::read(&serde_json::from_str::<Recording>(text).unwrap()).unwrap();
        let has = |text: &str, lines: &[&str]| {
            for line in lines {
                assert!(text.lines().any(|found| found == *line), "'{line}' is not in:\n{text}");
            }
        };
        let mut switch = read(include_str!("../../../../network/tests/recordings/open-vswitch.json"));
        let text = shown(&switch);
        has(
            &text,
            &[
                "br-ex: up, Open vSwitch br-ex, 2 Gb/s, MTU 1500",
                "    leads to   bond0 (bond balance-tcp, LACP with 2 members)",
                "  eth0: up, igb, 1 Gb/s, MTU 1500",
                "mig0: up, Open vSwitch br-int, VLAN 7, 2 Gb/s, MTU 1500",
                "    leads to   bond0 (bond balance-tcp, LACP with 2 members), by br-int > br-ex",
                "  eth1 (above)",
            ],
        );
        assert!(!text.contains("tap0") && !text.contains("ovs-system"), "{text}");
        let port = switch.iter_mut().find(|of| of.nic.name == "mig0").unwrap().ovs.as_mut().unwrap();
        for member in &mut port.uplinks[0].members {
            (member.answered, member.index) = (Some(false), None);
        }
        let lonely = "bond0 (bond balance-tcp, LACP that NOBODY ANSWERS: it carries NOTHING), the kernel does not have \
                      eth0, eth1, by br-int > br-ex";
        assert_eq!(ways(port), lonely);
        port.uplinks[0].bond.as_mut().unwrap().fallback = true;
        assert!(ways(port).contains("LACP that NOBODY ANSWERS: as active-backup"), "{}", ways(port));
        let other = skein_network::OvsUplink {
            port: "eth5".into(),
            bond: None,
            vlan: Some(9),
            members: vec![],
            ..port.uplinks[0].clone()
        };
        port.uplinks.push(other);
        assert!(ways(port).ends_with(", or eth5, VLAN 9, by br-int > br-ex: its flows decide"), "{}", ways(port));
        port.uplinks.clear();
        assert_eq!(ways(port), "nowhere out of this host");

        let mut teams = read(include_str!("../../../../network/tests/recordings/team.json"));
        has(
            &shown(&teams),
            &[
                "team0: up, team loadbalance by ip, l4, 2 Gb/s, MTU 1500",
                "  eth0: up, igb, 1 Gb/s, MTU 1500",
                "      in the team  active",
                "team1: up, team activebackup, speed not known, MTU 1500",
                "      in the team  waits",
            ],
        );
        let team = teams.iter_mut().find(|of| of.nic.name == "team0").unwrap();
        (team.team, team.not_known) = (None, Some("the team driver did not answer".into()));
        has(&shown(&teams), &["team0: up, team, 2 Gb/s, MTU 1500", "    NOT KNOWN  the team driver did not answer"]);
    }

    #[test]
    fn a_nics_rdma_devices_are_told_with_their_state() {
        let recording = include_str!("../../../../network/tests/recordings/bond-vlan-bridge.json");
        let mut recording: serde_json::Value = serde_json::from_str(recording).unwrap();
        let class = "/sys/class/infiniband";
        recording[format!("directory {class}")] = serde_json::json!({ "names": ["mlx5_0", "mlx5_1"] });
        let files = [
            ("mlx5_0", [("state", "4: ACTIVE\n"), ("link_layer", "Ethernet\n"), ("rate", "100 Gb/sec (4X EDR)\n")]),
            ("mlx5_1", [("state", "1: DOWN\n"), ("link_layer", "InfiniBand\n"), ("rate", "40 Gb/sec\u{1b}[2J\n")]),
        ];
        for (device, files) in files {
            recording[format!("directory {class}/{device}/ports")] = serde_json::json!({ "names": ["1"] });
            let port = format!("{class}/{device}/ports/1");
            recording[format!("directory {port}/gid_attrs/ndevs")] = serde_json::json!({ "names": ["0"] });
            for (file, text) in files.into_iter().chain([("gid_attrs/ndevs/0", "eth0\n")]) {
                recording[format!("file {port}/{file}")] = serde_json::json!({ "text": text });
            }
        }
        let recording: Recording = serde_json::from_value(recording).unwrap();
        let text = shown(&skein_network::read(&recording).unwrap());
        let told = text.lines().filter_map(|line| line.trim().strip_prefix("RDMA "));
        let told: Vec<&str> = told.map(str::trim).collect();
        let first = "mlx5_0 port 1, Ethernet, 100 Gb/sec (4X EDR), active";
        let second = "mlx5_1 port 1, InfiniBand, 40 Gb/sec\u{fffd}[2J, NOT ACTIVE";
        assert_eq!(told, [format!("{first}; {second}")], "{text}");
        let below = text.split("eth0: ").nth(1).and_then(|rest| rest.split("eth1: ").next()).unwrap();
        assert!(below.contains(first), "it is eth0's: {text}");
    }

    #[test]
    fn interfaces_in_a_circle_are_shown_once() {
        let recording = include_str!("../../../../network/tests/recordings/bond-vlan-bridge.json");
        let mut interfaces = skein_network::read(&serde_json::from_str::<Recording>(recording).unwrap()).unwrap();
        let bond = interfaces.iter().position(|of| of.nic.name == "bond0").unwrap();
        interfaces[bond].nic.lower = interfaces.iter().find(|of| of.nic.name == "bond0.7").map(|of| of.nic.index);
        interfaces[bond].nic.master = interfaces[bond].nic.lower;
        let text = shown(&interfaces);
        assert_eq!(text.matches("bond0: up").count(), 1, "{text}");
    }
}
