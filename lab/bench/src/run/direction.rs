//! The guests that move from one host to the other.

use crate::{carry::Carried, site::HOSTS};

/// The guests that move in one direction, and what carries them.
pub(super) struct Direction {
    /// The number of the host that they leave.
    pub source: usize,
    /// The numbers of the guests.
    pub guests: Vec<usize>,
    /// What carries them.
    pub carried: Carried,
}

/// Returns each host that guests leave, with the numbers of these guests. `host` returns a guest's host.
pub(super) fn leaving(guests: usize, host: impl Fn(usize) -> usize) -> Vec<(usize, Vec<usize>)> {
    let from = |source| (source, (0..guests).filter(|&n| host(n) == source).collect::<Vec<_>>());
    (0..HOSTS.len()).map(from).filter(|(_, guests)| !guests.is_empty()).collect()
}

/// Returns the direction in which a guest moves, and the guest's place among those that move in that direction.
///
/// # Panics
///
/// If the guest moves in none of them.
pub(super) fn direction_of(directions: &[Direction], guest: usize) -> (&Direction, usize) {
    let place = |direction: &Direction| direction.guests.iter().position(|&n| n == guest);
    let found = directions.iter().find_map(|direction| Some((direction, place(direction)?)));
    found.expect("every guest moves in a direction")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_by_the_host_that_they_leave() {
        assert_eq!(leaving(3, |_| 1), [(1, vec![0, 1, 2])]);
        let both = leaving(3, |n| n % 2);
        assert_eq!(both, [(0, vec![0, 2]), (1, vec![1])]);
        let directions: Vec<Direction> = both
            .into_iter()
            .map(|(source, guests)| Direction { source, guests, carried: Carried::default() })
            .collect();
        let (direction, place) = direction_of(&directions, 2);
        assert_eq!((direction.source, place), (0, 1));
        let (direction, place) = direction_of(&directions, 1);
        assert_eq!((direction.source, place), (1, 0));
    }
}
