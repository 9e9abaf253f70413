//! From a spec to the lines that `ip -batch` and `tc -batch` take: pure, so that what is done can be read and tested.
//!
//! ```text
//!   host a             switch                                        host b
//!   nic0 ─── veth ─── a-0 ──────────── bridge seg.0 ──────────── b-0 ─── veth ─── nic0
//!                      │ to a: tbf on a-0                         │ to b: tbf on b-0
//!                      │ from a: ingress of a-0                   │ from b: ingress of b-0
//!                      └─▶ ifb a-0-up, tbf ─▶ back into a-0       └─▶ ifb b-0-up, tbf ─▶ back into b-0
//! ```
//!
//! Both directions are shaped at the switch's port, nothing on the host's own NIC. A direction that is unlimited has
//! neither tbf nor detour.

use serde::{Deserialize, Serialize};

use crate::spec::{MTU_MAX, SWITCH, Spec};

/// The group of the switch's interfaces, which are deleted together.
pub(crate) const GROUP: u32 = 77;

/// How a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// The host sees its carrier go, as if a cable were pulled or a switch were off.
    Carrier,
    /// The carrier stays, but nothing passes in either direction, as if a switch no longer forwarded.
    BlackHole,
    /// The carrier stays, but nothing reaches the host. What the host sends arrives.
    BlackHoleToHost,
    /// The carrier stays, but nothing that the host sends arrives. What is sent to the host reaches it.
    BlackHoleFromHost,
}

/// The setting of a port of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    carrier: bool,
    to_host: Flow,
    from_host: Flow,
}

/// What passes in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Free,
    Mbit(u32),
    Nothing,
}

impl Setting {
    /// The setting of a port after [`switch_links`].
    pub const NEW: Self = Self { carrier: true, to_host: Flow::Free, from_host: Flow::Free };

    pub fn of(rate_mbit: Option<u32>, cut: Option<Cut>) -> Self {
        let rate = rate_mbit.map_or(Flow::Free, Flow::Mbit);
        let stopped = |by: [Cut; 2]| if cut.is_some_and(|c| by.contains(&c)) { Flow::Nothing } else { rate };
        Self {
            carrier: cut != Some(Cut::Carrier),
            to_host: stopped([Cut::BlackHole, Cut::BlackHoleToHost]),
            from_host: stopped([Cut::BlackHole, Cut::BlackHoleFromHost]),
        }
    }
}

/// The prefix of the names of all labs' namespaces.
pub(crate) const NETNS_PREFIX: &str = "skein.";

/// Returns the namespace of a host (or the switch) of a lab. Names have no dots, so no lab's prefix is another's.
pub(crate) fn netns(lab: &str, host: &str) -> String {
    format!("{}{host}", netns_prefix(lab))
}

/// Returns the prefix of the names of all namespaces of a lab.
pub(crate) fn netns_prefix(lab: &str) -> String {
    format!("{NETNS_PREFIX}{lab}.")
}

/// Returns the lab that a namespace belongs to.
pub(crate) fn lab_of(netns: &str) -> Option<&str> {
    netns.strip_prefix(NETNS_PREFIX)?.split_once('.').map(|(lab, _)| lab)
}

/// Returns the switch's port for a NIC.
pub(crate) fn port(host: &str, nic: usize) -> String {
    format!("{host}-{nic}")
}

/// Returns lines for `ip -batch`: the namespaces.
pub(crate) fn namespaces(spec: &Spec) -> Vec<String> {
    let hosts = spec.hosts.iter().map(|h| h.name.as_str());
    hosts.chain([SWITCH]).map(|host| format!("netns add {}", netns(&spec.name, host))).collect()
}

