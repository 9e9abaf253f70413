//! What changes, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};

use super::app::Shared;
use super::guard::{Valid, Viewer};
use super::problem::{Problem, ReadProblems};
use crate::driver::{EventId, NoEventId, Subscription, wall};

/// How often a stream without events says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What changes from now on
///
/// Server-sent events, named `host`, `vm`, `operation`, `gone` or `reset`; the data is an `Event`. A subscriber that
/// comes back with `Last-Event-ID` gets what it has missed or, if that is too long ago, a `reset`: then it reads
/// everything again, after it has subscribed.
#[utoipa::path(get, path = "/api/v1/events", tag = "cluster",
    params(("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was read")),
    responses((status = 200, description = "A stream of events", body = skein_api::cluster::Event,
        content_type = "text/event-stream"), ReadProblems))]
pub(crate) async fn get_events(
    _: Viewer,
    valid: Valid,
    State(app): State<Shared>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let last = headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().trim().parse::<EventId>());
    let cure = "leave Last-Event-ID out, and read everything anew";
    let last = last.transpose().map_err(|error: NoEventId| Problem::bad_request(error.to_string(), cure))?;
    let subscription = app.driver.subscribe(last);
    let stream = unfold(subscription, |mut subscription: Subscription| async move {
        let published = subscription.next(wall).await?;
        let event = Event::default().id(published.id.to_string()).event(published.kind).data(&*published.data);
        Some((Ok(event), subscription))
    });
    Ok(Sse::new(valid.until_invalid(app, stream)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}
