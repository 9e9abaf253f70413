//! Where a controller is.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The port of a controller unless another is named.
pub const DEFAULT_CONTROLLER_PORT: u16 = 7443;

/// The URL of a controller: `https://HOST:PORT`, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerUrl {
    /// As in a URL: an IPv6 address has brackets.
    host: String,
    port: u16,
}

/// The error for a text that is no controller's URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no controller's address: write https://HOST:7443, or HOST")]
pub struct BadUrl(String);

impl ControllerUrl {
    /// Returns the address, as `10.0.0.1:7443`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for ControllerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}:{}", self.host, self.port)
    }
}

impl FromStr for ControllerUrl {
    type Err = BadUrl;

    /// Reads `https://HOST[:PORT]`, with a path that is left out, or `HOST[:PORT]`.
    fn from_str(text: &str) -> Result<ControllerUrl, BadUrl> {
        let bad = || BadUrl(text.chars().take(256).collect());
        let rest = text.strip_prefix("https://").unwrap_or(text);
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = match authority.rsplit_once(':') {
            _ if authority.parse::<Ipv6Addr>().is_ok() => (format!("[{authority}]"), None),
            Some((host, port)) if !authority.ends_with(']') => (host.to_owned(), Some(port)),
            _ => (authority.to_owned(), None),
        };
        let is_address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        let is_host = match is_address {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => (1..=253).contains(&host.len()) && host.chars().all(is_name),
        };
        let port = port.map_or(Ok(DEFAULT_CONTROLLER_PORT), str::parse).map_err(|_| bad())?;
        if !is_host || port == 0 {
            return Err(bad());
        }
        Ok(ControllerUrl { host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_addresses_are_read() {
        for (text, url) in [
            ("https://ctl.example", "https://ctl.example:7443"),
            ("https://ctl.example:8443/api/v1", "https://ctl.example:8443"),
            ("10.0.0.1", "https://10.0.0.1:7443"),
            ("10.0.0.1:9", "https://10.0.0.1:9"),
            ("fd00::1", "https://[fd00::1]:7443"),
            ("[fd00::1]", "https://[fd00::1]:7443"),
            ("https://[fd00::1]:8443/", "https://[fd00::1]:8443"),
        ] {
            assert_eq!(text.parse::<ControllerUrl>().map(|url| url.to_string()), Ok(url.to_owned()), "{text}");
        }
        for bad in ["", "http://a", "https://", "a:0", "a:65536", "a:b", "a b", "u@a", "[a]", "[::1", "::1]:5", "a?b"] {
            assert_eq!(bad.parse::<ControllerUrl>(), Err(BadUrl(bad.into())));
        }
    }
}
