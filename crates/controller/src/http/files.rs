//! The page that people look at: files that are part of the program. What they show, they ask of the API.

use std::io::Write;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::app::Shared;
use super::secret::sha256_hex;

/// What a browser may do on behalf of the page: nothing that is not from here.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
    path: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

const FILES: [File; 5] = [
    File { path: "/", kind: "text/html; charset=utf-8", content: include_bytes!("../../page/dist/index.html") },
    File {
        path: "/page.js",
        kind: "text/javascript; charset=utf-8",
        content: include_bytes!("../../page/dist/page.js"),
    },
    File { path: "/page.css", kind: "text/css; charset=utf-8", content: include_bytes!("../../page/dist/page.css") },
    File { path: "/icon.svg", kind: "image/svg+xml", content: include_bytes!("../../page/dist/icon.svg") },
    File {
        path: "/LICENSES.txt",
        kind: "text/plain; charset=utf-8",
        content: include_bytes!("../../page/dist/LICENSES.txt"),
    },
];

/// A file, ready to be sent.
struct Ready {
    file: &'static File,
    tag: String,
    compressed: Option<Bytes>,
}

/// Returns the routes of the page's files. Nobody needs a token for them.
pub(crate) fn router() -> Router<Shared> {
    let serve = |router: Router<Shared>, file: &'static File| {
        let tag = format!("\"{}\"", &sha256_hex(file.content)[..16]);
        let ready = Arc::new(Ready { file, tag, compressed: compressed(file.content) });
        router.route(file.path, get(move |headers: HeaderMap| async move { answer(&ready, &headers) }))
    };
    FILES.iter().fold(Router::new(), serve)
}

fn compressed(content: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

fn answer(Ready { file, tag, compressed }: &Ready, asked: &HeaderMap) -> Response {
    let takes = |name: HeaderName, what: &str| {
        asked.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains(what))
    };
    let compressed = compressed.as_ref().filter(|_| takes(header::ACCEPT_ENCODING, "gzip"));
    let header = |name: HeaderName, value: &str| HeaderValue::from_str(value).ok().map(|value| (name, value));
    let told = [
        header(header::ETAG, tag),
        header(header::CONTENT_TYPE, file.kind),
        header(header::CONTENT_SECURITY_POLICY, POLICY),
        // A browser asks each time whether it has the newest, as a controller may be updated.
        header(header::CACHE_CONTROL, "no-cache"),
        header(header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        header(header::REFERRER_POLICY, "no-referrer"),
        header(header::VARY, "accept-encoding"),
        compressed.and_then(|_| header(header::CONTENT_ENCODING, "gzip")),
    ];
    let told: HeaderMap = told.into_iter().flatten().collect();
    match compressed {
        _ if takes(header::IF_NONE_MATCH, tag) => (StatusCode::NOT_MODIFIED, told).into_response(),
        Some(compressed) => (told, compressed.clone()).into_response(),
        None => (told, file.content).into_response(),
    }
}
