//! The store as callers have it.

use std::time::Duration;

use etcd_client::{Client, Error as ClientError, GetOptions, TxnOpResponse};
use skein_store::{
    Cause, Lease, LeaseId, Outcome, PAGE_BYTES_MAX, Prefix, Range, Revision, Snapshot, Store, StoreError, StoreMember,
    Transaction, Watch, WatchError,
};

use tokio::time::timeout;

use crate::calls::{Calls, DECODED_BYTES_MAX, Endpoints, Kind, store_error};
use crate::failure::{EtcdError, Failure};
use crate::options::{EtcdOptions, OpenError};
use crate::past::{check_after, compacted};
use crate::translate::{KeySpan, Namespace, revision, signed, unsigned};
use crate::watch;

/// How many entries are read at once: at first few, as nobody knows how large they are, and then as many as make a page
/// if they are as large.
const READ_ENTRIES: (usize, usize) = (16, 250);

/// A store in a cluster of etcd.
pub struct EtcdStore {
    calls: Calls,
    namespace: Namespace,
}

impl EtcdStore {
    /// Opens a store. etcd need not be there yet: calls fail as unavailable until it is.
    ///
    /// # Errors
    /// An address, a certificate or the namespace is none.
    pub fn open(options: &EtcdOptions) -> Result<EtcdStore, OpenError> {
        Ok(EtcdStore { calls: Calls::open(options)?, namespace: Namespace(options.namespace.clone()) })
    }

    /// Calls one endpoint after the other until one has answered.
    fn call<T, F>(
        &self,
        kind: Kind,
        within: Duration,
        call: impl Fn(Client) -> F + Send + Sync + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ClientError>> + Send,
    {
        let endpoints = self.calls.endpoints();
        self.calls.wait(within, async move { endpoints.call(kind, within, call).await })
    }
}

impl Store for EtcdStore {
    fn read(&self, range: &Range, within: Duration) -> Result<Snapshot, StoreError> {
        let page = Page { span: self.namespace.span(range), at: range.at, entries_max: range.entries_max() };
        let (endpoints, namespace) = (self.calls.endpoints(), self.namespace.clone());
        if let Some(asked @ Revision(0)) = range.at {
            let compacted = self.calls.wait(within, async move { Ok(compacted(&endpoints, asked, within).await) });
            let compacted = compacted.map_err(|failure| store_error(failure, Kind::Repeatable))?;
            return Err(StoreError::Compacted { compacted });
        }
        let read = self.calls.wait(within, async move {
            Ok(match page.read(&endpoints, &namespace, within).await {
                Err(Failure::Compacted) => {
                    let asked = page.at.unwrap_or_default();
                    Err(StoreError::Compacted { compacted: compacted(&endpoints, asked, within).await })
                }
                Err(Failure::Future) => Err(StoreError::FutureRevision { asked: page.at.unwrap_or_default() }),
                Err(failure) => Err(store_error(failure, Kind::Repeatable)),
                Ok(page) => Ok(page),
            })
        });
        read.map_err(|failure| store_error(failure, Kind::Repeatable))?
    }

    fn commit(&self, transaction: &Transaction, within: Duration) -> Result<Outcome, StoreError> {
        transaction.check()?;
        let txn = self.namespace.transaction(transaction);
        let answer = self.call(Kind::Once, within, move |client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        });
        let answer = answer.map_err(|failure| match failure {
            Failure::LeaseOver => StoreError::LeaseOver { lease: put_lease(transaction) },
            failure => store_error(failure, Kind::Once),
        })?;
        if answer.succeeded() {
            let lacks = || StoreError::Unknown(Cause::new(EtcdError::Answer { what: "its revision" }));
            let header = answer.header().ok_or_else(lacks)?;
            return Ok(Outcome::Committed { revision: revision(header.revision()) });
        }
        let each = answer.op_responses();
        let holds = |answer: &TxnOpResponse| matches!(answer, TxnOpResponse::Txn(answer) if answer.succeeded());
        let failed = each.iter().enumerate().filter(|(_, answer)| !holds(answer)).map(|(at, _)| at);
        Ok(Outcome::Conflict { failed: failed.collect() })
    }

    fn watch(&self, prefix: &Prefix, after: Revision, within: Duration) -> Result<Box<dyn Watch>, WatchError> {
        let (endpoints, span) = (self.calls.endpoints(), self.namespace.below(prefix.as_str()));
        let checked = span.clone();
        let check = self.calls.wait(within, async move { Ok(check_after(&endpoints, &checked, after, within).await) });
        check.map_err(|failure| WatchError::Store(store_error(failure, Kind::Repeatable)))??;
        Ok(Box::new(watch::begin(&self.calls, self.namespace.clone(), span, after)))
    }

    fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        // Whole seconds, and not fewer than asked for.
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() != 0);
        // A lease of which nobody knows ends by itself, so that it may be asked for twice.
        let granted = self.call(Kind::Repeatable, within, move |client| async move {
            client.lease_client().grant(signed(seconds), None).await
        });
        let granted = granted.map_err(|failure| store_error(failure, Kind::Repeatable))?;
        Ok(Lease { id: LeaseId(unsigned(granted.id())), ttl: Duration::from_secs(unsigned(granted.ttl())) })
    }

    fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<Duration, StoreError> {
        let kept = self.call(Kind::Repeatable, within, move |client| async move {
            // The first answer only says that the lease is there.
            let (mut keeper, mut answers) = client.lease_client().keep_alive(signed(lease.0)).await?;
            keeper.keep_alive().await?;
            let lost = || ClientError::WatchError("the stream of a lease ended".into());
            Ok(answers.message().await?.ok_or_else(lost)?.ttl())
        });
        match kept {
            Ok(ttl) if ttl > 0 => Ok(Duration::from_secs(unsigned(ttl))),
            Ok(_) | Err(Failure::LeaseOver) => Err(StoreError::LeaseOver { lease }),
            Err(failure) => Err(store_error(failure, Kind::Repeatable)),
        }
    }

    fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        let revoked = self
            .call(Kind::Once, within, move |client| async move { client.lease_client().revoke(signed(lease.0)).await });
        match revoked {
            Ok(_) => Ok(()),
            Err(Failure::LeaseOver) => Err(StoreError::LeaseOver { lease }),
            Err(failure) => Err(store_error(failure, Kind::Once)),
        }
    }

    fn compact(&self, through: Revision, within: Duration) -> Result<(), StoreError> {
        let compacted = self.call(Kind::Repeatable, within, move |client| async move {
            client.kv_client().compact(signed(through.0), None).await
        });
        match compacted {
            // It is forgotten already.
            Ok(_) | Err(Failure::Compacted) => Ok(()),
            Err(Failure::Future) => Err(StoreError::FutureRevision { asked: through }),
            Err(failure) => Err(store_error(failure, Kind::Repeatable)),
        }
    }

    fn members(&self, within: Duration) -> Vec<StoreMember> {
        let endpoints = self.calls.endpoints();
        let asked = self.calls.wait(within, async move {
            let asked = endpoints.all().map(|(address, client)| {
                let address = address.to_owned();
                tokio::spawn(async move { StoreMember { address, problem: problem(client, within).await } })
            });
            let mut members = Vec::new();
            for member in asked.collect::<Vec<_>>() {
                // A task that panicked has said so.
                members.extend(member.await);
            }
            Ok(members)
        });
        asked.unwrap_or_default()
    }
}

/// Returns what is wrong with a member, by its own word.
async fn problem(mut client: Client, within: Duration) -> Option<String> {
    let status = match timeout(within, client.status()).await {
        Err(_) => return Some("it does not answer".into()),
        Ok(Err(ClientError::GRpcStatus(status))) => return Some(format!("it does not answer ({})", status.message())),
        Ok(Err(error)) => return Some(format!("it does not answer ({error})")),
        Ok(Ok(status)) => status,
    };
    match status.errors() {
        [] if status.leader() == 0 => Some("it is cut off from the other members".into()),
        [] => None,
        errors => Some(errors.join("; ")),
    }
}

/// What is read.
struct Page {
    span: KeySpan,
    at: Option<Revision>,
    entries_max: usize,
}

impl Page {
    /// Reads some entries, and then more of the same revision, until the page is full or there are no more.
    async fn read(&self, endpoints: &Endpoints, namespace: &Namespace, within: Duration) -> Result<Snapshot, Failure> {
        let mut span = self.span.clone();
        let mut page = Snapshot { revision: self.at.unwrap_or_default(), entries: Vec::new(), more: true };
        let (mut bytes, mut limit) = (0, READ_ENTRIES.0);
        while page.more && page.entries.len() < self.entries_max && bytes < PAGE_BYTES_MAX {
            let known = page.revision != Revision(0);
            let count = limit.min(self.entries_max - page.entries.len());
            let at = signed(page.revision.0);
            let (from, until) = (&span.from, &span.until);
            let answer = endpoints.call(Kind::Repeatable, within, |client| {
                let (from, until) = (from.clone(), until.clone());
                async move {
                    let options = GetOptions::new().with_range(until).with_limit(signed(count as u64));
                    let options = if known { options.with_revision(at) } else { options };
                    client.kv_client().max_decoding_message_size(DECODED_BYTES_MAX).get(from, Some(options)).await
                }
            });
            let answer = answer.await?;
            if !known {
                let header = answer.header().ok_or(Failure::Open(EtcdError::Answer { what: "its revision" }))?;
                page.revision = revision(header.revision());
            }
            page.more = answer.more();
            for found in answer.kvs() {
                if bytes >= PAGE_BYTES_MAX {
                    page.more = true;
                    break;
                }
                let entry = namespace.entry(found).map_err(Failure::Final)?;
                bytes += entry.bytes();
                page.entries.push(entry);
            }
            let Some(last) = page.entries.last() else { break };
            span.from = namespace.key(&last.key);
            span.from.push(0);
            let each = (bytes / page.entries.len()).max(1);
            limit = (PAGE_BYTES_MAX / each).clamp(1, READ_ENTRIES.1);
        }
        Ok(page)
    }
}

/// The lease that a transaction puts something with: etcd does not say which one is over.
fn put_lease(transaction: &Transaction) -> LeaseId {
    let leases = transaction.operations.iter().filter_map(|operation| match operation {
        skein_store::Operation::Put { lease, .. } => *lease,
        _ => None,
    });
    leases.into_iter().next().unwrap_or(LeaseId(0))
}
