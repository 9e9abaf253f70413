//! A cluster begins: its record, the admin's token, and a ticket for the first host, in the store.

use std::time::Duration;

use skein_api::cluster::{Role, Token, UnixMs};
use skein_cluster::{CLUSTER_KEY, ClusterRecord, TicketRecord, TokenRecord};
use skein_identity::CaFingerprint;
use skein_store::election::{TermBase, leader_key};
use skein_store::schema::{SchemaError, open_schema};
use skein_store::{
    Compare, Key, KeyError, Operation, Outcome, Pages, Prefix, Range, Store, StoreError, Transaction, Value,
    ValueTooLarge, read_one,
};

use crate::driver::{MIGRATIONS, Members, wall};
use crate::http::{new_secrets, sha256_hex};

/// How long each step of the store may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long the first ticket is valid, in milliseconds.
const TICKET_MS: u64 = 3_600_000;

/// What there is now.
#[derive(Debug)]
pub struct Founded {
    /// The cluster.
    pub cluster: ClusterRecord,
    /// Whether the cluster was made just now.
    pub is_new: bool,
    /// A new ticket for any host.
    pub ticket: NewTicket,
}

/// A ticket's id and secret.
#[derive(Debug)]
pub struct NewTicket {
    /// The id.
    pub id: String,
    /// The secret.
    pub secret: String,
}

