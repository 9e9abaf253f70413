//! Says what a source offers its target: how the target's QEMU is to be started, and how the guest gets there.
//!
//! An offer is carried out in full, or refused. An unknown field or value is an error: with half of what the source
//! asked for, another guest would arrive than the source expects.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skein_hypervisor::MigrationSettings;
use skein_inventory::{KeptRamPolicy, Links, RoomNeed, Route};

use crate::launch::Launch;

/// The default of [`Offer::delta_memory`], in per cent of the guest's RAM: enough to know all of what the target holds.
pub(crate) const DELTA_MEMORY_DEFAULT_PERCENT: f64 = 4.0;

/// How the target's QEMU is to be started, and how its guest gets there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    pub(crate) launch: Launch,
    /// The multifd channels; 0: one stream.
    pub(crate) channels: u8,
    /// The time for which the guest may stand still, in milliseconds.
    pub(crate) downtime_limit_ms: u64,
    pub(crate) transport: Route,
    /// The reason why pages go through the target's QEMU, and not straight into the guest's RAM; `None`: there is none.
    #[serde(default)]
    pub(crate) indirect: Option<String>,
    /// The per cent by which the guest may be throttled; `None`: not at all.
    #[serde(default)]
    pub(crate) allow_throttle: Option<u8>,
    /// The memory for knowing what the target holds, in per cent of the guest's RAM.
    #[serde(default)]
    pub(crate) delta_memory: Option<f64>,
    /// Whether nothing is to go over RDMA.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) without_rdma: bool,
    /// Whether a person set a deadline for the migration.
    #[serde(default)]
    pub(crate) has_deadline: bool,
    /// The priority of the migration, by the VM's definition.
    pub(crate) priority: u8,
    /// What the source keeps of the guest's RAM.
    #[serde(default)]
    pub(crate) keep: Option<KeptRamPolicy>,
    /// What the target's QEMU needs; `None`: its definition says so, or the QEMU does once it is started.
    #[serde(default)]
    pub(crate) need: Option<RoomNeed>,
}

impl std::fmt::Display for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.channels {
            0 => write!(f, "one stream")?,
            channels => write!(f, "{channels} multifd channels")?,
        }
        write!(f, ", downtime limit {} ms, transport {}", self.downtime_limit_ms, self.transport)?;
        if self.without_rdma {
            f.write_str(", without RDMA")?;
        }
        if let Some(percent) = self.allow_throttle {
            write!(f, ", throttled by {percent} % at most")?;
        }
        match &self.indirect {
            None => Ok(()),
            Some(why) => write!(f, ", {why}"),
        }
    }
}

/// The reason why an offer cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum OfferError {
    #[error("it asks for {}, which this version of skein does not \
             know", .0.iter().cloned().collect::<Vec<_>>().join(", "))]
    Unknown(BTreeSet<String>),
    #[error("it makes no sense")]
    Malformed(#[source] serde_json::Error),
}

impl Offer {
    /// Reads an offer as it came from its source.
    ///
    /// # Errors
    ///
    /// A part of the offer is missing, is of another kind, or is not known here.
    pub fn from_json(offer: &Value) -> Result<Offer, OfferError> {
        let mut unknown = BTreeSet::new();
        let read = serde_ignored::deserialize(offer, |path| {
            // If a variant wraps another type the path has a question mark.
            unknown.insert(path.to_string().replace(".?", ""));
        });
        match (read, unknown.is_empty()) {
            (Ok(offer), true) => Ok(offer),
            (Ok(_), false) => Err(OfferError::Unknown(unknown)),
            (Err(error), _) => Err(OfferError::Malformed(error)),
        }
    }

    /// Returns whether memory may go over RDMA.
    pub(super) fn may_use_rdma(&self) -> bool {
        self.transport.links() == Links::Any && !self.without_rdma
    }

    /// Returns the settings on which the hypervisors of both ends have to agree.
    pub(super) fn migration_settings(&self) -> MigrationSettings {
        MigrationSettings {
            channels: Some(self.channels).filter(|channels| *channels > 0),
            downtime_limit_ms: self.downtime_limit_ms,
        }
    }

    /// Returns the offer as it goes to its target.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("plain data always serialises")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use skein_inventory::Definition;

    use super::*;
    use crate::error_chain;

    fn offer() -> Value {
        let text = "name = 'web'\nmemory = '1 GiB'\ncpus = 1\nmachine = 'pc-q35-10.0'\naccel = 'tcg'\n";
        let definition = Definition::parse(text, "web.toml").unwrap();
        json!({
            "launch": {"definition": {"definition": definition, "odd_ram": false}},
            "channels": 2, "downtime_limit_ms": 300, "transport": "auto", "priority": 50,
        })
    }

    #[test]
    fn an_offer_is_read_as_it_was_written() {
        let read = Offer::from_json(&offer()).unwrap();
        assert_eq!((read.channels, read.indirect.as_deref()), (2, None));
        let full = Offer {
            indirect: Some("for a reason".into()),
            allow_throttle: Some(50),
            delta_memory: Some(2.5),
            without_rdma: true,
            has_deadline: true,
            keep: Some(KeptRamPolicy { ram_bytes: 1 << 30, time_s: 60 }),
            need: read.launch.need(),
            ..read
        };
        assert_eq!(Offer::from_json(&full.to_json()).unwrap(), full);
    }

    #[test]
    fn what_is_not_known_of_an_offer_is_refused_and_named() {
        for (path, value, says) in [
            ("/mirror", json!(true), "asks for mirror"),
            ("/launch/definition/shape", json!(1), "asks for launch.shape"),
            ("/launch/definition/definition/gpu", json!({"kind": "a"}), "asks for launch.definition.gpu"),
            ("/transport", json!("rdma"), "unknown variant `rdma`"),
            ("/launch", json!({"libvirt": {}}), "unknown variant `libvirt`"),
            ("/channels", json!(-1), "invalid value"),
            ("/priority", Value::Null, "invalid type: null"),
        ] {
            let mut odd = offer();
            let (parent, key) = path.rsplit_once('/').unwrap();
            odd.pointer_mut(parent).unwrap()[key] = value;
            let words = error_chain(&Offer::from_json(&odd).unwrap_err());
            assert!(words.contains(says), "{path}: {words}");
        }
        for nothing in [Value::Null, json!(""), json!({}), json!([])] {
            assert!(matches!(Offer::from_json(&nothing), Err(OfferError::Malformed(_))), "{nothing}");
        }
    }
}
