//! Tells what the paths between two hosts were measured to carry.

use serde::{Deserialize, Serialize};
use skein_network::NicDcb;

/// What one host measured of the way to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Probe {
    /// The host that measured.
    pub from: String,
    /// The other host.
    pub to: String,
    /// When it ended, in seconds since 1970 began.
    pub unix_s: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// The paths that a migration would have, whatever they carry.
    pub paths: Vec<ProbedPath>,
    /// The pairs of NICs that have no path, though they could have one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<UnusedPair>,
    /// What all paths that carry data carry at once; `None`: that was not measured, or there is only one.
    pub together: Option<Together>,
    /// Why rates were not measured, or not all. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The hosts whose cores other programs held as something was measured: the rates say little then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy_hosts: Vec<String>,
    /// What follows from all that.
    pub verdict: Verdict,
}

/// A path as it was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProbedPath {
    /// The end at the host that measured.
    pub local: ProbedEnd,
    /// The end at the other host.
    pub remote: ProbedEnd,
    /// Why the path carries no data, or only if others fail; empty: it carries data.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub carries: String,
    /// The round trip of a small packet; `None`: the path is down.
    pub round_trip: Option<RoundTrip>,
    /// The largest packet that passes both ways, in bytes; `None`: not known.
    pub passes_bytes: Option<u32>,
    /// The smallest packet that is lost for its size, in bytes; `None`: all pass that the NICs send, or not known.
    pub lost_bytes: Option<u32>,
    /// Whether the rates are those of RDMA.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over_rdma: bool,
    /// Why the path's data does not go over RDMA though the host is to use that; empty: the data does, or was not to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub no_rdma: String,
    /// What the path carries alone to the other host.
    pub out: Option<MeasuredRate>,
    /// What the path carries alone from the other host.
    pub back: Option<MeasuredRate>,
    /// What the path carries to the other host while it carries all it can from there.
    pub duplex_out: Option<MeasuredRate>,
    /// What the path carries from the other host while it carries all it can to there.
    pub duplex_back: Option<MeasuredRate>,
    /// What the path carries to the other host while all paths do, in bits a second.
    pub together_out_bits_per_s: Option<u64>,
    /// What the path carries from the other host while all paths do, in bits a second.
    pub together_back_bits_per_s: Option<u64>,
    /// How many of a million segments that this host sent over the path alone were sent again.
    pub repeated_out_ppm: Option<u64>,
    /// How many of a million segments that the other host sent over the path alone were sent again.
    pub repeated_back_ppm: Option<u64>,
    /// Whether the path was down as the probe ended, though it was up before or joins NICs of one network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_down: bool,
    /// Why rates were not measured. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// An end of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProbedEnd {
    /// The NIC's name.
    pub nic: String,
    /// The address.
    pub address: String,
    /// The speed that the NIC's driver tells, in Mb/s; `None`: it tells none.
    pub speed_mbit: Option<u32>,
    /// The NIC's largest packet in bytes; 0: not known.
    pub mtu: u32,
    /// Whether the NIC's link is half duplex.
    #[serde(default)]
    pub half_duplex: bool,
    /// The RDMA and Data Center Bridging of the NICs that carry it; empty: no NIC of the path has either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dcb: Vec<NicDcb>,
}

/// A rate, and how sure it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MeasuredRate {
    /// The bits of payload a second: what a migration would have of it.
    pub bits_per_s: u64,
    /// By how much the parts of the measurement differ, in bits a second; as much as the rate: too little was counted
    /// to tell.
    pub spread_bits_per_s: u64,
}

/// The round trip of small packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoundTrip {
    /// The least, in microseconds.
    pub least_us: u64,
    /// The median, in microseconds.
    pub median_us: u64,
}

/// A pair of NICs without a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnusedPair {
    /// The NIC of the host that measured.
    pub nic: String,
    /// The other host's NIC.
    pub remote_nic: String,
    /// Why there is no path.
    pub why: String,
    /// Whether that is because the link of either NIC is down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_down: bool,
}

/// What all paths carry at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Together {
    /// To the other host.
    pub out: MeasuredRate,
    /// From the other host.
    pub back: MeasuredRate,
    /// The CPU time of the host that measured, while it sent.
    pub sends: UsedCpu,
    /// The CPU time of the other host, while it received.
    pub other_receives: UsedCpu,
    /// The CPU time of the host that measured, while it received.
    pub receives: UsedCpu,
    /// The CPU time of the other host, while it sent.
    pub other_sends: UsedCpu,
}

/// The CPU time that a host's agent used for a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsedCpu {
    /// Milliseconds of CPU time for a gigabyte.
    pub ms_per_gb: u64,
    /// How much of all the host's cores was in use, by whatever program, in per cent.
    pub host_percent: u8,
    /// How much of one core the agent used, in per cent; with several cores it may be more than 100.
    pub agent_percent: u32,
}

/// What follows from a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Verdict {
    /// What a migration with the transport `auto` will do, and why.
    pub auto: String,
    /// What is wrong or worth knowing, the most important first.
    pub findings: Vec<ProbeFinding>,
}

/// Something that is wrong with the way between two hosts, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProbeFinding {
    /// What it is.
    pub kind: FindingKind,
    /// The local NICs that it is about.
    pub nics: Vec<String>,
    /// What is so.
    pub what: String,
    /// What to do about it. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cure: String,
    /// What that would bring. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gain: String,
}

