//! The store's records in memory, by kind, and what of them is to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use skein_api::cluster::{AuditRecord, ClusterSettings, Operation};
use thiserror::Error;

use crate::records::{
    CLUSTER_KEY, ClusterRecord, HostRecord, PowerRoundRecord, Record, RemovedRecord, RepeatRecord, RestoredRecord,
    RuleRecord, SETTINGS_KEY, TicketRecord, TokenRecord, VmRecord, VotersRecord,
};
use crate::sound::LeftOut;

/// A record, and the store's revision that last changed it; 0 while it was never written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored<T> {
    /// The record.
    pub value: T,
    /// The revision.
    pub revision: u64,
}

/// A change of a key of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key gets a value.
    Put {
        /// The key.
        key: String,
        /// The value: JSON.
        value: Vec<u8>,
    },
    /// The key is taken away.
    Delete {
        /// The key.
        key: String,
    },
}

impl Change {
    /// Returns the key.
    pub fn key(&self) -> &str {
        match self {
            Change::Put { key, .. } | Change::Delete { key } => key,
        }
    }
}

/// Why the store's content cannot be used.
#[derive(Debug, Error)]
#[error("the store's value of '{key}' cannot be read: restore a backup, or use a newer version of skein-controller")]
pub struct BadRecord {
    /// The key.
    pub key: String,
    /// Why not.
    #[source]
    pub source: serde_json::Error,
}

/// The records of one kind, by the key's last part.
pub type Table<T> = BTreeMap<String, Stored<T>>;

/// All records, as they are in the store, with the changes that are not written yet.
#[derive(Debug, Default)]
pub struct Tables {
    /// The cluster.
    pub cluster: Option<ClusterRecord>,
    /// The hosts.
    pub hosts: Table<HostRecord>,
    /// The hosts that were removed, and those that have joined anew since.
    pub removed: Table<RemovedRecord>,
    /// The VMs.
    pub vms: Table<VmRecord>,
    /// The operations, those that are over among them.
    pub operations: Table<Operation>,
    /// The tokens.
    pub tokens: Table<TokenRecord>,
    /// The tickets.
    pub tickets: Table<TicketRecord>,
    /// The rules.
    pub rules: Table<RuleRecord>,
    /// What is set of the whole cluster.
    pub settings: Stored<ClusterSettings>,
    /// What was decided last of hosts that sleep and wake, under one name.
    pub power: Table<PowerRoundRecord>,
    /// That the store was restored, under one name, until a leader has taken note.
    pub restored: Table<RestoredRecord>,
    /// The requests that may be repeated.
    pub repeats: Table<RepeatRecord>,
    /// The voters of watchdogs, by their numbers.
    pub voters: Table<VotersRecord>,
    /// The audit log.
    pub audit: Table<AuditRecord>,
    /// The names of the VMs that each host has by the records.
    vms_by_host: BTreeMap<String, BTreeSet<String>>,
    /// The ids of the audit log's records of what was refused.
    refused: BTreeSet<String>,
    /// What of rules and hosts' settings placement cannot use, if somebody has asked since they last changed: finding
    /// that takes a model of all hosts.
    unusable: OnceLock<Vec<LeftOut>>,
    /// What is to be written, each key once.
    staged: BTreeMap<String, Change>,
}

/// Names the table of a kind of records.
pub(crate) trait InTable: Record {
    fn table(tables: &mut Tables) -> &mut Table<Self>;

    /// Returns the host by which records of this kind are found.
    fn by_host(&self) -> Option<&str> {
        None
    }

    /// Returns whether this is a record of something that was refused.
    fn is_refused(&self) -> bool {
        false
    }

    /// Returns whether what placement goes by, beside guests, is another with this record than with the one before.
    fn is_other_for_placement(&self, _before: Option<&Self>) -> bool {
        false
    }
}

