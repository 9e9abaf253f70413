//! Compares the Data Center Bridging of a path's two ends with each other, and with what RDMA over Ethernet needs: a
//! priority of its own that is paused instead of dropped (PFC) and has a share (ETS), the same at both ends.
//!
//! The switch between them has to be the same, too, and nobody asks it.

use serde::{Deserialize, Serialize};

use crate::carriers::carriers;
use crate::dcb::{Dcb, Dcbx, Selector};
use crate::interface::Interface;

/// The port of RoCE, version 2, of UDP (IANA).
const ROCE_PORT: u16 = 4791;

/// What is known of a NIC for the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NicDcb {
    /// The NIC's name.
    pub nic: String,
    /// Whether an RDMA port shares its cable.
    pub rdma: bool,
    /// Its settings; `None`: its driver has none.
    pub dcb: Option<Dcb>,
}

impl NicDcb {
    /// Returns whether the NIC has RDMA or DCB.
    pub fn has_any(&self) -> bool {
        self.rdma || self.dcb.is_some()
    }
}

/// Returns what is known of each NIC that carries the traffic of an interface.
pub fn dcb_of(interfaces: &[Interface], name: &str) -> Vec<NicDcb> {
    let of = |of: &Interface| NicDcb { nic: of.nic.name.clone(), rdma: !of.rdma.is_empty(), dcb: of.dcb.clone() };
    carriers(interfaces, name).into_iter().map(of).collect()
}

/// What does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcbMismatch {
    /// What is so.
    pub what: String,
    /// What to do about it.
    pub cure: String,
}

/// A NIC at a host, for the comparison.
#[derive(Clone, Copy)]
pub struct DcbEnd<'a> {
    /// The host's name.
    pub host: &'a str,
    /// The NIC.
    pub nic: &'a NicDcb,
}

impl DcbEnd<'_> {
    fn name(&self) -> String {
        format!("{} of {}", self.nic.nic, self.host)
    }

    fn dcb(&self) -> Option<&Dcb> {
        self.nic.dcb.as_ref()
    }

    /// Returns the priorities that are paused.
    fn paused(&self) -> &[u8] {
        self.dcb().and_then(|dcb| dcb.pfc.as_ref()).map_or(&[], |pfc| &pfc.priorities)
    }

    /// Returns the priority of RoCE's packets, where an entry gives them one.
    fn roce(&self) -> Option<u8> {
        let is_roce = |selector| matches!(selector, Selector::Datagram | Selector::Any);
        let mut entries = self.dcb()?.applications.iter();
        entries.find(|entry| entry.protocol == ROCE_PORT && is_roce(entry.selector)).map(|entry| entry.priority)
    }

    /// Returns the share of the traffic class of a priority; the inner `None`: the class goes by priority alone.
    fn share(&self, priority: u8) -> Option<Option<u8>> {
        let ets = self.dcb()?.ets.as_ref()?;
        ets.share_percent.get(usize::from(*ets.class_of.get(usize::from(priority))?)).copied()
    }
}

