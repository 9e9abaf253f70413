//! From a store's words to etcd's, and back.

use etcd_client::{
    Compare as EtcdCompare, CompareOp, DeleteOptions, Event, EventType, KeyValue, PutOptions, Txn, TxnOp,
};
use skein_store::{
    Cause, Change, Compare, Entry, Key, Keys, LeaseId, Operation, Range, Revision, StoreError, Transaction, Value,
    WatchEvent,
};

use crate::failure::EtcdError;

/// What all keys begin with.
#[derive(Debug, Clone)]
pub(crate) struct Namespace(pub String);

/// Keys from one on, up to another that is not one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeySpan {
    pub from: Vec<u8>,
    pub until: Vec<u8>,
}

impl Namespace {
    /// All keys below a path.
    pub fn below(&self, path: &str) -> KeySpan {
        let from = format!("{}{path}", self.0).into_bytes();
        // It ends with a slash, and a 0 comes after a slash.
        let mut until = from.clone();
        until.pop();
        until.push(b'/' + 1);
        KeySpan { from, until }
    }

    /// The keys of a range.
    pub fn span(&self, range: &Range) -> KeySpan {
        let mut span = match &range.keys {
            Keys::One(key) => {
                let from = self.key(key);
                KeySpan { until: after(from.clone()), from }
            }
            Keys::Below(prefix) => self.below(prefix.as_str()),
        };
        if let Some(key) = &range.start_after {
            span.from = span.from.max(after(self.key(key)));
            if span.from >= span.until {
                // Nothing is left. A key with a 0 is none, and etcd has an answer with a revision.
                span.until = after(span.from.clone());
            }
        }
        span
    }

    pub fn key(&self, key: &Key) -> Vec<u8> {
        format!("{}{key}", self.0).into_bytes()
    }

    pub fn entry(&self, found: &KeyValue) -> Result<Entry, StoreError> {
        let value = Value::new(found.value());
        Ok(Entry {
            key: self.own_key(found.key())?,
            value: value.map_err(|error| StoreError::Corrupt(Cause::new(error)))?,
            created: revision(found.create_revision()),
            modified: revision(found.mod_revision()),
            version: unsigned(found.version()),
            lease: if found.lease() == 0 { None } else { Some(LeaseId(unsigned(found.lease()))) },
        })
    }

    pub fn event(&self, event: &Event) -> Result<(Revision, WatchEvent), StoreError> {
        let lacks = |what| StoreError::Corrupt(Cause::new(EtcdError::Answer { what }));
        let found = event.kv().ok_or_else(|| lacks("an event's key"))?;
        let change = match event.event_type() {
            EventType::Put => Change::Put(self.entry(found)?),
            EventType::Delete => Change::Deleted,
        };
        Ok((revision(found.mod_revision()), WatchEvent { key: self.own_key(found.key())?, change }))
    }

    fn own_key(&self, key: &[u8]) -> Result<Key, StoreError> {
        let path = std::str::from_utf8(key).ok().and_then(|path| path.strip_prefix(&self.0));
        path.and_then(|path| Key::new(path).ok()).ok_or_else(|| {
            StoreError::Corrupt(Cause::new(EtcdError::Key { key: String::from_utf8_lossy(key).into_owned() }))
        })
    }

    /// A transaction that is done if all compares hold, and otherwise tells of each whether it does: by a transaction
    /// inside, of the same revision.
    pub fn transaction(&self, transaction: &Transaction) -> Txn {
        let compares: Vec<EtcdCompare> = transaction.compares.iter().map(|compare| self.compare(compare)).collect();
        let operations: Vec<TxnOp> = transaction.operations.iter().map(|operation| self.operation(operation)).collect();
        let each = compares.iter().map(|compare| TxnOp::txn(Txn::new().when([compare.clone()])));
        let each: Vec<TxnOp> = each.collect();
        Txn::new().when(compares).and_then(operations).or_else(each)
    }

    fn compare(&self, compare: &Compare) -> EtcdCompare {
        // To etcd a key that is not there has revision and lease 0. To a store it has none.
        let never = |key: &Key| EtcdCompare::version(self.key(key), CompareOp::Less, 0);
        match compare {
            Compare::Absent(key) => EtcdCompare::create_revision(self.key(key), CompareOp::Equal, 0),
            Compare::Present(key) => EtcdCompare::create_revision(self.key(key), CompareOp::Greater, 0),
            Compare::Empty(prefix) => {
                let span = self.below(prefix.as_str());
                EtcdCompare::create_revision(span.from, CompareOp::Equal, 0).with_range(span.until)
            }
            Compare::Modified(key, revision) => match known(revision.0) {
                Some(revision) => EtcdCompare::mod_revision(self.key(key), CompareOp::Equal, revision),
                None => never(key),
            },
            Compare::Created(key, revision) => match known(revision.0) {
                Some(revision) => EtcdCompare::create_revision(self.key(key), CompareOp::Equal, revision),
                None => never(key),
            },
            Compare::Value(key, value) => EtcdCompare::value(self.key(key), CompareOp::Equal, value.as_bytes()),
            Compare::Leased(key, lease) => match known(lease.0) {
                Some(lease) => EtcdCompare::lease(self.key(key), CompareOp::Equal, lease),
                None => never(key),
            },
        }
    }

    fn operation(&self, operation: &Operation) -> TxnOp {
        match operation {
            Operation::Put { key, value, lease } => {
                let options = lease.map(|lease| PutOptions::new().with_lease(signed(lease.0)));
                TxnOp::put(self.key(key), value.as_bytes(), options)
            }
            Operation::Delete(key) => TxnOp::delete(self.key(key), None),
            Operation::DeletePrefix(prefix) => {
                let span = self.below(prefix.as_str());
                TxnOp::delete(span.from, Some(DeleteOptions::new().with_range(span.until)))
            }
        }
    }
}

/// The first key after a key.
fn after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// A number as etcd has it, if it is one that names something.
fn known(number: u64) -> Option<i64> {
    i64::try_from(number).ok().filter(|number| *number != 0)
}

/// A number as etcd has it. Greater ones name nothing.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// etcd's numbers are never negative.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(crate) fn revision(number: i64) -> Revision {
    Revision(unsigned(number))
}

#[cfg(test)]
mod tests {
    use skein_store::Prefix;

    use super::*;

    #[test]
    fn ranges_are_below_the_namespace() {
        let namespace = Namespace("/skein/".into());
        let span = |range: &Range| {
            let span = namespace.span(range);
            [span.from, span.until].map(|key| String::from_utf8(key).expect("it is text"))
        };
        let key = |path: &str| Key::new(path).expect("it is a key");
        let host = Range::below(Prefix::new("host/").expect("it is a prefix"));
        assert_eq!(span(&Range::below(Prefix::all())), ["/skein/", "/skein0"]);
        assert_eq!(span(&host), ["/skein/host/", "/skein/host0"]);
        assert_eq!(span(&host.clone().after(key("host/a"))), ["/skein/host/a\0", "/skein/host0"]);
        assert_eq!(span(&host.clone().after(key("a"))), ["/skein/host/", "/skein/host0"]);
        assert_eq!(span(&host.after(key("x"))), ["/skein/x\0", "/skein/x\0\0"]);
        assert_eq!(span(&Range::one(key("leader"))), ["/skein/leader", "/skein/leader\0"]);
    }
}
