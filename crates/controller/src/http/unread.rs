//! What of a request's body nobody has read when the answer is there.
//!
//! A refusal is mostly made of the head. If the body were dropped then, HTTP/2 would reset the stream, and HTTP/1 end
//! the connection while the client still sends: many clients show that instead of the answer. So a bounded part of the
//! body is read and thrown away before the answer goes out, and what is left is dropped after the answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

use super::body::BODY_BYTES_MAX;

/// How long what is left is read.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// A request's body, which outlives whoever reads it.
#[derive(Clone)]
struct Kept(Arc<Mutex<Body>>);

/// The body of a request that is being answered.
pub(crate) struct Unread {
    /// `None`: there is none.
    body: Option<Kept>,
    /// Whether the client sends it only when told so.
    is_announced: bool,
}

impl Unread {
    /// Keeps a request's body.
    pub fn of(request: Request) -> (Request, Unread) {
        let (parts, body) = request.into_parts();
        let is_announced = parts.headers.contains_key(header::EXPECT);
        if body.is_end_stream() {
            return (Request::from_parts(parts, body), Unread { body: None, is_announced });
        }
        let kept = Kept(Arc::new(Mutex::new(body)));
        let request = Request::from_parts(parts, Body::new(kept.clone()));
        (request, Unread { body: Some(kept), is_announced })
    }

    /// Reads what is left, but not too much and not for long. Returns the answer, with which the rest goes.
    pub async fn answered(self, response: Response) -> Response {
        let Some(mut kept) = self.body.filter(|kept| !kept.is_end_stream()) else { return response };
        if !self.is_announced {
            // What is not read by then is dropped with the answer.
            let _ = tokio::time::timeout(READ_WITHIN, kept.discard()).await;
        }
        response.map(|body| Body::new(Answer { body, _kept: kept }))
    }
}

impl Kept {
    async fn discard(&mut self) {
        let mut read = 0;
        while read < BODY_BYTES_MAX
            && let Some(Ok(frame)) = self.frame().await
        {
            read += frame.data_ref().map_or(0, Bytes::len);
        }
    }
}

impl HttpBody for Kept {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.0.lock()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().size_hint()
    }
}

/// An answer's body, and what is left of the request's until that is sent.
struct Answer {
    body: Body,
    _kept: Kept,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
