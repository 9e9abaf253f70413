//! How a guest's memory travels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a guest's memory travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
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

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 4] = [Transport::Auto, Transport::Tcp, Transport::Compression, Transport::Multichannel];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Tcp => "tcp",
            Transport::Compression => "compression",
            Transport::Multichannel => "multichannel",
        }
    }

    /// Whether it takes all NICs, and not one.
    pub fn uses_all_nics(self) -> bool {
        matches!(self, Transport::Auto | Transport::Multichannel)
    }

    /// Whether pages may be compressed.
    pub fn compresses(self) -> bool {
        matches!(self, Transport::Auto | Transport::Compression)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Transport, String> {
        let names = || Transport::ALL.map(Transport::name).join(", ");
        Transport::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| format!("it may be {}", names()))
    }
}
