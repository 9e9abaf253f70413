//! How a guest's memory travels: three axes, and the names that people write for their combinations.
//!
//! | name | links | width | packing |
//! |---|---|---|---|
//! | `auto` | any | all | as far as it pays |
//! | `tcp` | TCP | one | off |
//! | `compression` | any | one | on |
//! | `multichannel` | any | all | off |
//!
//! *Any* is RDMA where both ends have that, and else TCP. There is no route without a name: files, JSON, journals and
//! other agents have the name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What joins the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// RDMA where both ends have that, and else TCP.
    Any,
    /// TCP, with TLS or without.
    Tcp,
}

/// How many links carry a guest's memory at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// The links of one NIC.
    One,
    /// The links of all NICs.
    All,
}

/// Whether pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Pages go as they are.
    Off,
    /// Pages are compressed, since the user wants it. A page that does not get smaller goes as it is.
    On,
    /// Pages are compressed as far as it pays.
    Auto,
}

/// How a guest's memory travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RouteName", into = "RouteName")]
pub struct Route {
    links: Links,
    width: Width,
    packing: Packing,
}

/// A route as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RouteName {
    Auto,
    Tcp,
    Compression,
    Multichannel,
}

impl Route {
    /// All NICs, and compression as far as it pays.
    pub const AUTO: Route = Route { links: Links::Any, width: Width::All, packing: Packing::Auto };
    /// One connection on one NIC, without compression.
    pub const TCP: Route = Route { links: Links::Tcp, width: Width::One, packing: Packing::Off };
    /// One NIC, with compression.
    pub const COMPRESSION: Route = Route { links: Links::Any, width: Width::One, packing: Packing::On };
    /// All NICs, without compression.
    pub const MULTICHANNEL: Route = Route { links: Links::Any, width: Width::All, packing: Packing::Off };

    /// All routes that have a name.
    pub const ALL: [Route; 4] = [Route::AUTO, Route::TCP, Route::COMPRESSION, Route::MULTICHANNEL];

    /// Returns what joins the hosts.
    pub fn links(self) -> Links {
        self.links
    }

    /// Returns how many links are used at once.
    pub fn width(self) -> Width {
        self.width
    }

    /// Returns whether pages are compressed.
    pub fn packing(self) -> Packing {
        self.packing
    }

    /// Returns the name that people write.
    pub fn name(self) -> &'static str {
        match RouteName::from(self) {
            RouteName::Auto => "auto",
            RouteName::Tcp => "tcp",
            RouteName::Compression => "compression",
            RouteName::Multichannel => "multichannel",
        }
    }

    /// Returns whether all NICs are used, and not one.
    pub fn uses_all_nics(self) -> bool {
        self.width == Width::All
    }

    /// Returns whether pages may be compressed.
    pub fn compresses(self) -> bool {
        self.packing != Packing::Off
    }
}

impl Default for Route {
    fn default() -> Route {
        Route::AUTO
    }
}

impl From<Route> for RouteName {
    fn from(route: Route) -> RouteName {
        match (route.width, route.packing) {
            (Width::All, Packing::Auto | Packing::On) => RouteName::Auto,
            (Width::All, Packing::Off) => RouteName::Multichannel,
            (Width::One, Packing::Auto | Packing::On) => RouteName::Compression,
            (Width::One, Packing::Off) => RouteName::Tcp,
        }
    }
}

impl From<RouteName> for Route {
    fn from(name: RouteName) -> Route {
        match name {
            RouteName::Auto => Route::AUTO,
            RouteName::Tcp => Route::TCP,
            RouteName::Compression => Route::COMPRESSION,
            RouteName::Multichannel => Route::MULTICHANNEL,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_means_a_value_of_each_axis_and_is_written_as_ever() {
        for (name, links, width, packing) in [
            ("auto", Links::Any, Width::All, Packing::Auto),
            ("tcp", Links::Tcp, Width::One, Packing::Off),
            ("compression", Links::Any, Width::One, Packing::On),
            ("multichannel", Links::Any, Width::All, Packing::Off),
        ] {
            let route: Route = name.parse().unwrap();
            assert_eq!((route.links(), route.width(), route.packing()), (links, width, packing), "{name}");
            assert_eq!((route.name(), route.to_string()), (name, name.to_owned()));
            let json = format!("\"{name}\"");
            assert_eq!(serde_json::to_string(&route).unwrap(), json);
            assert_eq!(serde_json::from_str::<Route>(&json).unwrap(), route);
            assert_eq!((route.uses_all_nics(), route.compresses()), (width == Width::All, packing != Packing::Off));
        }
        assert_eq!(Route::default(), Route::AUTO);
        assert_eq!("rdma".parse::<Route>(), Err("it may be auto, tcp, compression, multichannel".into()));
        assert!(serde_json::from_str::<Route>("\"rdma\"").unwrap_err().to_string().contains("unknown variant `rdma`"));
    }
}