/// Compares two NICs that a path joins. Where neither does anything for RDMA there is nothing to compare.
pub fn compare_dcb(ends: [DcbEnd<'_>; 2]) -> Vec<DcbMismatch> {
    let is_meant = |end: &DcbEnd<'_>| !end.paused().is_empty() || end.roce().is_some();
    if !ends.iter().any(is_meant) && !ends.iter().all(|end| end.nic.rdma) {
        return Vec::new();
    }
    let priority = priority(&ends);
    pauses(&ends)
        .into_iter()
        .chain(entries(&ends))
        .chain(ends.iter().filter_map(unpaused))
        .chain(priority.and_then(|priority| shares(&ends, priority)))
        .chain(dcbx(&ends))
        .chain(willing(&ends))
        .collect()
}

/// Returns the priority that RDMA is meant to have: an entry's, or the only one that is paused.
fn priority(ends: &[DcbEnd<'_>; 2]) -> Option<u8> {
    let only = |end: &DcbEnd<'_>| if let [priority] = end.paused() { Some(*priority) } else { None };
    ends.iter().find_map(DcbEnd::roce).or_else(|| ends.iter().find_map(only))
}

fn list(priorities: &[u8]) -> String {
    if priorities.is_empty() {
        return "none".into();
    }
    priorities.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")
}

/// Says what the two ends have, each with its name.
fn both(ends: &[DcbEnd<'_>; 2], of: impl Fn(&DcbEnd<'_>) -> String) -> String {
    let [here, there] = ends;
    format!("{} at {}, {} at {}", of(here), here.name(), of(there), there.name())
}

fn pauses(ends: &[DcbEnd<'_>; 2]) -> Option<DcbMismatch> {
    let [here, there] = ends;
    if here.paused() != there.paused() {
        let what = format!("the priorities that are paused (PFC) differ: {}", both(ends, |end| list(end.paused())));
        let wanted = ends.iter().map(|end| end.paused()).find(|paused| !paused.is_empty()).unwrap_or_default();
        let on: String = wanted.iter().map(|priority| format!(" {priority}:on")).collect();
        let cure = format!("dcb pfc set dev NIC prio-pfc all:off{on} at both ends, and the switch's ports likewise");
        return Some(DcbMismatch { what, cure });
    }
    (here.paused().is_empty() && ends.iter().all(|end| end.nic.rdma)).then(|| DcbMismatch {
        what: format!("no priority is paused (PFC) at {} and {}: RoCE loses packets there", here.name(), there.name()),
        cure: "dcb pfc set dev NIC prio-pfc 3:on at both ends, and the switch's ports likewise, if RDMA is to be used \
               and is no iWARP"
            .into(),
    })
}

fn entries(ends: &[DcbEnd<'_>; 2]) -> Option<DcbMismatch> {
    let [here, there] = ends.each_ref().map(DcbEnd::roce);
    let wanted = here.or(there)?;
    let words = |end: &DcbEnd<'_>| end.roce().map_or("none".to_owned(), |priority| priority.to_string());
    (here != there).then(|| DcbMismatch {
        what: format!("the priorities of RoCE's packets (UDP {ROCE_PORT}) differ: {}", both(ends, words)),
        cure: format!("dcb app replace dev NIC dgram-port-prio {ROCE_PORT}:{wanted} at both ends"),
    })
}

fn unpaused(end: &DcbEnd<'_>) -> Option<DcbMismatch> {
    let priority = end.roce()?;
    (!end.paused().contains(&priority)).then(|| DcbMismatch {
        what: format!(
            "RoCE's packets have the priority {priority} at {}, and these are paused (PFC) there: {}",
            end.name(),
            list(end.paused())
        ),
        cure: format!("dcb pfc set dev {} prio-pfc {priority}:on", end.nic.nic),
    })
}

fn shares(ends: &[DcbEnd<'_>; 2], priority: u8) -> Option<DcbMismatch> {
    let cure = "dcb ets set dev NIC tc-tsa CLASS:ets tc-bw CLASS:PERCENT, with a sum of 100 (dcb-ets(8))".to_owned();
    let words = |end: &DcbEnd<'_>| match end.share(priority) {
        Some(Some(share)) => format!("{share} %"),
        Some(None) => "by priority alone".into(),
        None => "not told".into(),
    };
    let none: Vec<String> = ends.iter().filter(|end| end.share(priority) == Some(Some(0))).map(DcbEnd::name).collect();
    if !none.is_empty() {
        let what = format!("the priority {priority}, which RDMA has, has no share (ETS) at {}", none.join(" and "));
        return Some(DcbMismatch { what, cure });
    }
    let told = ends.each_ref().map(|end| end.share(priority));
    let differ = told[0] != told[1] && told.iter().all(Option::is_some);
    let what = format!("the shares (ETS) of the priority {priority}, which RDMA has, differ: {}", both(ends, words));
    differ.then_some(DcbMismatch { what, cure })
}

fn dcbx(ends: &[DcbEnd<'_>; 2]) -> Option<DcbMismatch> {
    let [Some(here), Some(there)] = ends.each_ref().map(|end| end.dcb()?.dcbx) else { return None };
    let words = |dcbx: Dcbx| {
        let whose = if dcbx.host { "a program of the host" } else { "the NIC's firmware" };
        format!("{} by {whose}", if dcbx.ieee { "IEEE's" } else { "CEE" })
    };
    (here != there).then(|| DcbMismatch {
        what: format!("DCBX differs: {} at {}, {} at {}", words(here), ends[0].name(), words(there), ends[1].name()),
        cure: "dcb dcbx set dev NIC host ieee at both ends, so that what is set there counts; or leave both to the \
               firmware and the switch"
            .into(),
    })
}

fn willing(ends: &[DcbEnd<'_>; 2]) -> Option<DcbMismatch> {
    let [Some(here), Some(there)] = ends.each_ref().map(|end| Some(end.dcb()?.ets.as_ref()?.willing)) else {
        return None;
    };
    let [yes, no] = if here { [&ends[0], &ends[1]] } else { [&ends[1], &ends[0]] };
    (here != there).then(|| DcbMismatch {
        what: format!("{} takes the switch's settings (willing), {} keeps its own", yes.name(), no.name()),
        cure: "dcb ets set dev NIC willing on at both ends, or off".into(),
    })
}
