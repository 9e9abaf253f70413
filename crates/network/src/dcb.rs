//! Data Center Bridging, as a NIC's driver has it (IEEE 802.1Qaz and 802.1Qbb; `linux/dcbnl.h`).

use serde::{Deserialize, Serialize};

use crate::attributes::{attributes, u16_at, u64_at};

pub(crate) const DCB_ATTR_IEEE: u16 = 13;
pub(crate) const DCB_ATTR_DCBX: u16 = 14;
pub(crate) const DCB_ATTR_IEEE_ETS: u16 = 1;
const DCB_ATTR_IEEE_PFC: u16 = 2;
const DCB_ATTR_IEEE_APP_TABLE: u16 = 3;
const DCB_ATTR_IEEE_APP: u16 = 1;
/// Holds the size of `struct dcbmsg`.
pub(crate) const DCB_FIXED_BYTES: usize = 4;
/// How a traffic class is served: enhanced transmission selection.
pub(crate) const IEEE_8021QAZ_TSA_ETS: u8 = 2;

/// A NIC's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dcb {
    /// Shares of bandwidth.
    pub ets: Option<Ets>,
    /// Priorities that are paused instead of dropped.
    pub pfc: Option<Pfc>,
    /// Which traffic has which priority.
    pub applications: Vec<Application>,
    /// Whose word counts.
    pub dcbx: Option<Dcbx>,
}

/// Enhanced transmission selection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ets {
    /// Whether the NIC takes the switch's settings.
    pub willing: bool,
    /// How many traffic classes the NIC has.
    pub classes: u8,
    /// The traffic class of each priority.
    pub class_of: [u8; 8],
    /// The guaranteed share of each traffic class, in percent. `None`: it goes by priority alone.
    pub share_percent: [Option<u8>; 8],
}

/// Priority flow control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pfc {
    /// Of how many priorities the NIC can do this.
    pub priorities_max: u8,
    /// The priorities that are paused.
    pub priorities: Vec<u8>,
    /// How many pause frames were sent, by priority.
    pub sent: [u64; 8],
    /// How many pause frames came, by priority.
    pub received: [u64; 8],
}

/// An entry of the table of application priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Application {
    /// What [`Application::protocol`] is.
    pub selector: Selector,
    /// An Ethernet type, port or DSCP.
    pub protocol: u16,
    /// The priority, 0 to 7.
    pub priority: u8,
}

/// What an entry goes by (IEEE 802.1Qaz, table D-9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// An Ethernet type.
    Ethertype,
    /// A port of TCP or SCTP.
    Stream,
    /// A port of UDP or DCCP.
    Datagram,
    /// A port of any.
    Any,
    /// The priority in an IP packet.
    Dscp,
    /// Another.
    #[serde(other)]
    Other,
}

/// Whose word counts (`DCB_CAP_DCBX_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dcbx {
    /// Whether a program on the host, such as lldpad, talks to the switch; else the NIC's firmware does.
    pub host: bool,
    /// Whether it speaks IEEE's protocol; else that of before (CEE).
    pub ieee: bool,
}

/// Reads the answer to `DCB_CMD_IEEE_GET`.
pub(crate) fn parse(payload: &[u8]) -> Dcb {
    let mut dcb = Dcb::default();
    for (kind, value) in attributes(payload.get(DCB_FIXED_BYTES..).unwrap_or_default()) {
        match kind {
            DCB_ATTR_DCBX => {
                dcb.dcbx = value.first().map(|flags| Dcbx { host: flags & 1 != 0, ieee: flags & 8 != 0 });
            }
            DCB_ATTR_IEEE => {
                for (kind, value) in attributes(value) {
                    match kind {
                        DCB_ATTR_IEEE_ETS => dcb.ets = ets(value),
                        DCB_ATTR_IEEE_PFC => dcb.pfc = pfc(value),
                        DCB_ATTR_IEEE_APP_TABLE => {
                            let entries = attributes(value).filter(|(kind, _)| *kind == DCB_ATTR_IEEE_APP);
                            dcb.applications = entries.filter_map(|(_, value)| application(value)).collect();
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    dcb
}

/// Reads a `struct ieee_ets`.
fn ets(value: &[u8]) -> Option<Ets> {
    let list = |from: usize| -> Option<[u8; 8]> { value.get(from..from + 8)?.try_into().ok() };
    let (shares, algorithms, class_of) = (list(3)?, list(19)?, list(27)?);
    let mut share_percent = [None; 8];
    for (class, share) in share_percent.iter_mut().enumerate() {
        *share = (algorithms[class] == IEEE_8021QAZ_TSA_ETS).then_some(shares[class]);
    }
    Some(Ets { willing: *value.first()? != 0, classes: *value.get(1)?, class_of, share_percent })
}

/// Reads a `struct ieee_pfc`.
fn pfc(value: &[u8]) -> Option<Pfc> {
    let on = *value.get(1)?;
    let list = |from: usize| -> [u64; 8] { std::array::from_fn(|n| u64_at(value, from + 8 * n).unwrap_or(0)) };
    Some(Pfc {
        priorities_max: *value.first()?,
        priorities: (0..8).filter(|priority| on & 1 << priority != 0).collect(),
        sent: list(8),
        received: list(72),
    })
}

/// Reads a `struct dcb_app`.
fn application(value: &[u8]) -> Option<Application> {
    let selector = match *value.first()? {
        1 => Selector::Ethertype,
        2 => Selector::Stream,
        3 => Selector::Datagram,
        4 => Selector::Any,
        5 => Selector::Dscp,
        _ => Selector::Other,
    };
    Some(Application { selector, priority: *value.get(1)?, protocol: u16_at(value, 2)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attributes::attribute;

    #[test]
    fn a_nics_settings_are_read() {
        let mut ets = vec![1, 8, 0];
        ets.extend([10, 90, 0, 0, 0, 0, 0, 0]);
        ets.extend([0; 8]);
        ets.extend([2, 2, 0, 0, 0, 0, 0, 0]);
        ets.extend([0, 0, 0, 0, 1, 0, 0, 0]);
        ets.extend([0; 24]);
        let mut pfc = vec![8, 1 << 4, 0, 0, 0, 0, 0, 0];
        pfc.extend((0..16).flat_map(|n: u64| n.to_ne_bytes()));
        let app = [5, 4, 26, 0];
        let ieee = [attribute(1, &ets), attribute(2, &pfc), attribute(3, &attribute(1, &app))].concat();
        let payload = [vec![0; 4], attribute(1, b"eth0\0"), attribute(13, &ieee), attribute(14, &[9])].concat();
        let dcb = parse(&payload);
        let ets = dcb.ets.unwrap();
        assert_eq!((ets.willing, ets.classes, ets.class_of[4]), (true, 8, 1));
        assert_eq!(ets.share_percent[..3], [Some(10), Some(90), None]);
        let pfc = dcb.pfc.unwrap();
        assert_eq!((pfc.priorities, pfc.sent[1], pfc.received[1]), (vec![4], 1, 9));
        assert_eq!(dcb.applications, [Application { selector: Selector::Dscp, protocol: 26, priority: 4 }]);
        assert_eq!(dcb.dcbx, Some(Dcbx { host: true, ieee: true }));
    }

    proptest! {
        #[test]
        fn no_answer_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            parse(&bytes);
        }
    }
}
