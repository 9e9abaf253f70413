//! The settings of Enhanced Transmission Selection as they are set: `struct ieee_ets` of `linux/dcbnl.h`, and the
//! messages that carry the settings to a NIC's driver.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::attributes::{attribute, attributes};
use crate::dcb::{DCB_ATTR_DCBX, DCB_ATTR_IEEE, DCB_ATTR_IEEE_ETS, DCB_FIXED_BYTES, IEEE_8021QAZ_TSA_ETS};
use crate::source::hex;

/// Holds the size of `struct ieee_ets`.
const ETS_BYTES: usize = 59;
/// The number of traffic classes and of priorities (`IEEE_8021QAZ_MAX_TCS`).
const CLASSES: usize = 8;
// Where the tables are in `struct ieee_ets`. Between and behind them: what is received, what is recommended to the
// switch.
const WILLING_AT: usize = 0;
const CLASSES_AT: usize = 1;
const SHARES_AT: usize = 3;
const ALGORITHMS_AT: usize = 19;
const CLASS_OF_AT: usize = 27;
/// How a traffic class is served: strictly by priority.
const TSA_STRICT: u8 = 0;
/// Sets IEEE 802.1Qaz settings, and asks for them.
const DCB_CMD_IEEE_SET: u8 = 20;
const DCB_CMD_IEEE_GET: u8 = 21;
const DCB_ATTR_IFNAME: u16 = 1;

/// The settings of a NIC, byte for byte as its driver told them or is to have them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IeeeEts([u8; ETS_BYTES]);

impl IeeeEts {
    /// Reads the answer to `DCB_CMD_IEEE_GET`. `None`: the driver tells no such settings.
    pub fn read(payload: &[u8]) -> Option<IeeeEts> {
        let find = |bytes, wanted: u16| attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        let ieee = find(payload.get(DCB_FIXED_BYTES..)?, DCB_ATTR_IEEE)?;
        IeeeEts::of(find(ieee, DCB_ATTR_IEEE_ETS)?)
    }

    fn of(bytes: &[u8]) -> Option<IeeeEts> {
        Some(IeeeEts(*bytes.first_chunk()?))
    }

    fn table(&self, from: usize) -> [u8; CLASSES] {
        self.0[from..from + CLASSES].try_into().expect("the slice has that length")
    }

    /// Returns how many traffic classes the NIC has.
    pub fn classes(&self) -> u8 {
        self.0[CLASSES_AT]
    }

    /// Returns the traffic class of each priority.
    pub fn class_of(&self) -> [u8; CLASSES] {
        self.table(CLASS_OF_AT)
    }

    /// Returns the share of each traffic class in per cent. Classes that go by priority alone have 0.
    pub fn shares(&self) -> [u8; CLASSES] {
        let (mut shares, algorithms) = (self.table(SHARES_AT), self.table(ALGORITHMS_AT));
        for (share, algorithm) in shares.iter_mut().zip(algorithms) {
            if algorithm == TSA_STRICT {
                *share = 0;
            }
        }
        shares
    }

    /// Returns these settings with two classes: 1 has one priority and a share, 0 has all other priorities and the
    /// rest. The NIC takes no settings from the switch. Nothing else is changed.
    pub(crate) fn with_share(self, priority: u8, percent: u8) -> IeeeEts {
        let mut bytes = self.0;
        bytes[WILLING_AT] = 0;
        bytes[SHARES_AT..][..CLASSES].copy_from_slice(&[100 - percent, percent, 0, 0, 0, 0, 0, 0]);
        bytes[ALGORITHMS_AT..][..CLASSES].copy_from_slice(&[
            IEEE_8021QAZ_TSA_ETS,
            IEEE_8021QAZ_TSA_ETS,
            0,
            0,
            0,
            0,
            0,
            0,
        ]);
        let class_of: [u8; CLASSES] = std::array::from_fn(|of| u8::from(of == usize::from(priority)));
        bytes[CLASS_OF_AT..][..CLASSES].copy_from_slice(&class_of);
        IeeeEts(bytes)
    }

