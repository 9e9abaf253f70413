//! Whether a migration stands, and whether it is known why not. The first reason for calling off stands: what follows
//! from it is none. Pure.

/// How a migration stands, as its source's worker knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing is against it.
    #[default]
    Open,
    /// It is called off, here or by the owner.
    CalledOff,
    /// The guest changed, and that was told.
    Changed,
    /// It has ended without the guest being moved, and why was told.
    Failed,
}

impl Standing {
    /// Takes in that it stands so. Returns whether that is the first thing against it: then its reason is told.
    pub(super) fn become_first(&mut self, next: Standing) -> bool {
        let is_first = *self == Standing::Open;
        if is_first {
            *self = next;
        }
        is_first
    }

    pub(super) fn is_open(self) -> bool {
        self == Standing::Open
    }

    pub(super) fn has_changed(self) -> bool {
        self == Standing::Changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stands() {
        use Standing::{CalledOff, Changed, Failed};
        for first in [CalledOff, Changed, Failed] {
            let mut standing = Standing::default();
            assert!(standing.become_first(first), "{first:?}");
            for next in [CalledOff, Changed, Failed] {
                assert!(!standing.become_first(next) && standing == first, "{first:?}, {next:?}");
            }
            assert!(!standing.is_open());
            assert_eq!(standing.has_changed(), first == Changed);
        }
    }
}
