//! Says which version of the agents' protocol two agents speak with each other.

use std::fmt;

/// Holds the versions that this build speaks with other agents: its own and the version before. The version of 0.1.0,
/// the first release, has none before.
pub const CONTROL_VERSIONS: ControlVersions = ControlVersions { lowest: 4, highest: 4 };

/// The versions of the agents' protocol that an agent speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlVersions {
    /// The oldest version.
    pub lowest: u32,
    /// The newest version.
    pub highest: u32,
}

impl ControlVersions {
    /// Returns the newest version that both speak; `None`: there is none.
    pub fn common(self, other: ControlVersions) -> Option<u32> {
        let newest = self.highest.min(other.highest);
        (newest >= self.lowest.max(other.lowest)).then_some(newest)
    }
}

impl fmt::Display for ControlVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ControlVersions { lowest, highest } = self;
        match lowest == highest {
            true => write!(f, "version {highest}"),
            false => write!(f, "versions {lowest} to {highest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_that_both_speak_is_spoken() {
        let range = |lowest, highest| ControlVersions { lowest, highest };
        for (one, other, common) in [
            (range(4, 4), range(4, 4), Some(4)),
            (range(4, 5), range(4, 4), Some(4)),
            (range(4, 5), range(5, 6), Some(5)),
            (range(4, 7), range(5, 6), Some(6)),
            (range(4, 5), range(6, 7), None),
            (range(3, 3), range(4, 5), None),
            // A peer may say anything.
            (range(4, 5), range(9, 0), None),
            (range(4, 5), range(0, u32::MAX), Some(5)),
        ] {
            assert_eq!((one.common(other), other.common(one)), (common, common), "{one}, {other}");
        }
    }
}
