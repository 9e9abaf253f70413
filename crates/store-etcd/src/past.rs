//! What is forgotten of a store's past.

use std::time::Duration;

use etcd_client::{GetOptions, WatchOptions};
use skein_store::{Revision, StoreError, WatchError};

use crate::calls::{Endpoints, Kind, store_error};
use crate::failure::Failure;
use crate::translate::{KeySpan, revision, signed};

/// Whether all that changed after a revision is still known: a store can be watched after what can be read.
///
/// etcd itself is less exact: it lets a watch begin at the very revision through which it was compacted, of which a
/// deletion may be gone.
pub(crate) async fn check_after(
    endpoints: &Endpoints,
    span: &KeySpan,
    after: Revision,
    within: Duration,
) -> Result<(), WatchError> {
    if after == Revision(0) {
        return Err(WatchError::Compacted { compacted: compacted(endpoints, after, within).await });
    }
    let read = endpoints.call(Kind::Repeatable, within, |client| {
        let (from, until) = (span.from.clone(), span.until.clone());
        async move {
            let options = GetOptions::new().with_range(until).with_revision(signed(after.0)).with_limit(1);
            client.kv_client().get(from, Some(options.with_keys_only())).await
        }
    });
    match read.await {
        Ok(_) => Ok(()),
        Err(Failure::Compacted) => Err(WatchError::Compacted { compacted: compacted(endpoints, after, within).await }),
        Err(Failure::Future) => Err(WatchError::Store(StoreError::FutureRevision { asked: after })),
        Err(failure) => Err(WatchError::Store(store_error(failure, Kind::Repeatable))),
    }
}

/// Finds out from which revision on something can be read. etcd says so only to a watch. Where it does not, the answer
/// is the revision after the one that was asked for.
pub(crate) async fn compacted(endpoints: &Endpoints, asked: Revision, within: Duration) -> Revision {
    let probe = async {
        let (_, client) = endpoints.current();
        let options = WatchOptions::new().with_start_revision(1);
        let mut stream = client.watch_client().watch("skein", Some(options)).await.ok()?;
        loop {
            let response = stream.message().await.ok()??;
            if response.canceled() {
                return Some(revision(response.compact_revision()));
            }
            if !response.created() {
                return None;
            }
        }
    };
    let found = tokio::time::timeout(within.min(Duration::from_secs(2)), probe).await.ok().flatten();
    found.unwrap_or_default().max(asked.next())
}
