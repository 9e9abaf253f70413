//! Where scrapers come in.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where scrapers come in: `127.0.0.1:9843`, `[::]:9843`, or the path of a unix socket, as `/run/skein/metrics.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ScrapeAddress {
    /// A port for HTTP over TCP, without encryption.
    Tcp(SocketAddr),
    /// A unix socket for HTTP.
    Unix(PathBuf),
}

/// The error for a text that is no address for scrapers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address: write IP:PORT, as 127.0.0.1:9843 or [::]:9843, or the path of a unix socket from / on")]
pub struct NoScrapeAddress(String);

impl FromStr for ScrapeAddress {
    type Err = NoScrapeAddress;

    fn from_str(text: &str) -> Result<ScrapeAddress, NoScrapeAddress> {
        if text.starts_with('/') {
            return Ok(ScrapeAddress::Unix(text.into()));
        }
        text.parse().map(ScrapeAddress::Tcp).map_err(|_| NoScrapeAddress(text.to_owned()))
    }
}

impl fmt::Display for ScrapeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScrapeAddress::Tcp(address) => write!(f, "{address}"),
            ScrapeAddress::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl From<ScrapeAddress> for String {
    fn from(address: ScrapeAddress) -> String {
        address.to_string()
    }
}

impl TryFrom<String> for ScrapeAddress {
    type Error = NoScrapeAddress;

    fn try_from(text: String) -> Result<ScrapeAddress, NoScrapeAddress> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_back() {
        for text in ["127.0.0.1:9843", "[::]:9843", "/run/skein/metrics.sock"] {
            assert_eq!(text.parse::<ScrapeAddress>().unwrap().to_string(), text);
        }
        for text in ["", "9843", "localhost:9843", "run/metrics.sock", "::1"] {
            assert!(text.parse::<ScrapeAddress>().is_err(), "{text}");
        }
    }
}
