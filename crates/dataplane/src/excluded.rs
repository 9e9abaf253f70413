//! Tells which paths the configurations of the two ends exclude from data.

use std::net::IpAddr;

use skein_session::address::NicAddress;

/// This end's address of a path, and the other's.
pub(crate) type PathAddresses = [IpAddr; 2];

/// The ends whose configuration excludes a path's network from data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExcludedBy {
    /// This end.
    pub here: bool,
    /// The other end.
    pub there: bool,
}

impl ExcludedBy {
    /// Returns whether an end excludes the path.
    pub fn any(self) -> bool {
        self.here || self.there
    }

    /// Returns which ends exclude a path, by what each end tells of its addresses.
    pub(crate) fn of(path: PathAddresses, local: &[NicAddress], remote: &[NicAddress]) -> ExcludedBy {
        let excludes = |all: &[NicAddress], ip| all.iter().any(|address| address.ip == ip && !address.carries_data());
        ExcludedBy { here: excludes(local, path[0]), there: excludes(remote, path[1]) }
    }
}

/// Returns which addresses the configuration excludes if that is so of every path; otherwise nothing.
pub(crate) fn excluded_words(paths: impl Iterator<Item = (PathAddresses, ExcludedBy)>) -> String {
    let mut addresses = Vec::new();
    for ([here, there], by) in paths {
        if !by.any() {
            return String::new();
        }
        addresses.extend(by.here.then_some(here));
        addresses.extend(by.there.then_some(there));
    }
    addresses.sort_unstable();
    addresses.dedup();
    let (be, them) = if addresses.len() == 1 { ("is", "its host") } else { ("are", "their hosts") };
    let names: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("{} {be} excluded by {them} (--exclude-network)", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_paths_are_excluded_or_nothing_is_said() {
        let path = |of: u8| [1, 2].map(|host| IpAddr::from([10, 0, of, host]));
        let address = |of: u8, host: u8| NicAddress::new([10, 0, of, host].into(), 24, "eth");
        let local = [address(0, 1), address(1, 1).without_data()];
        let remote = [address(0, 2).without_data(), address(1, 2).without_data(), address(2, 2)];
        let words = |paths: &[PathAddresses]| {
            excluded_words(paths.iter().map(|path| (*path, ExcludedBy::of(*path, &local, &remote))))
        };
        assert_eq!(words(&[path(0)]), "10.0.0.2 is excluded by its host (--exclude-network)");
        let both = words(&[path(1), path(0)]);
        assert_eq!(both, "10.0.0.2, 10.0.1.1, 10.0.1.2 are excluded by their hosts (--exclude-network)");
        assert_eq!(words(&[path(0), path(2)]), "");
        assert_eq!(words(&[]), "");
    }
}
