//! The cookie of a browser's session, which has its token.

use axum::http::{HeaderMap, header};

/// The cookie's name: a browser takes a cookie of this name over TLS only, and only from the very host that it goes
/// back to.
const COOKIE: &str = "__Host-skein";

/// Returns the token that a browser's cookie has.
pub(super) fn cookie_token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// Returns the header that sets the cookie, for so many seconds.
pub(super) fn cookie(token: &str, seconds: Option<u64>) -> [(header::HeaderName, String); 1] {
    let age = seconds.map_or_else(String::new, |seconds| format!("; Max-Age={seconds}"));
    [(header::SET_COOKIE, format!("{COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict{age}"))]
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(cookies: &[&str]) -> HeaderMap {
        let pair = |text: &&str| (header::COOKIE, HeaderValue::from_str(text).unwrap());
        cookies.iter().map(pair).collect()
    }

    #[test]
    fn the_token_is_found_among_other_cookies() {
        assert_eq!(cookie_token(&headers(&["a=b; __Host-skein=skein-1_x; c=d"])), Some("skein-1_x"));
        assert_eq!(cookie_token(&headers(&["a=b", "__Host-skein=x"])), Some("x"));
        for none in [&["__Host-skein="][..], &["x__Host-skein=y"], &["__Host-skein"], &[]] {
            assert_eq!(cookie_token(&headers(none)), None, "{none:?}");
        }
    }
}
