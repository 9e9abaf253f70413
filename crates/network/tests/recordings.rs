//! Reads hosts from recordings of what their kernels said (`skein doctor --evidence`).
//!
//! `bond-vlan-bridge.json`: Debian 12's kernel with two emulated Intel NICs (igb) in an 802.3ad bond whose other end
//! nobody is, a VLAN on that, a bridge on the VLAN with a guest's tap, and a macvlan.
//! `open-vswitch.json`, `team.json`: the same kernel with Open vSwitch 3.1 and with teamd 1.31 (`scripts/ovs-team.sh`).

use proptest::prelude::*;
use serde_json::{Value, json};
use skein_network::{
    Answer, AnyBond, Ask, BondHash, BondMode, Channels, DcbEnd, Duplex, Interface, Layer, NicDcb, OvsBondMode,
    Recording, Source, Spread, TeamHash, TeamMode, bond_below, carriers, compare_dcb, dcb_of, near_cores, queues, read,
};

fn recording() -> Recording {
    serde_json::from_str(include_str!("recordings/bond-vlan-bridge.json")).unwrap()
}

fn named<'a>(interfaces: &'a [Interface], name: &str) -> &'a Interface {
    interfaces.iter().find(|of| of.nic.name == name).unwrap_or_else(|| panic!("{name} is not there"))
}

#[test]
fn bonds_are_seen_through_vlans_and_bridges() {
    let interfaces = read(&recording()).unwrap();
    let bridge = named(&interfaces, "vmbr7");
    assert_eq!((bridge.uplink.as_deref(), bridge.nic.speed_mbit), (Some("bond0"), Some(1000)));
    assert_eq!(named(&interfaces, "bond0.7").layer, Some(Layer::Vlan { id: 7 }));
    assert_eq!(named(&interfaces, "bond0.7").port_of.as_deref(), Some("vmbr7"));
    assert_eq!(named(&interfaces, "mv0").layer, Some(Layer::Macvlan { mode: "bridge".into() }));
    let Some(Layer::Bond(bond)) = &named(&interfaces, "bond0").layer else { panic!("it is a bond") };
    assert_eq!((bond.mode, bond.hash, bond.aggregated), (BondMode::Lacp, BondHash::Layer34, Some(1)));
    assert_eq!(bond.partner, Some([0; 6]), "nobody answers");
    let ports = ["eth0", "eth1"].map(|name| named(&interfaces, name).bond_port.clone().unwrap());
    assert_eq!(ports.each_ref().map(|port| (port.active, port.link)), [(true, true), (false, true)]);
    assert_eq!(ports[1].own_mac, Some([0x52, 0x54, 0, 0, 0, 2]), "as a member it has the bond's");
}

#[test]
fn a_nic_is_known_by_its_driver_and_place() {
    let interfaces = read(&recording()).unwrap();
    let nic = named(&interfaces, "eth0");
    assert_eq!((nic.driver.name.as_deref(), nic.driver.duplex), (Some("igb"), Some(Duplex::Full)));
    let channels = nic.driver.channels.unwrap();
    assert_eq!((channels.combined, channels.combined_max), (2, 8));
    assert_eq!(nic.driver.rings.map(|rings| (rings.rx, rings.rx_max)), Some((256, 4096)));
    let device = nic.device.as_ref().unwrap();
    assert_eq!((device.bus.as_str(), device.name.as_str(), device.numa_node), ("pci", "0000:01:00.0", None));
    assert_eq!((device.functions, device.functions_max, device.is_function), (Some(0), Some(7), false));
    let names: Vec<&str> = device.interrupts.iter().map(|interrupt| interrupt.name.as_str()).collect();
    assert!(names.contains(&"eth0-rx-0"), "{names:?}");
    assert!(device.interrupts.iter().all(|interrupt| interrupt.cores.is_some()));
    assert_eq!((nic.qdisc.as_deref(), nic.dcb.as_ref()), (Some("mq"), None));
}