/// What a probe can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// A path is down, or the link of a NIC that could have one.
    PathDown,
    /// Other programs hold a host's cores, so the rates say little.
    CoresBusy,
    /// Packets that the NICs at both ends send are lost between them.
    LargePacketsLost,
    /// The NICs at a path's ends have different MTUs.
    MtuDiffers,
    /// A link is half duplex.
    HalfDuplex,
    /// Several NICs share what limits them.
    SharedBottleneck,
    /// The host's cores limit what its links carry.
    CpuLimit,
    /// A path carries much less one way than the other.
    OneDirectionSlow,
    /// A path carries much less both ways at once than one way after the other.
    BothDirectionsSlow,
    /// A path carries much less than its NICs' speed.
    BelowSpeed,
    /// Segments had to be sent again.
    PacketsLost,
    /// The Data Center Bridging of a path's ends does not fit each other, or not what RDMA needs.
    DcbDiffers,
    /// The round trip is long.
    LongRoundTrip,
    /// Packets wait on the way.
    Queues,
    /// Jumbo frames bring little.
    JumboBringsLittle,
    /// A pair of NICs has no path.
    Unused,
}

impl MeasuredRate {
    /// Returns whether enough was counted to compare the rate with another.
    pub fn is_sure(&self) -> bool {
        self.spread_bits_per_s < self.bits_per_s.max(1)
    }
}

impl Probe {
    /// Returns whether the rate of any path was measured.
    pub fn has_rates(&self) -> bool {
        self.paths.iter().any(|path| path.out.is_some() || path.back.is_some())
    }

    /// Returns whether there are rates that say what the paths carry.
    pub fn tells_rates(&self) -> bool {
        self.has_rates() && self.busy_hosts.is_empty()
    }
}

impl FindingKind {
    /// Returns whether something is wrong, and not only worth knowing.
    pub fn is_wrong(self) -> bool {
        !matches!(self, FindingKind::JumboBringsLittle | FindingKind::LongRoundTrip | FindingKind::Unused)
    }
}

#[cfg(test)]
const FINDINGS: [FindingKind; 16] = [
    FindingKind::PathDown,
    FindingKind::CoresBusy,
    FindingKind::LargePacketsLost,
    FindingKind::MtuDiffers,
    FindingKind::HalfDuplex,
    FindingKind::SharedBottleneck,
    FindingKind::CpuLimit,
    FindingKind::OneDirectionSlow,
    FindingKind::BothDirectionsSlow,
    FindingKind::BelowSpeed,
    FindingKind::PacketsLost,
    FindingKind::DcbDiffers,
    FindingKind::LongRoundTrip,
    FindingKind::Queues,
    FindingKind::JumboBringsLittle,
    FindingKind::Unused,
];

#[cfg(test)]
impl Probe {
    /// Returns a probe with a value in each field.
    pub(super) fn example() -> Probe {
        use skein_network::{Application, Dcb, Dcbx, Ets, Pfc, Selector};

        let dcb = Dcb {
            ets: Some(Ets { willing: true, classes: 8, class_of: [0; 8], share_percent: [Some(50); 8] }),
            pfc: Some(Pfc { priorities_max: 8, priorities: vec![3], sent: [0; 8], received: [7; 8] }),
            applications: vec![Application { selector: Selector::Datagram, protocol: 4791, priority: 3 }],
            dcbx: Some(Dcbx { host: true, ieee: true }),
        };
        let end = |nic: &str| ProbedEnd {
            nic: nic.into(),
            address: "10.0.0.1".into(),
            speed_mbit: Some(1000),
            mtu: 9000,
            half_duplex: false,
            dcb: vec![NicDcb { nic: nic.into(), rdma: true, dcb: Some(dcb.clone()) }],
        };
        let rate = MeasuredRate { bits_per_s: 941_000_000, spread_bits_per_s: 1_000_000 };
        let path = ProbedPath {
            local: end("eth0"),
            remote: end("eth1"),
            carries: "a spare: another network is preferred".into(),
            round_trip: Some(RoundTrip { least_us: 90, median_us: 110 }),
            passes_bytes: Some(1500),
            lost_bytes: Some(1525),
            over_rdma: true,
            no_rdma: String::new(),
            out: Some(rate),
            back: Some(rate),
            duplex_out: Some(rate),
            duplex_back: Some(rate),
            together_out_bits_per_s: Some(941_000_000),
            together_back_bits_per_s: Some(941_000_000),
            repeated_out_ppm: Some(0),
            repeated_back_ppm: Some(12),
            is_down: true,
            note: "it broke".into(),
        };
        let cpu = UsedCpu { ms_per_gb: 420, host_percent: 60, agent_percent: 90 };
        let together =
            Together { out: rate, back: rate, sends: cpu, other_receives: cpu, receives: cpu, other_sends: cpu };
        let finding = |kind| ProbeFinding {
            kind,
            nics: vec!["eth0".into()],
            what: "packets larger than 1500 bytes are lost".into(),
            cure: "set the MTU".into(),
            gain: "5 %".into(),
        };
        Probe {
            from: "hosta".into(),
            to: "hostb".into(),
            unix_s: 1_795_903_200,
            took_ms: 3200,
            paths: vec![path],
            left_out: vec![UnusedPair {
                nic: "eth9".into(),
                remote_nic: "eth9".into(),
                why: "16 paths are all".into(),
                is_down: true,
            }],
            together: Some(together),
            note: "a migration is under way".into(),
            busy_hosts: vec!["hostb".into()],
            verdict: Verdict { auto: "data goes over eth0".into(), findings: FINDINGS.map(finding).to_vec() },
        }
    }
}
