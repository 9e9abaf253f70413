//! What an agent keeps on disk of its migrations.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::source::SourceRecord;
use crate::target::TargetRecord;

/// A migration's name, chosen at random by its source, never used again. 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MigrationId(pub u64);

impl fmt::Display for MigrationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for MigrationId {
    type Err = String;

    fn from_str(text: &str) -> Result<MigrationId, String> {
        let is_plain = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let id = is_plain.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(MigrationId).ok_or_else(|| format!("'{text}' is not a migration's id (16 hexadecimal digits)"))
    }
}

impl From<MigrationId> for String {
    fn from(id: MigrationId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for MigrationId {
    type Error = String;

    fn try_from(text: String) -> Result<MigrationId, String> {
        text.parse()
    }
}

/// Which end of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The guest was here.
    Source,
    /// The guest is to come here.
    Target,
}

/// One entry of an agent's journal. It is on disk before what it stands for happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// This end takes part in a migration ([`SourceRecord::Begin`], [`TargetRecord::Begin`]; also the first record of a
    /// migration that was refused unseen).
    Begin {
        /// The migration's number.
        id: MigrationId,
        /// As what.
        role: Role,
        /// The host at the other end.
        peer: String,
        /// The VM.
        vm: String,
    },
    /// The source went on.
    Source(MigrationId, SourceRecord),
    /// The target went on.
    Target(MigrationId, TargetRecord),
}

impl Record {
    /// The migration that it is about.
    pub fn id(&self) -> MigrationId {
        match self {
            Record::Begin { id, .. } | Record::Source(id, _) | Record::Target(id, _) => *id,
        }
    }
}

/// The last record of a migration on one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LastRecord {
    /// Of the source.
    Source(SourceRecord),
    /// Of the target.
    Target(TargetRecord),
}

/// A migration as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JournalledMigration {
    /// The host at the other end.
    pub peer: String,
    /// The VM.
    pub vm: String,
    /// How far it is.
    pub last_record: LastRecord,
}

impl JournalledMigration {
    /// Nothing is left to do for it.
    pub fn is_settled(&self) -> bool {
        matches!(
            self.last_record,
            LastRecord::Source(SourceRecord::Settled) | LastRecord::Target(TargetRecord::Settled)
        )
    }
}

/// The migrations of a journal. Records of migrations that never began are damage that this makes nothing of.
pub fn last_records(records: &[Record]) -> BTreeMap<MigrationId, JournalledMigration> {
    last_records_in_order(records).into_iter().collect()
}

/// The same in the order in which they began here.
pub(crate) fn last_records_in_order(records: &[Record]) -> Vec<(MigrationId, JournalledMigration)> {
    let mut all: BTreeMap<MigrationId, JournalledMigration> = BTreeMap::new();
    let mut order = Vec::new();
    for record in records {
        match record {
            Record::Begin { id, role, peer, vm } => {
                let standing = match role {
                    Role::Source => LastRecord::Source(SourceRecord::Begin),
                    Role::Target => LastRecord::Target(TargetRecord::Begin),
                };
                all.entry(*id).or_insert_with(|| {
                    order.push(*id);
                    JournalledMigration { peer: peer.clone(), vm: vm.clone(), last_record: standing }
                });
            }
            Record::Source(id, record) => {
                if let Some(JournalledMigration { last_record: LastRecord::Source(last), .. }) = all.get_mut(id) {
                    *last = (*last).max(*record);
                }
            }
            Record::Target(id, record) => {
                if let Some(JournalledMigration { last_record: LastRecord::Target(last), .. }) = all.get_mut(id) {
                    *last = (*last).max(*record);
                }
            }
        }
    }
    order.into_iter().filter_map(|id| Some((id, all.remove(&id)?))).collect()
}

/// The records that a journal cannot do without: of each migration that is not settled, its beginning and its last.
/// They keep their order.
pub fn needed(records: &[Record]) -> Vec<Record> {
    let mut kept = Vec::new();
    for (id, begun) in last_records_in_order(records) {
        let (role, last) = match begun.last_record {
            _ if begun.is_settled() => continue,
            LastRecord::Source(last) => (Role::Source, Record::Source(id, last)),
            LastRecord::Target(last) => (Role::Target, Record::Target(id, last)),
        };
        kept.extend([Record::Begin { id, role, peer: begun.peer, vm: begun.vm }, last]);
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = MigrationId(0x7f);
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "7f", "000000000000007G", "+00000000000007f", "00000000000000007f"] {
            assert!(bad.parse::<MigrationId>().is_err(), "{bad}");
        }
    }

    fn record() -> impl Strategy<Value = Record> {
        let id = (0u64..4).prop_map(MigrationId);
        let source = prop_oneof![
            Just(SourceRecord::Grant),
            Just(SourceRecord::Release),
            Just(SourceRecord::Keep),
            Just(SourceRecord::Settled)
        ];
        let target = prop_oneof![Just(TargetRecord::Run), Just(TargetRecord::Refused), Just(TargetRecord::Settled)];
        prop_oneof![
            (id.clone(), any::<bool>()).prop_map(|(id, source)| Record::Begin {
                id,
                role: if source { Role::Source } else { Role::Target },
                peer: "b".into(),
                vm: "v".into()
            }),
            (id.clone(), source).prop_map(|(id, record)| Record::Source(id, record)),
            (id, target).prop_map(|(id, record)| Record::Target(id, record)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_needed_says_the_same(records in prop::collection::vec(record(), 0..40)) {
            let mut all = last_records(&records);
            all.retain(|_, begun| !begun.is_settled());
            let kept = needed(&records);
            let order = |records| last_records_in_order(records).into_iter().filter(|(_, begun)| !begun.is_settled());
            prop_assert!(order(&kept).eq(order(&records)));
            prop_assert_eq!(last_records(&kept), all);
            prop_assert_eq!(needed(&kept), kept);
        }
    }
}