    /// Returns whether a NIC that has `other` does the same: the tables of what is sent, and whether the switch's word
    /// counts. Drivers do not keep what is received or recommended.
    pub fn does_as(&self, other: &IeeeEts) -> bool {
        let tables = |of: &IeeeEts| [SHARES_AT, ALGORITHMS_AT, CLASS_OF_AT].map(|from| of.table(from));
        tables(self) == tables(other) && self.0[WILLING_AT] == other.0[WILLING_AT]
    }

    /// Returns the body of a message of type `RTM_SETDCB` that gives a NIC these settings.
    pub fn setting(&self, nic: &str) -> Vec<u8> {
        let ieee = attribute(DCB_ATTR_IEEE, &attribute(DCB_ATTR_IEEE_ETS, &self.0));
        [dcb_question(DCB_CMD_IEEE_SET, nic), ieee].concat()
    }
}

/// As hexadecimal digits.
impl fmt::Debug for IeeeEts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::text(&self.0))
    }
}

impl Serialize for IeeeEts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex::text(&self.0))
    }
}

impl<'de> Deserialize<'de> for IeeeEts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<IeeeEts, D::Error> {
        let bytes = hex::bytes(&String::deserialize(from)?).filter(|bytes| bytes.len() == ETS_BYTES);
        bytes.and_then(|bytes| IeeeEts::of(&bytes)).ok_or_else(|| D::Error::custom("no struct ieee_ets"))
    }
}

/// Who has a NIC's settings in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DcbxMode {
    /// The host, by IEEE's rules: what is set there counts.
    Host,
    /// The host, by the rules of before (CEE): settings of IEEE's are refused.
    HostCee,
    /// The NIC's firmware.
    Firmware,
    /// The driver does not tell.
    Untold,
}

/// Reads whose word counts from the answer to `DCB_CMD_IEEE_GET`.
pub(crate) fn dcbx_mode(payload: &[u8]) -> DcbxMode {
    const HOST: u8 = 0x01;
    const LLD_MANAGED: u8 = 0x02;
    const VER_IEEE: u8 = 0x08;
    let fixed = payload.get(DCB_FIXED_BYTES..).unwrap_or_default();
    let flags = attributes(fixed).find(|(kind, _)| *kind == DCB_ATTR_DCBX).and_then(|(_, value)| value.first());
    match flags.copied() {
        None | Some(0) => DcbxMode::Untold,
        Some(flags) if flags & HOST == 0 || flags & LLD_MANAGED != 0 => DcbxMode::Firmware,
        Some(flags) if flags & VER_IEEE == 0 => DcbxMode::HostCee,
        Some(_) => DcbxMode::Host,
    }
}

/// Returns the body of a message that asks for a NIC's settings (`RTM_GETDCB`).
pub fn asking(nic: &str) -> Vec<u8> {
    dcb_question(DCB_CMD_IEEE_GET, nic)
}

/// Reads the answer to a setting: the driver's error number, or that it has taken the settings. `None`: the answer is
/// none to a setting. A driver that cannot set ETS answers as if it had, so the settings are to be read back.
pub fn set_answer(payload: &[u8]) -> Option<Result<(), i32>> {
    let mut attributes = attributes(payload.get(DCB_FIXED_BYTES..)?);
    if payload[1] != DCB_CMD_IEEE_SET {
        return None;
    }
    // The kernel puts what the driver returned, 0 or a negative number of an error, into one byte.
    let said = attributes.find(|(kind, _)| *kind == DCB_ATTR_IEEE).and_then(|(_, value)| value.first().copied())?;
    Some(if said == 0 { Ok(()) } else { Err(i32::from(said.wrapping_neg())) })
}

