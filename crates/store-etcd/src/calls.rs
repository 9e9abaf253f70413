//! Calls with a deadline, of whichever endpoint answers.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use etcd_client::{Client, Error as ClientError};
use skein_store::{Cause, StoreError};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::failure::{EtcdError, Failure, failure};
use crate::options::{EtcdOptions, OpenError};

/// How long it takes until the next endpoint is asked.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How much of a call's time one endpoint has at least, before another is asked what can be asked twice.
const ATTEMPT_MIN: Duration = Duration::from_millis(500);

/// The least time beyond its deadline in which a call is given up at last.
const GRACE: Duration = Duration::from_millis(200);

/// How many bytes an answer of etcd has at most: 250 entries of the largest values. tonic's default is 4 MB.
pub(crate) const DECODED_BYTES_MAX: usize = 256 << 20;

/// Whether a call may be done twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It does no harm if it is done twice: reads, and what ends by itself.
    Repeatable,
    /// It may be done once.
    Once,
}

/// The endpoints, and the threads that talk to them.
pub(crate) struct Calls {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    endpoints: Arc<Endpoints>,
}

/// A client of each endpoint. One that failed is left for the next, so that a member that hangs is asked once only.
pub(crate) struct Endpoints {
    addresses: Vec<String>,
    clients: Vec<Client>,
    current: watch::Sender<usize>,
}

impl Endpoints {
    /// The endpoint that is asked now, and its client.
    pub fn current(&self) -> (usize, Client) {
        let current = *self.current.borrow();
        (current, self.clients[current % self.clients.len()].clone())
    }

    /// Returns each endpoint's address and its client.
    pub fn all(&self) -> impl Iterator<Item = (&str, Client)> {
        self.addresses.iter().map(String::as_str).zip(self.clients.iter().cloned())
    }

    /// Leaves an endpoint, unless others have done so already.
    pub fn leave(&self, endpoint: usize) {
        self.current.send_if_modified(|current| {
            let is_left = *current == endpoint;
            if is_left {
                *current = endpoint.wrapping_add(1);
            }
            is_left
        });
    }

    /// Waits until an endpoint is left, by whomever.
    pub async fn left(&self, endpoint: usize) {
        // The sender outlives this call.
        let _ = self.current.subscribe().wait_for(|current| *current != endpoint).await;
    }

    /// Asks one endpoint after the other, until one has answered or the time is over.
    pub async fn call<T, F>(&self, kind: Kind, within: Duration, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let deadline = Instant::now() + within;
        let turns = u32::try_from(self.clients.len()).unwrap_or(u32::MAX).saturating_add(1);
        let attempt = if kind == Kind::Once { within } else { (within / turns).max(ATTEMPT_MIN) };
        let mut last = EtcdError::Timeout { within };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::NotDone(last));
            }
            let (endpoint, client) = self.current();
            let failed = match tokio::time::timeout(attempt.min(left), call(client)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => failure(error),
                Err(_) => Failure::Open(EtcdError::Timeout { within: attempt.min(left) }),
            };
            match failed {
                Failure::NotDone(error) => last = error,
                Failure::Open(error) if kind == Kind::Repeatable => last = error,
                failed => {
                    if let Failure::Open(_) = failed {
                        self.leave(endpoint);
                    }
                    return Err(failed);
                }
            }
            self.leave(endpoint);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

impl Calls {
    pub fn open(options: &EtcdOptions) -> Result<Calls, OpenError> {
        options.check()?;
        let connect = options.connect_options()?;
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("etcd").enable_all().build();
        let runtime = runtime.map_err(OpenError::Threads)?;
        let mut clients = Vec::new();
        for endpoint in &options.endpoints {
            // Makes no connection: that is made by the first call.
            let client = runtime.block_on(Client::connect([endpoint], Some(connect.clone())));
            clients.push(client.map_err(|source| OpenError::Endpoint { endpoint: endpoint.clone(), source })?);
        }
        let endpoints = Endpoints { addresses: options.endpoints.clone(), clients, current: watch::Sender::new(0) };
        Ok(Calls { runtime: Some(runtime), endpoints: Arc::new(endpoints) })
    }

    pub fn endpoints(&self) -> Arc<Endpoints> {
        self.endpoints.clone()
    }

    /// Lets the threads do something, until it is done or its task is aborted.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Option<tokio::task::AbortHandle> {
        Some(self.runtime.as_ref()?.spawn(work).abort_handle())
    }

    /// Waits for an answer; not in a thread of tokio's, which callers may be.
    pub fn wait<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let (answer, answers) = sync_channel(1);
        let task = self.spawn(async move {
            // Nobody may wait for it any more.
            let _ = answer.try_send(work.await);
        });
        match answers.recv_timeout(within + GRACE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(task) = task {
                    task.abort();
                }
                Err(Failure::Open(EtcdError::Timeout { within }))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Open(EtcdError::Closed)),
        }
    }
}

impl Drop for Calls {
    /// Ends the threads without waiting for them, which tokio forbids in its own threads.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What a caller is told of a call that failed. Repeatable ones did nothing that matters.
pub(crate) fn store_error(failure: Failure, kind: Kind) -> StoreError {
    match failure {
        Failure::NotDone(error) => StoreError::Unavailable(Cause::new(error)),
        Failure::Open(error) if kind == Kind::Repeatable => StoreError::Unavailable(Cause::new(error)),
        Failure::Open(error) => StoreError::Unknown(Cause::new(error)),
        Failure::Final(error) => error,
        // Each caller that can meet these tells them apart.
        Failure::Compacted | Failure::Future | Failure::LeaseOver => {
            StoreError::Refused(Cause::new(EtcdError::OutOfPlace))
        }
    }
}