#[test]
fn what_carries_a_bridge_is_found_below_vlan_and_bond() {
    let mut interfaces = read(&recording()).unwrap();
    let names = |interfaces: &[Interface], of: &str| -> Vec<String> {
        carriers(interfaces, of).into_iter().map(|of| of.nic.name.clone()).collect()
    };
    for above in ["vmbr7", "bond0.7", "bond0", "eth0"] {
        assert_eq!(names(&interfaces, above), ["eth0"], "{above}: eth1 waits");
        assert_eq!(queues(&interfaces, above), Some(2), "{above}");
    }
    let bond = bond_below(&interfaces, "vmbr7").unwrap();
    assert_eq!((bond.name.as_str(), bond.members, bond.is_by_ports()), ("bond0", 1, true));
    assert_eq!((bond_below(&interfaces, "eth0"), queues(&interfaces, "eth9")), (None, None));
    // The other end answers, so that both carry; one has fewer queues than its driver has room for.
    for of in &mut interfaces {
        if let Some(port) = &mut of.bond_port {
            (port.active, of.nic.admin_up, of.nic.carrier) = (true, true, true);
        }
        if let Some(Layer::Bond(bond)) = &mut of.layer {
            bond.aggregated = Some(2);
        }
        if of.nic.name == "eth1" {
            of.driver.channels = of.driver.channels.map(|channels| Channels { combined: 1, ..channels });
        }
    }
    assert_eq!(names(&interfaces, "vmbr7"), ["eth0", "eth1"]);
    assert_eq!((bond_below(&interfaces, "vmbr7").unwrap().members, queues(&interfaces, "vmbr7")), (2, Some(1)));
}

/// A host whose NIC has what no emulated NIC has: files as the kernel's documentation has them
/// (Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/sysfs-bus-pci).
struct WithRdma(Recording);

impl Source for WithRdma {
    fn ask(&self, ask: &Ask) -> Answer {
        let text = |text: &str| Answer::Text(text.to_owned());
        let names = |names: &[&str]| Answer::Names(names.iter().map(|name| (*name).to_owned()).collect());
        match ask.to_string().as_str() {
            "directory /sys/class/infiniband" => names(&["mlx5_0", "mlx5_1"]),
            "directory /sys/class/infiniband/mlx5_0/ports" => names(&["1"]),
            "directory /sys/class/infiniband/mlx5_1/ports" => names(&["1", "odd"]),
            "directory /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs" => names(&["0", "1", "10"]),
            "file /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1" => text("eth0\n"),
            "file /sys/class/infiniband/mlx5_0/ports/1/state" => text("4: ACTIVE\n"),
            "file /sys/class/infiniband/mlx5_0/ports/1/link_layer" => text("Ethernet\n"),
            "file /sys/class/infiniband/mlx5_0/ports/1/rate" => text("25 Gb/sec (1X EDR)\n"),
            "directory /sys/class/infiniband/mlx5_1/device/net" => names(&["eth1"]),
            "file /sys/class/infiniband/mlx5_1/ports/1/state" => text("1: DOWN\n"),
            "file /sys/bus/pci/devices/0000:01:00.0/numa_node" => text("1\n"),
            "file /sys/bus/pci/devices/0000:02:00.0/numa_node" => text("-1\n"),
            "file /sys/devices/system/node/online" => text("0-1\n"),
            "file /sys/devices/system/node/node1/cpulist" => text("8-15,24-31\n"),
            _ => self.0.ask(ask),
        }
    }
}

#[test]
fn rdma_ports_belong_to_the_nics_whose_cable_they_share() {
    let interfaces = read(&WithRdma(recording())).unwrap();
    let [first, second] = ["eth0", "eth1"].map(|name| named(&interfaces, name));
    let port = &first.rdma[0];
    assert_eq!((port.device.as_str(), port.port, port.active), ("mlx5_0", 1, true));
    assert_eq!((port.link_layer.as_str(), port.rate.as_str()), ("Ethernet", "25 Gb/sec (1X EDR)"));
    assert_eq!((second.rdma[0].device.as_str(), second.rdma[0].active), ("mlx5_1", false));
    assert_eq!((first.rdma.len(), second.rdma.len()), (1, 1));
    let node = |of: &Interface| of.device.as_ref().unwrap().numa_node;
    assert_eq!((node(first), node(second)), (Some(1), None));
}

/// Documentation/ABI/stable/sysfs-devices-node: `online`, and `cpulist` of each node.
#[test]
fn threads_of_a_path_run_near_its_nic() {
    let source = WithRdma(recording());
    let interfaces = read(&source).unwrap();
    let near = |of: &str| near_cores(&source, &interfaces, of).map(|cores| cores.to_string());
    assert_eq!((near("eth0"), near("vmbr7")), (Some("8-15,24-31".into()), Some("8-15,24-31".into())));
    assert_eq!((near("eth1"), near("eth9")), (None, None), "the firmware does not say, and there is no such NIC");
    // The recorded host has one node.
    assert_eq!(near_cores(&recording(), &interfaces, "eth0"), None);
}

