//! One request and its answer: HTTP/1.1 as scrapers speak it. Each connection has one, which keeps every state here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::socket::Socket;

/// Bounds a request's head. Prometheus sends some 300 bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Bounds the header fields of a request.
const FIELDS_MAX: usize = 64;
/// How long a scraper may take to ask …
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// … and to read the answer.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// How long, and for how many bytes, what a scraper still sends is read, so that its answer arrives: a socket that is
/// closed with unread bytes takes back what it has sent.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 64 << 10;
/// What a text of OpenMetrics calls itself.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a scraper asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Metrics,
    /// No request.
    Nonsense,
    /// Another path.
    Elsewhere,
    /// Another method.
    Otherwise,
    /// A head that is too long.
    TooMuch,
    /// Nothing, or not all of it in time.
    Nothing,
}

/// Reads a request and answers it. Returns the answer's status, `none` if nothing could be answered.
pub(crate) fn exchange(socket: &mut Socket, text: impl FnOnce() -> Arc<str>) -> &'static str {
    let (status, said, kind, body): (_, _, _, Arc<str>) = match read(socket) {
        Asked::Metrics => ("200", "OK", OPENMETRICS, text()),
        Asked::Nonsense => refusal("400", "Bad Request", "this is no request of HTTP\n"),
        Asked::Elsewhere => refusal("404", "Not Found", "there is only /metrics\n"),
        Asked::Otherwise => refusal("405", "Method Not Allowed", "there is only GET\n"),
        Asked::TooMuch => refusal("431", "Request Header Fields Too Large", "the request is too long\n"),
        Asked::Nothing => return "none",
    };
    let allow = if status == "405" { "Allow: GET\r\n" } else { "" };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} {said}\r\nContent-Type: {kind}\r\n{allow}Content-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    let until = Instant::now() + READ_WITHIN;
    let sent = socket.write_until(head.as_bytes(), until).and_then(|()| socket.write_until(body.as_bytes(), until));
    if sent.is_err() {
        return "none";
    }
    linger(socket);
    status
}

fn refusal<'a>(status: &'a str, said: &'a str, body: &str) -> (&'a str, &'a str, &'a str, Arc<str>) {
    (status, said, "text/plain; charset=utf-8", body.into())
}

fn read(socket: &mut Socket) -> Asked {
    let until = Instant::now() + ASK_WITHIN;
    let mut head = Vec::with_capacity(1024);
    let mut part = [0; 1024];
    loop {
        let Ok(read) = socket.read_until(&mut part, until) else { return Asked::Nothing };
        if read == 0 {
            return if head.is_empty() { Asked::Nothing } else { Asked::Nonsense };
        }
        // A head that comes byte by byte is parsed once, when its end may be there.
        let new = head.len().saturating_sub(3);
        head.extend_from_slice(&part[..read]);
        let is_long = head.len() > HEAD_BYTES_MAX;
        let ends =
            head[new..].windows(2).any(|pair| pair == b"\n\n") || head[new..].windows(3).any(|of| of == b"\n\r\n");
        if (ends || is_long)
            && let Some(asked) = parse(&head[..head.len().min(HEAD_BYTES_MAX)])
        {
            return asked;
        }
        if is_long {
            return Asked::TooMuch;
        }
    }
}

/// Returns what a head asks for; `None`: there is more of it to come.
fn parse(head: &[u8]) -> Option<Asked> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Asked::TooMuch),
        Err(_) => return Some(Asked::Nonsense),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    Some(match request.method {
        _ if path != "/metrics" => Asked::Elsewhere,
        Some("GET") => Asked::Metrics,
        _ => Asked::Otherwise,
    })
}

fn linger(socket: &mut Socket) {
    socket.finish();
    let until = Instant::now() + LINGER;
    let (mut part, mut taken) = ([0; 4096], 0);
    while taken < LINGER_BYTES_MAX
        && let Ok(read) = socket.read_until(&mut part, until)
        && read > 0
    {
        taken += read;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_request_gets_metrics() {
        let asked = |head: &str| parse(head.as_bytes());
        assert_eq!(asked("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Some(Asked::Metrics));
        assert_eq!(asked("GET /metrics?name=x HTTP/1.0\r\n\r\n"), Some(Asked::Metrics));
        assert_eq!(asked("GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        for path in ["/", "/metricsx", "/metrics/", "//metrics", "http://a/metrics", "*"] {
            assert_eq!(asked(&format!("GET {path} HTTP/1.1\r\n\r\n")), Some(Asked::Elsewhere), "{path}");
        }
        for method in ["HEAD", "POST", "DELETE", "get", "CONNECT"] {
            assert_eq!(asked(&format!("{method} /metrics HTTP/1.1\r\n\r\n")), Some(Asked::Otherwise), "{method}");
        }
        for nonsense in
            ["\u{1}\r\n\r\n", "GET /metrics HTTP/2.0\r\n\r\n", "GET\r\n\r\n", "GET /metrics HTTP/1.1\r\n:\r\n\r\n"]
        {
            assert_eq!(asked(nonsense), Some(Asked::Nonsense), "{nonsense:?}");
        }
        let many = "a: b\r\n".repeat(FIELDS_MAX + 1);
        assert_eq!(asked(&format!("GET /metrics HTTP/1.1\r\n{many}\r\n")), Some(Asked::TooMuch));
    }
}