/// Returns a `struct dcbmsg` and the NIC's name.
fn dcb_question(command: u8, nic: &str) -> Vec<u8> {
    [vec![0, command, 0, 0], attribute(DCB_ATTR_IFNAME, &[nic.as_bytes(), &[0]].concat())].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_ets() -> impl Strategy<Value = IeeeEts> {
        proptest::collection::vec(any::<u8>(), ETS_BYTES).prop_map(|bytes| IeeeEts::of(&bytes).unwrap())
    }

    #[test]
    fn a_setting_is_as_the_kernels_headers_say() {
        let former = IeeeEts([0; ETS_BYTES]);
        let body = former.with_share(5, 90).setting("eth0");
        assert_eq!(body[..4], [0, 20, 0, 0], "struct dcbmsg");
        assert_eq!(body[4..16], [9, 0, 1, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0], "DCB_ATTR_IFNAME");
        assert_eq!(body[16..24], [68, 0, 13, 0, 63, 0, 1, 0], "DCB_ATTR_IEEE, DCB_ATTR_IEEE_ETS");
        let ets = &body[24..83];
        assert_eq!(ets[3..11], [10, 90, 0, 0, 0, 0, 0, 0], "tc_tx_bw");
        assert_eq!(ets[19..27], [2, 2, 0, 0, 0, 0, 0, 0], "tc_tsa");
        assert_eq!(ets[27..35], [0, 0, 0, 0, 0, 1, 0, 0], "prio_tc");
        assert_eq!(body[83..], [0], "padding");
        assert_eq!(asking("lo")[..], [0, 21, 0, 0, 7, 0, 1, 0, b'l', b'o', 0, 0]);
    }

    #[test]
    fn what_the_driver_said_is_one_byte() {
        let answer = |said: u8| [vec![0, 20, 0, 0], vec![5, 0, 13, 0, said, 0, 0, 0]].concat();
        assert_eq!(set_answer(&answer(0)), Some(Ok(())));
        assert_eq!(set_answer(&answer(22u8.wrapping_neg())), Some(Err(22)));
        let mut asked = answer(0);
        asked[1] = 21;
        assert_eq!(set_answer(&asked), None);
        for length in 0..9 {
            assert_eq!(set_answer(&answer(0)[..length]), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn what_is_set_is_what_is_read(ets in any_ets(), nic in "[a-z0-9.]{1,15}") {
            // A setting has the same form as the answer to a question.
            let body = ets.setting(&nic);
            prop_assert_eq!(body.len() % 4, 0);
            prop_assert_eq!(IeeeEts::read(&body), Some(ets));
            for length in 0..body.len() - 1 {
                prop_assert_eq!(IeeeEts::read(&body[..length]), None);
            }
            let written = serde_json::to_string(&ets).unwrap();
            prop_assert_eq!(serde_json::from_str::<IeeeEts>(&written).unwrap(), ets);
            prop_assert!(serde_json::from_str::<IeeeEts>(&written.replacen('"', "\"00", 1)).is_err());
        }

        #[test]
        fn a_share_changes_what_is_sent_and_nothing_else(ets in any_ets(), priority in 1..7u8, percent in 1..100u8) {
            let shared = ets.with_share(priority, percent);
            prop_assert_eq!(shared.shares(), [100 - percent, percent, 0, 0, 0, 0, 0, 0]);
            prop_assert_eq!(shared.class_of()[usize::from(priority)], 1);
            prop_assert_eq!(shared.class_of().iter().filter(|class| **class != 0).count(), 1);
            let changed = |at: &usize| *at == 0 || (3..11).contains(at) || (19..35).contains(at);
            for at in (0..ETS_BYTES).filter(|at| !changed(at)) {
                prop_assert_eq!(shared.0[at], ets.0[at], "{}", at);
            }
            prop_assert!(shared.does_as(&ets.with_share(priority, percent)));
            prop_assert!(!shared.does_as(&ets.with_share(priority, percent % 99 + 1)));
        }

        #[test]
        fn no_answer_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            IeeeEts::read(&bytes);
            set_answer(&bytes);
        }
    }
}
