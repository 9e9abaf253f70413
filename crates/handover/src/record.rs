//! The records that an agent writes to disk about its migrations.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::source::SourceRecord;
use crate::target::TargetRecord;

/// A migration's id: chosen at random by its source, never used again. In text 16 hexadecimal digits.
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

/// The end of a migration that a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The guest was on this host.
    Source,
    /// The guest is to come to this host.
    Target,
}

/// One entry of an agent's journal. The entry is on disk before the event happens that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// This end takes part in a migration ([`SourceRecord::Begin`], [`TargetRecord::Begin`]). Also the first record of
    /// a migration that was refused before it began.
    Begin {
        /// The migration's id.
        id: MigrationId,
        /// Whether this end is the source or the target.
        role: Role,
        /// The host at the other end.
        peer: String,
        /// The VM.
        vm: String,
    },
    /// The source reached this record.
    Source(MigrationId, SourceRecord),
    /// The target reached this record.
    Target(MigrationId, TargetRecord),
}

impl Record {
    /// Returns the id of the migration that the record is about.
    pub fn id(&self) -> MigrationId {
        match self {
            Record::Begin { id, .. } | Record::Source(id, _) | Record::Target(id, _) => *id,
        }
    }
}

/// The last record of a migration on one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LastRecord {
    /// The last record of a source.
    Source(SourceRecord),
    /// The last record of a target.
    Target(TargetRecord),
}

/// A migration as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JournalledMigration {
    /// The host at the other end.
    pub peer: String,
    /// The VM.
    pub vm: String,
    /// The last record: how far the migration is.
    pub last_record: LastRecord,
}

impl JournalledMigration {
    /// Returns whether nothing is left to do for the migration.
    pub fn is_settled(&self) -> bool {
        matches!(
            self.last_record,
            LastRecord::Source(SourceRecord::Settled) | LastRecord::Target(TargetRecord::Settled)
        )
    }
}

/// Returns the migrations of a journal. Records of migrations without a beginning are damage, and are ignored.
pub fn last_records(records: &[Record]) -> BTreeMap<MigrationId, JournalledMigration> {
    last_records_in_order(records).into_iter().collect()
}

/// As [`last_records`], in the order in which the migrations began here.
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

/// Returns the records that a journal must keep: the beginning and the last record of each migration that is not
/// settled. They keep their order.
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
