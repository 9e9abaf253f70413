//! A host without hardware, whose NIC has Enhanced Transmission Selection of its own.

use std::collections::BTreeMap;

use crate::attributes::attribute;
use crate::ieee_ets::IeeeEts;
use crate::nic::Nic;
use crate::own_ets::{EtsRecord, NoOwnEts, OwnEts, own_ets, plan_own_ets};
use crate::source::{Answer, Ask, DriverAsk, ENOENT, Source};

/// A host with one NIC, `eth0`, whose DCB is as an Intel NIC's (`ice_dcb_sw_dflt_cfg`): one class has all.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) driver: &'static str,
    pub(crate) ets: Vec<u8>,
    pub(crate) paused: u8,
    /// Selector, priority, protocol.
    pub(crate) entries: Vec<(u8, u8, u16)>,
    pub(crate) dcbx: Option<u8>,
}

pub(crate) const RECORD: &str = "/run/skein/net-qos/4026531840-eth0.json";
pub(crate) const TX1: &str = "/sys/class/net/eth0/queues/tx-1/traffic_class";

pub(crate) fn host() -> Host {
    let mut ets = vec![1, 8, 0, 100, 0, 0, 0, 0, 0, 0, 0];
    ets.extend([0; 8]);
    ets.extend([2, 0, 0, 0, 0, 0, 0, 0]);
    ets.resize(59, 0);
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let files = [
        file("/proc/net/unix", "Num RefCount\n0: 2 0 10000 1 1 1 /run/systemd/notify\n"),
        file("/sys/class/net/eth0/queues/tx-0/traffic_class", "0\n"),
        file(TX1, "0\n"),
    ];
    Host { files: files.into(), driver: "i40e", ets, paused: 0, entries: vec![(1, 3, 0x8906)], dcbx: Some(0x01 | 0x08) }
}

impl Source for Host {
    fn ask(&self, ask: &Ask) -> Answer {
        match ask {
            Ask::Link(path) if path == "/proc/thread-self/ns/net" => Answer::Text("net:[4026531840]".into()),
            Ask::File(path) => self.files.get(path).cloned().map_or(Answer::Refused(ENOENT), Answer::Text),
            Ask::Directory(path) if path == "/sys/class/net/eth0/queues" => {
                Answer::Names(["rx-0", "tx-0", "tx-1"].map(str::to_owned).to_vec())
            }
            Ask::Driver(_, DriverAsk::Info) => {
                let mut info = vec![0; 196];
                info[4..4 + self.driver.len()].copy_from_slice(self.driver.as_bytes());
                Answer::Bytes(info)
            }
            Ask::Dcb(nic) if nic == "eth0" => {
                let mut pfc = vec![8, self.paused];
                pfc.resize(136, 0);
                let entry = |(selector, priority, protocol): &(u8, u8, u16)| {
                    attribute(1, &[&[*selector, *priority][..], &protocol.to_ne_bytes()].concat())
                };
                let entries: Vec<u8> = self.entries.iter().flat_map(entry).collect();
                let ieee = [attribute(1, &self.ets), attribute(2, &pfc), attribute(3, &entries)].concat();
                let dcbx = self.dcbx.map(|flags| attribute(14, &[flags])).unwrap_or_default();
                Answer::Bytes([vec![0; 4], attribute(1, b"eth0\0"), attribute(13, &ieee), dcbx].concat())
            }
            _ => Answer::Refused(95),
        }
    }
}

impl Host {
    pub(crate) fn plan(&self) -> Result<EtsRecord, NoOwnEts> {
        plan_own_ets(self, &nic(), 90, 5, false)
    }

    /// Sets as a driver does.
    pub(crate) fn set(&mut self, ets: &IeeeEts) {
        // The settings are the message's last attribute but for padding.
        let message = ets.setting("eth0");
        self.ets = message[message.len() - 60..message.len() - 1].to_vec();
        let class = if ets.class_of().contains(&1) { "1\n" } else { "0\n" };
        self.files.insert(TX1.into(), class.into());
    }

    pub(crate) fn keep(&mut self, record: &EtsRecord) {
        self.files.insert(RECORD.into(), serde_json::to_string(record).unwrap());
    }

    pub(crate) fn state(&self) -> OwnEts {
        own_ets(self, &nic())
    }
}

pub(crate) fn nic() -> Nic {
    Nic { name: "eth0".into(), index: 4, ..Nic::default() }
}
