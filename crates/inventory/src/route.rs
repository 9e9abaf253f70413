//! How a guest's memory travels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a guest's memory travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// All NICs, and compression as far as it pays.
    #[default]
    Auto,
    /// One connection on one NIC, as it is.
    Tcp,
    /// One NIC, compressed.
    Compression,
    /// All NICs, as it is.
    Multichannel,
}

impl Route {
    /// All of them.
    pub const ALL: [Route; 4] = [Route::Auto, Route::Tcp, Route::Compression, Route::Multichannel];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Route::Auto => "auto",
            Route::Tcp => "tcp",
            Route::Compression => "compression",
            Route::Multichannel => "multichannel",
        }
    }

    /// Whether it takes all NICs, and not one.
    pub fn uses_all_nics(self) -> bool {
        matches!(self, Route::Auto | Route::Multichannel)
    }

    /// Whether pages may be compressed.
    pub fn compresses(self) -> bool {
        matches!(self, Route::Auto | Route::Compression)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Route, String> {
        let names = || Route::ALL.map(Route::name).join(", ");
        Route::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| format!("it may be {}", names()))
    }
}
