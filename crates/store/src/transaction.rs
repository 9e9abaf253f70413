//! Transactions: what has to hold, and what is done if it does.

use crate::entry::{LeaseId, Revision, VALUE_BYTES_MAX, Value};
use crate::key::{Key, Prefix};

/// How many compares a transaction has at most, and how many operations: etcd's default `--max-txn-ops` is 128, of
/// which one is taken by the transactions inside that tell which compare does not hold.
pub const OPERATIONS_MAX: usize = 127;

/// How many bytes of keys and values a transaction has at most: 1.25 MiB. A request to etcd may have 1.5 MiB; compares
/// and operations need some 30 bytes each beside their keys and values, and their namespace. What is compared counts
/// twice: etcd is asked once more which compare does not hold.
pub const TRANSACTION_BYTES_MAX: usize = VALUE_BYTES_MAX + VALUE_BYTES_MAX / 4;

/// What has to hold for a transaction to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// Nothing is under the key.
    Absent(Key),
    /// Something is under the key.
    Present(Key),
    /// Nothing is below the prefix.
    Empty(Prefix),
    /// What is under the key was put last by this revision.
    Modified(Key, Revision),
    /// What is under the key was created by this revision, whatever was put since.
    Created(Key, Revision),
    /// This value is under the key.
    Value(Key, Value),
    /// What is under the key was put with this lease.
    Leased(Key, LeaseId),
}

/// What a transaction does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Puts a value under a key.
    Put {
        /// The key.
        key: Key,
        /// Its value.
        value: Value,
        /// The lease with which the entry ends. `None`: it stays, also if it had a lease before.
        lease: Option<LeaseId>,
    },
    /// Deletes what is under a key, if anything.
    Delete(Key),
    /// Deletes all that is below a prefix.
    DeletePrefix(Prefix),
}

/// Compares and operations: either all compares hold and all operations are done, at one revision, or nothing is done.
///
/// Compares are of the state before the operations. No key is put twice, or put and deleted: etcd refuses that.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// What has to hold.
    pub compares: Vec<Compare>,
    /// What is then done.
    pub operations: Vec<Operation>,
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All compares held.
    Committed {
        /// The revision of what was done; the store's, if nothing was to be changed.
        revision: Revision,
    },
    /// Nothing was done.
    Conflict {
        /// Which compares did not hold, by their positions in the transaction. There is at least one.
        failed: Vec<usize>,
    },
}

/// Why a transaction is none. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// The keys and values have more bytes than [`TRANSACTION_BYTES_MAX`].
    #[error("a transaction of {bytes} bytes: {TRANSACTION_BYTES_MAX} are allowed, make several of it")]
    TooManyBytes {
        /// How many they have.
        bytes: usize,
    },
    /// There are more compares or operations than [`OPERATIONS_MAX`].
    #[error("a transaction of {count} compares or operations: {OPERATIONS_MAX} are allowed, make several of it")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// A key is put twice, or put and deleted.
    #[error("{key} is written twice in one transaction: say once what becomes of it")]
    WrittenTwice {
        /// The key.
        key: Key,
    },
}

impl Compare {
    /// The key that is compared, but of a prefix.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Compare::Absent(key)
            | Compare::Present(key)
            | Compare::Modified(key, _)
            | Compare::Created(key, _)
            | Compare::Value(key, _)
            | Compare::Leased(key, _) => Some(key),
            Compare::Empty(_) => None,
        }
    }

    fn bytes(&self) -> usize {
        let key = match self {
            Compare::Empty(prefix) => prefix.as_str(),
            _ => self.key().map_or("", Key::as_str),
        };
        2 * (key.len() + if let Compare::Value(_, value) = self { value.as_bytes().len() } else { 0 })
    }
}

impl Operation {
    /// Puts a value that stays.
    pub fn put(key: Key, value: Value) -> Operation {
        Operation::Put { key, value, lease: None }
    }

    /// Puts a value that ends with a lease.
    pub fn put_leased(key: Key, value: Value, lease: LeaseId) -> Operation {
        Operation::Put { key, value, lease: Some(lease) }
    }

