//! Keeps whether a migration stands. The first reason for calling the migration off counts: what follows from it is no
//! other reason. Pure.

/// How a migration stands, as its source's worker knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing is against the migration.
    #[default]
    Open,
    /// The migration is called off, by this worker or by the owner.
    CalledOff,
    /// The guest changed, and the owner was told.
    Changed,
    /// The migration has ended and the guest stays. The owner was told why.
    Failed,
}

impl Standing {
    /// Sets the standing if nothing was against the migration before. Returns whether that was so: then the reason is
    /// to be told.
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