/// Why a cluster cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FoundError {
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Schema(#[from] SchemaError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// A key is none.
    #[error("a name cannot be stored")]
    Key(#[from] KeyError),
    /// A value is too large.
    #[error("a value cannot be stored")]
    Value(#[from] ValueTooLarge),
    /// What is stored cannot be read, or written.
    #[error("what is stored of the cluster cannot be read")]
    Json(#[from] serde_json::Error),
    /// There are no random numbers.
    #[error("the system has no random numbers")]
    NoRandom,
    /// The cluster is another's.
    #[error(
        "the store has the cluster '{0}', which has another CA: copy /etc/skein/ca from a host with a controller of \
         that cluster, or name another store"
    )]
    OtherCa(String),
    /// A controller runs.
    #[error("a controller of this cluster runs: all is there; 'skein-controller ticket' lets a host join")]
    InUse,
}

/// Returns the cluster that a store has, if it has one.
///
/// # Errors
///
/// The store cannot be read.
pub fn cluster_in(store: &dyn Store) -> Result<Option<ClusterRecord>, FoundError> {
    let found = read_one(store, &Key::new(CLUSTER_KEY)?, WITHIN)?.1;
    Ok(found.map(|entry| serde_json::from_slice(entry.value.as_bytes())).transpose()?)
}

/// Refuses a cluster that is known to have another CA.
///
/// # Errors
///
/// It has another CA.
pub fn check_ca(cluster: Option<&ClusterRecord>, ca: CaFingerprint) -> Result<(), FoundError> {
    let is_other = |of: &&ClusterRecord| of.ca_sha256.as_ref().is_some_and(|of| *of != ca.to_hex());
    cluster.filter(is_other).map_or(Ok(()), |of| Err(FoundError::OtherCa(of.name.clone())))
}

/// Returns the controllers of the cluster in a store that run now: the one that leads, and all by their names.
///
/// # Errors
///
/// The store cannot be read.
pub fn running_in(store: &dyn Store) -> Result<Members, FoundError> {
    let mut entries = Vec::new();
    for page in Pages::new(store, Range::below(Prefix::all()), WITHIN) {
        entries.extend(page?.entries);
    }
    Ok(Members::load(&entries, TermBase(0)))
}

/// Makes a cluster in a store, or takes the one that is there; gives the admin's token of this name, which each
/// controller has for itself, this secret; adds a ticket.
///
/// # Errors
///
/// The store cannot be used, or a controller runs.
pub fn found(
    store: &dyn Store,
    name: &str,
    ca: CaFingerprint,
    admin: &str,
    admin_secret: &str,
) -> Result<Founded, FoundError> {
    open_schema(store, MIGRATIONS, TermBase(wall().0), WITHIN)?;
    let (key, now) = (Key::new(CLUSTER_KEY)?, wall());
    let there = cluster_in(store)?;
    let is_new = there.is_none();
    check_ca(there.as_ref(), ca)?;
    let (id, secret) = new_secrets().ok_or(FoundError::NoRandom)?;
    let cluster = match &there {
        Some(cluster) => cluster.clone(),
        None => ClusterRecord {
            name: name.to_owned(),
            id: new_secrets().ok_or(FoundError::NoRandom)?.0,
            ca_sha256: Some(ca.to_hex()),
        },
    };
    let mut transaction = Transaction::new().when(Compare::Absent(leader_key()));
    transaction = match there {
        Some(_) => transaction,
        None => transaction.when(Compare::Absent(key.clone())).then(Operation::put(key, value(&cluster)?)),
    };
    let token = Token { name: admin.into(), role: Role::Admin, created: now, expires: None };
    let token = TokenRecord { token, secret_sha256: sha256_hex(admin_secret.as_bytes()) };
    let ticket = TicketRecord {
        host: None,
        secret_sha256: sha256_hex(secret.as_bytes()),
        by: "skein-controller init".into(),
        expires: UnixMs(now.0 + TICKET_MS),
        used: None,
    };
    transaction = transaction
        .then(Operation::put(Key::new(&format!("token/{admin}"))?, value(&token)?))
        .then(Operation::put(Key::new(&format!("ticket/{id}"))?, value(&ticket)?));
    match store.commit(&transaction, WITHIN)? {
        Outcome::Committed { .. } => Ok(Founded { cluster, is_new, ticket: NewTicket { id, secret } }),
        Outcome::Conflict { .. } => Err(FoundError::InUse),
    }
}

fn value(of: &impl serde::Serialize) -> Result<Value, FoundError> {
    Ok(Value::new(serde_json::to_vec(of)?)?)
}

#[cfg(test)]
mod tests {
    use skein_store_sqlite::SqliteStore;

    use super::*;
    use crate::driver::boot_clock;

    fn ca() -> CaFingerprint {
        "cd".repeat(32).parse().unwrap()
    }

    #[test]
    fn a_cluster_is_made_once_and_each_time_a_ticket() {
        let store = SqliteStore::in_memory(boot_clock()).unwrap();
        let first = found(&store, "rack7", ca(), "admin-c1", "secret").unwrap();
        let second = found(&store, "other", ca(), "admin-c1", "secret").unwrap();
        assert!(first.is_new && !second.is_new);
        assert_eq!((second.cluster.name.as_str(), &second.cluster.id), ("rack7", &first.cluster.id));
        let all = store.read(&Range::below(skein_store::Prefix::all()), WITHIN).unwrap().entries;
        let keys: Vec<&str> = all.iter().map(|entry| entry.key.as_str()).filter(|key| key.contains('/')).collect();
        assert_eq!(keys.len(), 3, "{keys:?}");
        assert!(!all.iter().any(|entry| String::from_utf8_lossy(entry.value.as_bytes()).contains("secret\"")));
    }

    #[test]
    fn a_cluster_with_a_leader_is_left_alone() {
        let store = SqliteStore::in_memory(boot_clock()).unwrap();
        found(&store, "rack7", ca(), "admin-c1", "secret").unwrap();
        let put = Transaction::new().then(Operation::put(leader_key(), Value::new(*b"x").unwrap()));
        store.commit(&put, WITHIN).unwrap();
        assert!(matches!(found(&store, "rack7", ca(), "admin-c1", "secret"), Err(FoundError::InUse)));
    }

    #[test]
    fn a_cluster_of_another_ca_is_refused() {
        let store = SqliteStore::in_memory(boot_clock()).unwrap();
        found(&store, "rack7", ca(), "admin-c1", "secret").unwrap();
        let other: CaFingerprint = "ab".repeat(32).parse().unwrap();
        assert!(matches!(found(&store, "rack7", other, "admin-c2", "secret"), Err(FoundError::OtherCa(_))));
        // A cluster that was made before its CA was kept is taken.
        let cluster = ClusterRecord { ca_sha256: None, ..cluster_in(&store).unwrap().unwrap() };
        check_ca(Some(&cluster), other).unwrap();
    }
}