/// A host whose NICs say of DCB what a test wants: the answer to `DCB_CMD_IEEE_GET` as the kernel makes it
/// (`dcbnl_ieee_fill` of net/dcb/dcbnl.c).
struct WithDcb {
    of: WithRdma,
    /// The priorities that are paused, the share of class 1, which has the priority 3, RoCE's priority, and DCBX.
    paused: Vec<u8>,
    share: u8,
    roce: Option<u8>,
    dcbx: u8,
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

impl Source for WithDcb {
    fn ask(&self, ask: &Ask) -> Answer {
        if !matches!(ask, Ask::Dcb(nic) if nic == "eth0") {
            return self.of.ask(ask);
        }
        let mut ets = vec![0, 8, 0, 100 - self.share, self.share, 0, 0, 0, 0, 0, 0];
        ets.extend([0; 8]);
        ets.extend([2, 2, 0, 0, 0, 0, 0, 0]);
        ets.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        ets.extend([0; 24]);
        let mut pfc = vec![0; 136];
        (pfc[0], pfc[1]) = (8, self.paused.iter().fold(0, |mask, priority| mask | 1 << priority));
        let port = 4791_u16.to_ne_bytes();
        let entries = self.roce.map(|priority| attribute(1, &[3, priority, port[0], port[1]])).unwrap_or_default();
        let ieee = [attribute(1, &ets), attribute(2, &pfc), attribute(3, &entries)].concat();
        let name = attribute(1, b"eth0\0");
        Answer::Bytes([vec![0; 4], name, attribute(13, &ieee), attribute(14, &[self.dcbx])].concat())
    }
}

#[test]
fn dcb_of_both_ends_is_compared_with_what_rdma_needs() {
    let host = |paused: &[u8], share, roce, dcbx| {
        let source = WithDcb { of: WithRdma(recording()), paused: paused.to_vec(), share, roce, dcbx };
        // The bridge's traffic goes over eth0, as eth1 waits.
        dcb_of(&read(&source).unwrap(), "vmbr7").remove(0)
    };
    let found = |a: &NicDcb, b: &NicDcb| -> Vec<String> {
        let ends = [DcbEnd { host: "a", nic: a }, DcbEnd { host: "b", nic: b }];
        compare_dcb(ends).into_iter().map(|mismatch| mismatch.what).collect()
    };
    let right = host(&[3], 50, Some(3), 9);
    assert_eq!((right.rdma, right.nic.as_str()), (true, "eth0"));
    assert!(found(&right, &right).is_empty());
    let says = |other: &NicDcb, wanted: &[&str]| assert_eq!(found(&right, other), wanted);
    says(
        &host(&[4], 50, Some(4), 9),
        &[
            "the priorities that are paused (PFC) differ: 3 at eth0 of a, 4 at eth0 of b",
            "the priorities of RoCE's packets (UDP 4791) differ: 3 at eth0 of a, 4 at eth0 of b",
        ],
    );
    says(
        &host(&[4], 50, Some(3), 9),
        &[
            "the priorities that are paused (PFC) differ: 3 at eth0 of a, 4 at eth0 of b",
            "RoCE's packets have the priority 3 at eth0 of b, and these are paused (PFC) there: 4",
        ],
    );
    says(
        &host(&[3], 50, None, 9),
        &["the priorities of RoCE's packets (UDP 4791) differ: 3 at eth0 of a, none at eth0 of b"],
    );
    says(
        &host(&[3], 30, Some(3), 9),
        &["the shares (ETS) of the priority 3, which RDMA has, differ: 50 % at eth0 of a, 30 % at eth0 of b"],
    );
    says(&host(&[3], 0, Some(3), 9), &["the priority 3, which RDMA has, has no share (ETS) at eth0 of b"]);
    says(
        &host(&[3], 50, Some(3), 4 + 2),
        &["DCBX differs: IEEE's by a program of the host at eth0 of a, CEE by the NIC's firmware at eth0 of b"],
    );
    // A host without DCB, and one that has RDMA and nothing set up for it.
    let none = NicDcb { nic: "eth5".into(), rdma: true, dcb: None };
    assert_eq!(found(&right, &none).len(), 2, "PFC, and the entry");
    assert_eq!(
        found(&none, &none),
        ["no priority is paused (PFC) at eth5 of a and eth5 of b: RoCE loses packets there"]
    );
    let no_rdma = NicDcb { rdma: false, ..none.clone() };
    assert!(found(&no_rdma, &none).is_empty() && found(&no_rdma, &no_rdma).is_empty());
    let unused = NicDcb { rdma: false, ..host(&[], 50, None, 9) };
    assert!(found(&unused, &no_rdma).is_empty(), "DCB that does nothing for RDMA");
}

fn open_vswitch() -> Recording {
    serde_json::from_str(include_str!("recordings/open-vswitch.json")).unwrap()
}

fn teams() -> Recording {
    serde_json::from_str(include_str!("recordings/team.json")).unwrap()
}

/// A recording in which questions of a kind have another answer.
struct Edited {
    of: Recording,
    question: &'static str,
    answer: Answer,
}

impl Source for Edited {
    fn ask(&self, ask: &Ask) -> Answer {
        if ask.to_string().starts_with(self.question) { self.answer.clone() } else { self.of.ask(ask) }
    }
}

fn names<'a>(interfaces: impl IntoIterator<Item = &'a Interface>) -> Vec<&'a str> {
    interfaces.into_iter().map(|of| of.nic.name.as_str()).collect()
}