/// Returns lines for `ip -batch` in the switch: bridges, ports and what they need. They also put the NICs into the
/// hosts.
pub(crate) fn switch_links(spec: &Spec) -> Vec<String> {
    let mut lines = Vec::new();
    let mut segments: Vec<&str> = spec.hosts.iter().flat_map(|h| &h.nics).map(|n| n.segment.as_str()).collect();
    segments.sort_unstable();
    segments.dedup();
    for segment in segments {
        // Spanning tree and multicast snooping are off: a port forwards at once, and the bridge sends nothing itself.
        lines.push(format!(
            "link add seg.{segment} mtu {MTU_MAX} group {GROUP} up type bridge stp_state 0 forward_delay 0 \
             mcast_snooping 0"
        ));
    }
    for (h, host) in spec.hosts.iter().enumerate() {
        let namespace = netns(&spec.name, &host.name);
        for (n, nic) in host.nics.iter().enumerate() {
            let port = port(&host.name, n);
            // The numbers of the host and of the NIC make a MAC that is easy to recognise in a capture.
            let mac = format!("02:77:00:00:{:02x}:{n:02x}", h + 1);
            lines.push(format!(
                "link add {port} mtu {MTU_MAX} group {GROUP} type veth peer name nic{n} address {mac} mtu {} netns \
                 {namespace}",
                nic.mtu
            ));
            lines.push(format!("link set {port} master seg.{} up", nic.segment));
            lines.push(format!("link add {port}-up mtu {MTU_MAX} group {GROUP} up type ifb"));
        }
    }
    lines
}

/// Returns lines for `ip -batch` in the host: its NICs' addresses, and everything up.
pub(crate) fn host_links(spec: &Spec, host: usize) -> Vec<String> {
    let mut lines = vec!["link set lo up".to_owned()];
    for (n, nic) in spec.hosts[host].nics.iter().enumerate() {
        for address in &nic.addresses {
            let nodad = if address.ip.is_ipv6() { " nodad" } else { "" };
            lines.push(format!("addr add {address} dev nic{n}{nodad}"));
        }
        lines.push(format!("link set nic{n} up"));
    }
    lines
}

/// Returns lines that change `port` from one setting to another: for `ip -batch`, then for `tc -batch`, both in the
/// switch.
pub(crate) fn change(port: &str, from: &Setting, to: &Setting) -> (Vec<String>, Vec<String>) {
    let (mut ip, mut tc) = (Vec::new(), Vec::new());
    if from.carrier != to.carrier {
        ip.push(format!("link set {port} {}", if to.carrier { "up" } else { "down" }));
    }
    tc.extend(shape(port, from.to_host, to.to_host));
    let detour = |flow| flow != Flow::Free;
    if detour(from.from_host) && !detour(to.from_host) {
        tc.push(format!("qdisc del dev {port} ingress"));
    }
    tc.extend(shape(&format!("{port}-up"), from.from_host, to.from_host));
    if !detour(from.from_host) && detour(to.from_host) {
        tc.push(format!("qdisc add dev {port} ingress"));
        tc.push(format!(
            "filter add dev {port} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev \
             {port}-up"
        ));
    }
    (ip, tc)
}

fn shape(device: &str, from: Flow, to: Flow) -> Option<String> {
    if from == to {
        return None;
    }
    Some(match to {
        Flow::Free => format!("qdisc del dev {device} root"),
        Flow::Mbit(rate) => {
            let (burst, limit) = (burst_bytes(rate), limit_bytes(rate));
            format!("qdisc replace dev {device} root handle 1: tbf rate {rate}mbit burst {burst} limit {limit}")
        }
        // A queue of one byte holds no packet. The other handle makes this another qdisc, so what was queued is dropped
        // with the old one instead of trickling out.
        Flow::Nothing => format!("qdisc replace dev {device} root handle 2: tbf rate 1mbit burst 131072 limit 1"),
    })
}

/// Returns how many bytes may pass at once: 2 ms, but at least two of the largest packets that hosts hand over
/// unsegmented (64 KiB), since tbf has to cut up whatever does not fit.
fn burst_bytes(rate_mbit: u32) -> u64 {
    (bytes_in_ms(rate_mbit) * 2).max(128 << 10)
}

/// Returns how many bytes may wait: 10 ms, but at least 256 KiB, a plausible buffer of a switch's port. (So a port of
/// 10 Mb/s can hold 0.2 s, as slow ports do.)
fn limit_bytes(rate_mbit: u32) -> u64 {
    (bytes_in_ms(rate_mbit) * 10).max(256 << 10)
}

