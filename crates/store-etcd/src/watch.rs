//! Watches: a stream of etcd's, begun anew wherever it ends, and nothing is missed.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{WatchOptions, WatchResponse, WatchStream};
use skein_store::{Cause, Revision, StoreError, Watch, WatchBatch, WatchError};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::calls::{Calls, DECODED_BYTES_MAX, Endpoints};
use crate::failure::{EtcdError, Failure, failure};
use crate::past::check_after;
use crate::queue::Queue;
use crate::translate::{KeySpan, Namespace, revision, signed};

/// How long it takes until a stream that has ended is begun anew.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How long a stream may take to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct EtcdWatch {
    queue: Arc<Queue>,
    task: Option<AbortHandle>,
}

impl Watch for EtcdWatch {
    fn next(&mut self, wait: Duration) -> Result<Option<WatchBatch>, WatchError> {
        self.queue.next(wait)
    }
}

impl Drop for EtcdWatch {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// What is watched, and how far it has been seen.
struct Watcher {
    endpoints: Arc<Endpoints>,
    namespace: Namespace,
    span: KeySpan,
    after: Revision,
    queue: Arc<Queue>,
}

/// Begins a watch of keys.
pub(crate) fn begin(calls: &Calls, namespace: Namespace, span: KeySpan, after: Revision) -> EtcdWatch {
    let queue = Arc::new(Queue::default());
    let watcher = Watcher { endpoints: calls.endpoints(), namespace, span, after, queue: queue.clone() };
    EtcdWatch { queue, task: calls.spawn(watcher.run()) }
}

impl Watcher {
    async fn run(mut self) {
        loop {
            let (endpoint, _) = self.endpoints.current();
            match self.follow().await {
                Some(error) => return self.queue.end(error),
                None => {
                    tracing::debug!(after = self.after.0, "a watch of etcd is begun anew");
                    self.endpoints.leave(endpoint);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Follows a stream until it ends. `None`: it is to be begun anew.
    async fn follow(&mut self) -> Option<WatchError> {
        let (endpoint, _) = self.endpoints.current();
        let mut stream = self.begin().await.ok()?;
        match check_after(&self.endpoints, &self.span, self.after, BEGIN_TIMEOUT).await {
            Ok(()) => {}
            Err(WatchError::Store(StoreError::Unavailable(_))) => return None,
            Err(error) => return Some(error),
        }
        let endpoints = self.endpoints.clone();
        // A member that is cut off ends the stream (require_leader), and so does, later, a connection without a sign of
        // life. A call that failed meanwhile says so sooner.
        loop {
            let response = tokio::select! {
                message = stream.message() => message,
                () = endpoints.left(endpoint) => return None,
            };
            let Ok(Some(response)) = response else { return None };
            if response.canceled() {
                return self.canceled(&response);
            }
            if let Err(error) = self.take(&response).await {
                return Some(WatchError::Store(error));
            }
        }
    }

    async fn begin(&self) -> Result<WatchStream, Failure> {
        let (_, client) = self.endpoints.current();
        let options = WatchOptions::new().with_range(self.span.until.clone());
        let options = options.with_start_revision(signed(self.after.next().0));
        let mut client = client.watch_client().max_decoding_message_size(DECODED_BYTES_MAX);
        let begun = timeout(BEGIN_TIMEOUT, client.watch(self.span.from.clone(), Some(options))).await;
        let begun = begun.map_err(|_| Failure::Open(EtcdError::Timeout { within: BEGIN_TIMEOUT }))?;
        begun.map_err(failure)
    }

    fn canceled(&self, response: &WatchResponse) -> Option<WatchError> {
        if response.compact_revision() != 0 {
            return Some(WatchError::Compacted { compacted: revision(response.compact_revision()) });
        }
        let refused = response.cancel_reason().contains("permission denied");
        refused.then(|| {
            let cause = EtcdError::Client(etcd_client::Error::WatchError(response.cancel_reason().into()));
            WatchError::Store(StoreError::Refused(Cause::new(cause)))
        })
    }

    /// Hands on what a response has, a batch for each revision. No response ends within a revision, since no watch is
    /// asked to have large ones split (`with_fragment`).
    async fn take(&mut self, response: &WatchResponse) -> Result<(), StoreError> {
        let mut batches: Vec<WatchBatch> = Vec::new();
        for event in response.events() {
            let (revision, event) = self.namespace.event(event)?;
            if revision <= self.after {
                continue;
            }
            match batches.last_mut().filter(|batch| batch.revision == revision) {
                Some(batch) => batch.events.push(event),
                None => batches.push(WatchBatch { revision, events: vec![event] }),
            }
        }
        for mut batch in batches {
            batch.events.sort_by(|a, b| a.key.cmp(&b.key));
            self.after = batch.revision;
            self.queue.add(batch).await;
        }
        Ok(())
    }
}