#[test]
fn open_vswitch_is_seen_through_to_the_nics_of_its_bond() {
    let interfaces = read(&open_vswitch()).unwrap();
    let port = named(&interfaces, "mig0");
    let of = port.ovs.as_ref().unwrap();
    assert_eq!((of.bridge.as_str(), of.vlan), ("br-int", Some(7)));
    let uplink = of.only_uplink().unwrap();
    assert_eq!((uplink.port.as_str(), uplink.vlan), ("bond0", None));
    assert_eq!(uplink.bridges, ["br-int", "br-ex"], "by the patch port");
    let bond = uplink.bond.unwrap();
    assert_eq!((bond.mode, bond.lacp, bond.fallback), (OvsBondMode::BalanceTcp, true, false));
    let members: Vec<_> = uplink.members.iter().map(|of| (of.name.as_str(), of.index, of.link, of.answered)).collect();
    let number = |name: &str| Some(named(&interfaces, name).nic.index);
    assert_eq!(members, [("eth0", number("eth0"), true, Some(true)), ("eth1", number("eth1"), true, Some(true))]);
    assert_eq!((port.uplink.as_deref(), port.nic.speed_mbit), (Some("eth0"), Some(2000)));
    for name in ["mig0", "br-ex"] {
        assert_eq!(names(carriers(&interfaces, name)), ["eth0", "eth1"], "{name}");
        assert_eq!(queues(&interfaces, name), Some(2), "{name}");
        let bond = bond_below(&interfaces, name).unwrap();
        assert_eq!((bond.name.as_str(), bond.members, bond.spread()), ("bond0", 2, Spread::ByChance), "{name}");
    }
    // A guest's end, and the kernel's own interface of the datapath.
    for name in ["tap0", "ovs-system", "eth0"] {
        assert_eq!((&named(&interfaces, name).ovs, bond_below(&interfaces, name)), (&None, None), "{name}");
    }
}

#[test]
fn what_stands_on_open_vswitch_goes_over_its_bond() {
    let mut interfaces = read(&open_vswitch()).unwrap();
    let mut vlan = named(&interfaces, "br-ex").clone();
    (vlan.ovs, vlan.nic.lower, vlan.nic.kind) = (None, Some(vlan.nic.index), Some("vlan".into()));
    (vlan.nic.name, vlan.nic.index, vlan.layer) = ("br-ex.9".into(), 909, Some(Layer::Vlan { id: 9 }));
    interfaces.push(vlan);
    assert_eq!(names(carriers(&interfaces, "br-ex.9")), ["eth0", "eth1"]);
    assert!(matches!(bond_below(&interfaces, "br-ex.9").unwrap().bond, AnyBond::Ovs(_)));
}