macro_rules! in_table {
    ($($record:ty => $field:ident),* $(,)?) => {
        $(impl InTable for $record {
            fn table(tables: &mut Tables) -> &mut Table<Self> {
                &mut tables.$field
            }
        })*
    };
}

in_table! {
    RemovedRecord => removed,
    Operation => operations,
    TokenRecord => tokens,
    TicketRecord => tickets,
    PowerRoundRecord => power,
    RestoredRecord => restored,
    RepeatRecord => repeats,
    VotersRecord => voters,
}

impl InTable for HostRecord {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.hosts
    }

    fn is_other_for_placement(&self, before: Option<&Self>) -> bool {
        before.is_none_or(|before| before.settings != self.settings)
    }
}

impl InTable for RuleRecord {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.rules
    }

    fn is_other_for_placement(&self, before: Option<&Self>) -> bool {
        before != Some(self)
    }
}

impl InTable for AuditRecord {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.audit
    }

    fn is_refused(&self) -> bool {
        self.is_refusal()
    }
}

impl InTable for VmRecord {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.vms
    }

    fn by_host(&self) -> Option<&str> {
        self.host.as_deref()
    }
}

impl Tables {
    /// Reads all entries of a store: key, value, revision of the last change. Keys of no known kind are passed over.
    pub fn load<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8], u64)>) -> Result<Tables, BadRecord> {
        let mut tables = Tables::default();
        for (key, value, revision) in entries {
            tables.apply(key, Some(value), revision)?;
        }
        Ok(tables)
    }

    /// Takes over a change that is in the store: a value, or its end.
    pub fn apply(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Result<(), BadRecord> {
        let bad = |source| BadRecord { key: key.to_owned(), source };
        if key == CLUSTER_KEY {
            self.cluster = value.map(serde_json::from_slice).transpose().map_err(bad)?;
            return Ok(());
        }
        if key == SETTINGS_KEY {
            let value = value.map(serde_json::from_slice).transpose().map_err(bad)?.unwrap_or_default();
            self.settings = Stored { value, revision };
            return Ok(());
        }
        self.apply_to::<HostRecord>(key, value, revision)
            .or_else(|| self.apply_to::<RemovedRecord>(key, value, revision))
            .or_else(|| self.apply_to::<VmRecord>(key, value, revision))
            .or_else(|| self.apply_to::<Operation>(key, value, revision))
            .or_else(|| self.apply_to::<TokenRecord>(key, value, revision))
            .or_else(|| self.apply_to::<TicketRecord>(key, value, revision))
            .or_else(|| self.apply_to::<RuleRecord>(key, value, revision))
            .or_else(|| self.apply_to::<PowerRoundRecord>(key, value, revision))
            .or_else(|| self.apply_to::<RestoredRecord>(key, value, revision))
            .or_else(|| self.apply_to::<VotersRecord>(key, value, revision))
            .or_else(|| self.apply_to::<RepeatRecord>(key, value, revision))
            .or_else(|| self.apply_to::<AuditRecord>(key, value, revision))
            .unwrap_or(Ok(()))
            .map_err(bad)
    }

    fn apply_to<T: InTable>(
        &mut self,
        key: &str,
        value: Option<&[u8]>,
        revision: u64,
    ) -> Option<Result<(), serde_json::Error>> {
        let name = key.strip_prefix(T::PREFIX)?;
        Some(match value.map(T::read) {
            Some(Ok(value)) => {
                self.insert(name, value, Some(revision));
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => {
                self.remove::<T>(name);
                Ok(())
            }
        })
    }

    /// Sets a record. Without a revision the record keeps the one that it has.
    fn insert<T: InTable>(&mut self, name: &str, value: T, revision: Option<u64>) {
        let host = value.by_host().map(str::to_owned);
        if value.is_other_for_placement(T::table(self).get(name).map(|stored| &stored.value)) {
            self.unusable.take();
        }
        if value.is_refused() {
            self.refused.insert(name.to_owned());
        }
        let before = match T::table(self).get_mut(name) {
            Some(stored) => {
                stored.revision = revision.unwrap_or(stored.revision);
                Some(std::mem::replace(&mut stored.value, value))
            }
            None => {
                T::table(self).insert(name.to_owned(), Stored { value, revision: revision.unwrap_or(0) });
                None
            }
        };
        let before = before.as_ref().and_then(T::by_host);
        if before != host.as_deref() {
            self.forget_at(before, name);
            if let Some(host) = host {
                self.vms_by_host.entry(host).or_default().insert(name.to_owned());
            }
        }
    }

    /// Takes a record away. Returns whether there was one.
    fn remove<T: InTable>(&mut self, name: &str) -> bool {
        let removed = T::table(self).remove(name);
        if removed.as_ref().is_some_and(|of| of.value.is_other_for_placement(None)) {
            self.unusable.take();
        }
        if removed.as_ref().is_some_and(|of| of.value.is_refused()) {
            self.refused.remove(name);
        }
        self.forget_at(removed.as_ref().and_then(|of| of.value.by_host()), name);
        removed.is_some()
    }

    fn forget_at(&mut self, host: Option<&str>, name: &str) {
        let Some((host, there)) = host.and_then(|host| Some((host, self.vms_by_host.get_mut(host)?))) else { return };
        there.remove(name);
        if there.is_empty() {
            self.vms_by_host.remove(host);
        }
    }

    /// Returns the VMs that a host has by the records, by name.
    pub fn vms_of<'a>(&'a self, host: &str) -> impl Iterator<Item = (&'a str, &'a VmRecord)> {
        let names = self.vms_by_host.get(host).into_iter().flatten();
        names.filter_map(|name| Some((name.as_str(), &self.vms.get(name)?.value)))
    }

    /// Returns what of rules and hosts' settings placement cannot use, which `find` finds if it has to be found anew.
    pub(crate) fn unusable(&self, find: impl FnOnce() -> Vec<LeftOut>) -> &[LeftOut] {
        self.unusable.get_or_init(find)
    }

    /// Returns the ids of the audit log's records of what was refused, the oldest first.
    pub(crate) fn refused(&self) -> &BTreeSet<String> {
        &self.refused
    }

    /// Returns the names of the VMs that a host has by the records. `None`: it has none.
    pub(crate) fn names_on(&self, host: &str) -> Option<&BTreeSet<String>> {
        self.vms_by_host.get(host)
    }

    /// Changes a record here, and stages the change for the store. The record's revision stays until the change is
    /// written.
    pub(crate) fn put<T: InTable>(&mut self, name: &str, value: T) {
        let key = format!("{}{name}", T::PREFIX);
        self.staged.insert(key.clone(), Change::Put { key, value: value.bytes() });
        self.insert(name, value, None);
    }

    /// Changes what is set of the whole cluster, as [`Tables::put`] does.
    pub(crate) fn put_settings(&mut self, settings: ClusterSettings) {
        let value = serde_json::to_vec(&settings).expect("plain data always serialises");
        self.staged.insert(SETTINGS_KEY.into(), Change::Put { key: SETTINGS_KEY.into(), value });
        self.settings.value = settings;
    }

    /// Takes a record away here, and stages the change for the store.
    pub(crate) fn delete<T: InTable>(&mut self, name: &str) {
        let key = format!("{}{name}", T::PREFIX);
        if self.remove::<T>(name) {
            self.staged.insert(key.clone(), Change::Delete { key });
        }
    }

    /// Returns whether there is something to write.
    pub(crate) fn is_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Returns up to `most` changes that are to be written, by key, and stages them no more.
    pub(crate) fn take_staged(&mut self, most: usize) -> Vec<Change> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((_, change)) = self.staged.pop_first()
        {
            taken.push(change);
        }
        taken
    }

    /// Notes that changes are in the store since this revision.
    pub(crate) fn written(&mut self, changes: &[Change], revision: u64) {
        fn note<T: InTable>(tables: &mut Tables, key: &str, revision: u64) {
            if let Some(found) = key.strip_prefix(T::PREFIX).and_then(|name| T::table(tables).get_mut(name)) {
                found.revision = revision;
            }
        }
        for change in changes {
            let key = change.key();
            if key == SETTINGS_KEY {
                self.settings.revision = revision;
            }
            note::<HostRecord>(self, key, revision);
            note::<RemovedRecord>(self, key, revision);
            note::<VmRecord>(self, key, revision);
            note::<Operation>(self, key, revision);
            note::<TokenRecord>(self, key, revision);
            note::<TicketRecord>(self, key, revision);
            note::<RuleRecord>(self, key, revision);
            note::<PowerRoundRecord>(self, key, revision);
            note::<RepeatRecord>(self, key, revision);
            note::<VotersRecord>(self, key, revision);
            note::<AuditRecord>(self, key, revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use skein_api::cluster::{HostSettings, UnixMs};

    use super::*;

    #[test]
    fn vms_are_found_by_their_host_whatever_was_done() {
        let mut tables = Tables::default();
        // A generator of its own, so that the course is always the same.
        let mut seed = 1_u32;
        let mut any = |of: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % of
        };
        for step in 0..2000_u64 {
            let name = format!("vm{}", any(12));
            let host = Some(any(5)).filter(|host| *host > 0).map(|host| format!("h{host}"));
            let record = VmRecord { host, ..VmRecord::default() };
            match any(4) {
                0 => tables.put(&name, record),
                1 => tables.delete::<VmRecord>(&name),
                2 => tables.apply(&format!("{}{name}", VmRecord::PREFIX), Some(&record.bytes()), step).unwrap(),
                _ => tables.apply(&format!("{}{name}", VmRecord::PREFIX), None, step).unwrap(),
            }
            for host in ["h1", "h2", "h3", "h4"] {
                let there = tables.vms.iter().filter(|(_, vm)| vm.value.host.as_deref() == Some(host));
                let there: Vec<&str> = there.map(|(name, _)| name.as_str()).collect();
                let found: Vec<&str> = tables.vms_of(host).map(|(name, _)| name).collect();
                assert_eq!(found, there, "after step {step}");
                assert!(found.len() == tables.names_on(host).map_or(0, BTreeSet::len));
            }
        }
        assert!(tables.vms_by_host.values().all(|there| !there.is_empty()));
    }

    #[test]
    fn what_is_unusable_is_found_anew_after_a_change_that_placement_sees() {
        let mut tables = Tables::default();
        let found_anew = |tables: &Tables| {
            let mut anew = false;
            tables.unusable(|| {
                anew = true;
                Vec::new()
            });
            anew
        };
        let host = HostRecord::default();
        let labelled = HostRecord {
            settings: HostSettings { group: Some("rack".into()), ..HostSettings::default() },
            ..HostRecord::default()
        };
        let rule = RuleRecord { rule: serde_json::json!({"apart": {}}) };
        assert!(found_anew(&tables));
        assert!(!found_anew(&tables));
        tables.put("a", host.clone());
        assert!(found_anew(&tables), "a host is new");
        tables.put("a", HostRecord { contact_since: UnixMs(7), ..host.clone() });
        tables.put("v", VmRecord::default());
        assert!(!found_anew(&tables), "a host was seen, a VM is new");
        tables.apply(&format!("{}a", HostRecord::PREFIX), Some(&labelled.bytes()), 3).unwrap();
        assert!(found_anew(&tables), "a host has a label");
        tables.put("r", rule.clone());
        assert!(found_anew(&tables), "a rule is new");
        tables.put("r", rule);
        assert!(!found_anew(&tables), "a rule is the same");
        tables.apply(&format!("{}r", RuleRecord::PREFIX), None, 4).unwrap();
        assert!(found_anew(&tables), "a rule is gone");
        tables.delete::<HostRecord>("a");
        assert!(found_anew(&tables), "a host is gone");
    }
}
