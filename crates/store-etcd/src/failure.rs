//! What an error of etcd means: whether the call may have been done, and what a caller has to do.

use std::error::Error;
use std::time::Duration;

use etcd_client::Error as ClientError;
use skein_store::{Cause, StoreError};
use tonic::Code;

/// What etcd, or the way to it, said.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// An error of the client, or of etcd.
    #[error("etcd: {0}")]
    Client(#[from] ClientError),
    /// No answer in time.
    #[error("etcd has not answered within {within:?}")]
    Timeout {
        /// How long it had.
        within: Duration,
    },
    /// An answer that lacks something.
    #[error("etcd's answer lacks {what}")]
    Answer {
        /// What it lacks.
        what: &'static str,
    },
    /// An answer to another question.
    #[error("etcd's answer does not belong to what it was asked")]
    OutOfPlace,
    /// A key in the namespace that is none of a controller's.
    #[error("{key:?} in etcd is no key of a controller: another program uses the same namespace")]
    Key {
        /// The key.
        key: String,
    },
    /// The store was closed.
    #[error("the store was closed")]
    Closed,
}

/// How a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was certainly not done, and another endpoint may do it.
    NotDone(EtcdError),
    /// It may have been done, or be done yet.
    Open(EtcdError),
    /// Asking again does not help.
    Final(StoreError),
    /// What was asked for is forgotten: from when on it is not is to be found out.
    Compacted,
    /// There has been no such revision.
    Future,
    /// The lease is over.
    LeaseOver,
}

/// What etcd says if it refused a call before it did anything.
/// <https://github.com/etcd-io/etcd/blob/main/api/v3rpc/rpctypes/error.go>
const NOT_DONE: [&str; 3] =
    ["etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not supported for learner"];

/// What it says if a call is against its limits.
const REFUSED: [&str; 5] = [
    "etcdserver: request is too large",
    "etcdserver: too many operations in txn request",
    "etcdserver: duplicate key given in txn request",
    "etcdserver: permission denied",
    "etcdserver: user name is empty",
];

pub(crate) fn failure(error: ClientError) -> Failure {
    if let ClientError::LeaseKeepAliveError(_) = &error {
        return Failure::LeaseOver;
    }
    let ClientError::GRpcStatus(status) = &error else { return Failure::Open(error.into()) };
    let message = status.message();
    let says = |text: &str| message.contains(text);
    if says("required revision has been compacted") {
        Failure::Compacted
    } else if says("required revision is a future revision") {
        Failure::Future
    } else if says("requested lease not found") {
        Failure::LeaseOver
    } else if says("database space exceeded") {
        Failure::Final(StoreError::Full(Cause::new(EtcdError::from(error))))
    } else if REFUSED.iter().any(|text| says(text))
        || matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated)
    {
        Failure::Final(StoreError::Refused(Cause::new(EtcdError::from(error))))
    } else if NOT_DONE.iter().any(|text| says(text)) || never_connected(status) {
        Failure::NotDone(error.into())
    } else {
        Failure::Open(error.into())
    }
}

/// Whether there was no connection on which the call could have been sent.
fn never_connected(status: &tonic::Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, message: &str) -> Failure {
        failure(ClientError::GRpcStatus(tonic::Status::new(code, message)))
    }

    #[test]
    fn errors_say_whether_the_call_may_have_been_done() {
        let not_done = ["etcdserver: no leader", "etcdserver: too many requests"];
        for message in not_done {
            assert!(matches!(of(Code::Unavailable, message), Failure::NotDone(_)), "{message}");
        }
        let open = [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Cancelled, "operation was canceled"),
            (Code::Unknown, "transport error"),
            (Code::Unavailable, "anything else"),
        ];
        for (code, message) in open {
            assert!(matches!(of(code, message), Failure::Open(_)), "{message}");
        }
    }

    #[test]
    fn a_connection_that_was_never_made_did_nothing() {
        let refused = tonic::ConnectError(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
        let status = tonic::Status::from_error(Box::new(refused));
        assert!(matches!(failure(ClientError::GRpcStatus(status)), Failure::NotDone(_)));
    }

    #[test]
    fn errors_say_what_to_do() {
        let full = of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Failure::Final(StoreError::Full(_))), "{full:?}");
        for (code, message) in [
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: request is too large"),
        ] {
            assert!(matches!(of(code, message), Failure::Final(StoreError::Refused(_))), "{message}");
        }
        let compacted = of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
        assert!(matches!(compacted, Failure::Compacted));
        let future = of(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
        assert!(matches!(future, Failure::Future));
        assert!(matches!(of(Code::NotFound, "etcdserver: requested lease not found"), Failure::LeaseOver));
    }
}