fn bytes_in_ms(rate_mbit: u32) -> u64 {
    u64::from(rate_mbit) * 1_000_000 / 8 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(from: Setting, to: Setting) -> Vec<String> {
        let (ip, tc) = change("a-0", &from, &to);
        ip.into_iter().chain(tc).collect()
    }

    #[test]
    fn a_lab_of_two() {
        let spec = Spec::pairs("demo", 1, Some(1000)).mtu(9000);
        assert_eq!(
            namespaces(&spec),
            ["netns add skein.demo.a", "netns add skein.demo.b", "netns add skein.demo.switch"]
        );
        let switch = switch_links(&spec);
        assert_eq!(switch.len(), 1 + 2 * 3);
        assert_eq!(
            switch[4],
            "link add b-0 mtu 9216 group 77 type veth peer name nic0 address 02:77:00:00:02:00 mtu 9000 netns \
             skein.demo.b"
        );
        assert_eq!(
            host_links(&spec, 1),
            [
                "link set lo up",
                "addr add 10.77.0.2/24 dev nic0",
                "addr add fd77::2/64 dev nic0 nodad",
                "link set nic0 up",
            ]
        );
    }

    #[test]
    fn namespaces_tell_their_lab() {
        assert_eq!(lab_of(&netns("t-1", "a")), Some("t-1"));
        assert_eq!((lab_of("skein."), lab_of("other.demo.a")), (None, None));
        assert!(!netns("demo-2", "a").starts_with(&netns_prefix("demo")));
    }

    #[test]
    fn one_subnet_is_one_bridge() {
        let switch = switch_links(&Spec::same_subnet("demo", 2, None));
        assert_eq!(switch.iter().filter(|l| l.contains("type bridge")).count(), 1);
        assert_eq!(switch.iter().filter(|l| l.contains("master seg.lan")).count(), 4);
    }

    #[test]
    fn interface_names_fit() {
        let mut spec = Spec::pairs("demo", 16, None);
        spec.hosts[0].name = "eightlen".into();
        spec.hosts[0].nics[0].segment = "elevenchars".into();
        spec.check().unwrap();
        for line in switch_links(&spec) {
            let name = line.split(' ').nth(2).unwrap();
            assert!(name.len() <= 15, "{name}");
        }
    }

    #[test]
    fn unlimited_links_have_no_qdiscs() {
        assert!(lines(Setting::NEW, Setting::of(None, None)).is_empty());
    }

    #[test]
    fn a_rate_is_set_changed_and_lifted() {
        let (slow, fast, free) = (Setting::of(Some(10), None), Setting::of(Some(1000), None), Setting::of(None, None));
        assert_eq!(
            lines(free, fast),
            [
                "qdisc replace dev a-0 root handle 1: tbf rate 1000mbit burst 250000 limit 1250000",
                "qdisc replace dev a-0-up root handle 1: tbf rate 1000mbit burst 250000 limit 1250000",
                "qdisc add dev a-0 ingress",
                "filter add dev a-0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev \
                 a-0-up",
            ]
        );
        assert_eq!(
            lines(fast, slow),
            [
                "qdisc replace dev a-0 root handle 1: tbf rate 10mbit burst 131072 limit 262144",
                "qdisc replace dev a-0-up root handle 1: tbf rate 10mbit burst 131072 limit 262144",
            ]
        );
        assert_eq!(
            lines(slow, free),
            ["qdisc del dev a-0 root", "qdisc del dev a-0 ingress", "qdisc del dev a-0-up root",]
        );
    }

    #[test]
    fn cuts_touch_only_what_they_cut() {
        let (set, cut) = (Setting::of(Some(100), None), |c| Setting::of(Some(100), Some(c)));
        assert_eq!(lines(set, cut(Cut::Carrier)), ["link set a-0 down"]);
        assert_eq!(lines(cut(Cut::Carrier), set), ["link set a-0 up"]);
        let nothing = |device| format!("qdisc replace dev {device} root handle 2: tbf rate 1mbit burst 131072 limit 1");
        assert_eq!(lines(set, cut(Cut::BlackHole)), [nothing("a-0"), nothing("a-0-up")]);
        assert_eq!(lines(set, cut(Cut::BlackHoleToHost)), [nothing("a-0")]);
        assert_eq!(lines(set, cut(Cut::BlackHoleFromHost)), [nothing("a-0-up")]);
        assert_eq!(lines(cut(Cut::BlackHole), cut(Cut::Carrier)).len(), 3);
    }
}