/// What the database says after an edit of what was recorded.
fn edited(edit: impl Fn(&mut Value)) -> Vec<Interface> {
    let mut said = serde_json::from_str(&open_vswitch().ask(&Ask::Ovs).text().unwrap()).unwrap();
    edit(&mut said);
    let answer = Answer::Text(said.to_string());
    read(&Edited { of: open_vswitch(), question: "ovs", answer }).unwrap()
}

fn row<'a>(said: &'a mut Value, table: usize, name: &str) -> &'a mut Value {
    said[table]["rows"].as_array_mut().unwrap().iter_mut().find(|row| row["name"] == name).unwrap()
}

#[test]
fn a_bond_of_open_vswitch_carries_what_its_lacp_lets_it() {
    let spread = |interfaces: &[Interface]| {
        let bond = bond_below(interfaces, "mig0").unwrap();
        (bond.spread(), bond.members, named(interfaces, "mig0").nic.speed_mbit)
    };
    let alone = |said: &mut Value| {
        for nic in ["eth0", "eth1"] {
            row(said, 2, nic)["lacp_current"] = json!(false);
        }
    };
    assert_eq!(spread(&edited(alone)), (Spread::Nothing, 2, Some(1000)));
    let half = |said: &mut Value| row(said, 2, "eth1")["lacp_current"] = json!(false);
    assert_eq!(spread(&edited(half)), (Spread::ByChance, 1, Some(1000)));
    assert_eq!(names(carriers(&edited(half), "mig0")), ["eth0"]);
    let with = |mode: Value, lacp: Value| {
        edited(|said| {
            (row(said, 1, "bond0")["bond_mode"], row(said, 1, "bond0")["lacp"]) = (mode.clone(), lacp.clone());
        })
    };
    let none = json!(["set", []]);
    assert_eq!(spread(&with(json!("balance-slb"), none.clone())).0, Spread::OneMember);
    assert_eq!(spread(&with(json!("balance-tcp"), json!("off"))).0, Spread::Nothing);
    assert_eq!(spread(&with(none.clone(), none.clone())).0, Spread::OneAtATime, "active-backup is the default");
    assert_eq!(spread(&with(json!("stable"), none)).0, Spread::Unknown);
    // The other end speaks no LACP, and the bond is told to go by active-backup then.
    let fallback = |said: &mut Value| {
        alone(said);
        said[4]["rows"][0]["other_config"] = json!(["map", [["lacp-fallback-ab", "true"]]]);
    };
    assert_eq!(spread(&edited(fallback)), (Spread::OneAtATime, 2, Some(1000)));
}

#[test]
fn of_several_ways_out_of_the_host_none_is_picked() {
    // eth1 becomes a port of its own.
    let interfaces = edited(|said| {
        let of_eth1 = row(said, 2, "eth1")["_uuid"].clone();
        let bond = row(said, 1, "bond0");
        bond["interfaces"][1].as_array_mut().unwrap().retain(|uuid| *uuid != of_eth1);
        let mut port = bond.clone();
        (port["_uuid"], port["name"], port["interfaces"]) = (json!(["uuid", "new"]), json!("eth1"), of_eth1);
        said[1]["rows"].as_array_mut().unwrap().push(port);
        row(said, 0, "br-ex")["ports"][1].as_array_mut().unwrap().push(json!(["uuid", "new"]));
    });
    let of = named(&interfaces, "mig0");
    let ports: Vec<&str> = of.ovs.as_ref().unwrap().uplinks.iter().map(|uplink| uplink.port.as_str()).collect();
    assert_eq!(ports, ["bond0", "eth1"]);
    assert_eq!((&of.uplink, of.nic.lower, bond_below(&interfaces, "mig0")), (&None, None, None));
    assert_eq!(names(carriers(&interfaces, "mig0")), ["mig0"]);
}

#[test]
fn what_open_vswitch_does_not_say_is_not_guessed() {
    let with = |answer: Answer| {
        let interfaces = read(&Edited { of: open_vswitch(), question: "ovs", answer }).unwrap();
        let of = named(&interfaces, "mig0").clone();
        assert_eq!((&of.ovs, of.nic.lower, bond_below(&interfaces, "mig0")), (&None, None, None));
        assert_eq!(named(&interfaces, "eth0").not_known, None);
        of.not_known
    };
    let refused = with(Answer::Refused(13)).unwrap();
    assert_eq!(refused, "Open vSwitch did not answer (Permission denied (os error 13))");
    let not_understood = Some("Open vSwitch's answer is not understood".to_owned());
    for text in ["", "{}", "[]", r#"[{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]},{"error":"unknown column"}]"#] {
        assert_eq!(with(Answer::Text(text.into())), not_understood, "{text}");
    }
    // The same name in another network namespace.
    let elsewhere = edited(|said| row(said, 2, "mig0")["ifindex"] = json!(77));
    assert_eq!((&named(&elsewhere, "mig0").ovs, &named(&elsewhere, "mig0").nic.lower), (&None, &None));
}