    fn bytes(&self) -> usize {
        match self {
            Operation::Put { key, value, .. } => key.as_str().len() + value.as_bytes().len(),
            Operation::Delete(key) => key.as_str().len(),
            Operation::DeletePrefix(prefix) => prefix.as_str().len(),
        }
    }

    fn deletes(&self, other: &Key) -> bool {
        match self {
            Operation::Put { .. } => false,
            Operation::Delete(key) => key == other,
            Operation::DeletePrefix(prefix) => other.is_below(prefix),
        }
    }
}

impl Transaction {
    /// A transaction that does nothing yet.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Adds what has to hold.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Transaction {
        self.compares.push(compare);
        self
    }

    /// Adds what is done.
    #[must_use]
    pub fn then(mut self, operation: Operation) -> Transaction {
        self.operations.push(operation);
        self
    }

    /// Checks the bounds, and that each key is written once.
    ///
    /// # Errors
    /// A bound is passed, or a key is written twice.
    pub fn check(&self) -> Result<(), TransactionError> {
        let count = self.compares.len().max(self.operations.len());
        if count > OPERATIONS_MAX {
            return Err(TransactionError::TooMany { count });
        }
        let compared: usize = self.compares.iter().map(Compare::bytes).sum();
        let bytes = compared + self.operations.iter().map(Operation::bytes).sum::<usize>();
        if bytes > TRANSACTION_BYTES_MAX {
            return Err(TransactionError::TooManyBytes { bytes });
        }
        for (position, operation) in self.operations.iter().enumerate() {
            let Operation::Put { key, .. } = operation else { continue };
            let again = |(other, operation): (usize, &Operation)| match operation {
                Operation::Put { key: put, .. } => other > position && put == key,
                _ => operation.deletes(key),
            };
            if self.operations.iter().enumerate().any(again) {
                return Err(TransactionError::WrittenTwice { key: key.clone() });
            }
        }
        Ok(())
    }
}

impl Outcome {
    /// The revision, if the transaction was done.
    pub fn committed(&self) -> Option<Revision> {
        match self {
            Outcome::Committed { revision } => Some(*revision),
            Outcome::Conflict { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> Key {
        Key::new(path).expect("it is a key")
    }

    fn put(path: &str) -> Operation {
        Operation::put(key(path), Value::small("x"))
    }

    #[test]
    fn a_key_is_written_once() {
        let host = || Prefix::new("host/").expect("it is a prefix");
        let twice = [
            vec![put("a"), put("a")],
            vec![put("a"), Operation::Delete(key("a"))],
            vec![Operation::Delete(key("a")), put("a")],
            vec![Operation::DeletePrefix(host()), put("host/a")],
        ];
        for operations in twice {
            let transaction = Transaction { compares: Vec::new(), operations };
            assert!(matches!(transaction.check(), Err(TransactionError::WrittenTwice { .. })), "{transaction:?}");
        }
        let once = vec![
            put("a"),
            put("b"),
            Operation::Delete(key("host/a")),
            Operation::Delete(key("host/a")),
            Operation::DeletePrefix(host()),
        ];
        assert_eq!(Transaction { compares: Vec::new(), operations: once }.check(), Ok(()));
    }

    #[test]
    fn bounds_are_held() {
        let puts = |count: usize| Transaction {
            compares: Vec::new(),
            operations: (0..count).map(|n| put(&format!("k/{n}"))).collect(),
        };
        assert_eq!(puts(OPERATIONS_MAX).check(), Ok(()));
        assert_eq!(puts(OPERATIONS_MAX + 1).check(), Err(TransactionError::TooMany { count: 128 }));
        assert!(Value::new(vec![0; VALUE_BYTES_MAX]).is_ok());
        assert_eq!(Value::new(vec![0; VALUE_BYTES_MAX + 1]), Err(crate::ValueTooLarge { bytes: VALUE_BYTES_MAX + 1 }));
        let large = Value::new(vec![0; VALUE_BYTES_MAX]).expect("it is within the bound");
        let transaction = Transaction::new().then(Operation::put(key("a"), large.clone()));
        assert_eq!(transaction.check(), Ok(()));
        let transaction = transaction.when(Compare::Value(key("a"), large));
        assert!(matches!(transaction.check(), Err(TransactionError::TooManyBytes { .. })));
    }
}