#[test]
fn a_team_is_what_the_kernel_and_teamd_say() {
    let interfaces = read(&teams()).unwrap();
    let team = |name: &str| named(&interfaces, name).team.clone().unwrap();
    let hash = TeamHash::Fields(vec!["ip".into(), "l4".into()]);
    assert_eq!((team("team0").mode, team("team0").runner.as_deref()), (TeamMode::LoadBalance, Some("loadbalance")));
    assert_eq!((team("team0").hash, team("team0").active), (hash, None));
    assert_eq!(named(&interfaces, "eth0").port_of.as_deref(), Some("team0"));
    assert_eq!((names(carriers(&interfaces, "team0")), queues(&interfaces, "team0")), (vec!["eth0", "eth1"], Some(2)));
    let bond = bond_below(&interfaces, "team0").unwrap();
    assert_eq!((bond.name.as_str(), bond.members, bond.spread()), ("team0", 2, Spread::ByChance));
    // One member of the other carries all.
    let first = named(&interfaces, "d0").nic.index;
    assert_eq!((team("team1").mode, team("team1").active), (TeamMode::ActiveBackup, Some(first)));
    let active = ["eth0", "eth1", "d0", "d1"].map(|name| named(&interfaces, name).team_port.unwrap().active);
    assert_eq!(active, [true, true, true, false]);
    assert_eq!(names(carriers(&interfaces, "team1")), ["d0"]);
    let bond = bond_below(&interfaces, "team1").unwrap();
    assert_eq!((bond.members, bond.spread()), (1, Spread::OneAtATime));
    assert_eq!(named(&interfaces, "team1").driver.duplex, None, "the driver says half, as its members tell no speed");
}

#[test]
fn of_a_team_nothing_is_guessed() {
    let with = |question, errno| {
        let answer = Answer::Refused(errno);
        read(&Edited { of: teams(), question, answer }).unwrap()
    };
    // Somebody else than teamd made the program in the kernel.
    let interfaces = with("teamd ", 2);
    let team = named(&interfaces, "team0").team.clone().unwrap();
    assert_eq!((team.runner.as_deref(), team.hash), (None, TeamHash::Unknown));
    assert_eq!(bond_below(&interfaces, "team0").unwrap().spread(), Spread::Unknown);
    // A user who may not change the network.
    let interfaces = with("team ", 1);
    let of = named(&interfaces, "team0");
    assert_eq!(of.team, None);
    assert_eq!(of.not_known.as_deref(), Some("the team driver did not answer (Operation not permitted (os error 1))"));
}

/// Answers wrongly to one question of many.
struct Liar {
    of: Recording,
    wrong: Answer,
    one_in: u32,
    asked: std::cell::Cell<u32>,
}

impl Source for Liar {
    fn ask(&self, ask: &Ask) -> Answer {
        self.asked.set(self.asked.get() + 1);
        match self.of.ask(ask) {
            _ if self.asked.get().is_multiple_of(self.one_in) => self.wrong.clone(),
            Answer::Messages(messages) if self.one_in.is_multiple_of(3) => {
                Answer::Messages(messages.into_iter().map(|m| m[..m.len() * 2 / 3].to_vec()).collect())
            }
            answer => answer,
        }
    }
}

proptest! {
    #[test]
    fn wrong_answers_break_nothing(
        which in 0_usize..3,
        one_in in 1_u32..60,
        wrong in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60).prop_map(Answer::Bytes),
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 0..4).prop_map(Answer::Messages),
            ".{0,20}".prop_map(Answer::Text),
            proptest::collection::vec(".{0,9}", 0..4).prop_map(Answer::Names),
            any::<i32>().prop_map(Answer::Refused),
        ],
    ) {
        let of = [recording, open_vswitch, teams][which]();
        let _ = read(&Liar { of, wrong, one_in, asked: std::cell::Cell::new(0) });
    }
}
