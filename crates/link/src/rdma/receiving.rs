//! Is the slots of this end that the other end writes. Pure.

use std::collections::{BTreeSet, VecDeque};

use super::sending::Breach;

/// Which slots have something for the reader, and which numbers have come.
#[derive(Debug)]
pub(super) struct Receiving {
    /// Of each slot: whether the other end has written it, and has not got it back.
    here: Vec<bool>,
    arrived: VecDeque<u16>,
    given_back: Vec<u16>,
    /// Each content has a number, and comes once: a content that is written again is no content of the peer's.
    numbers: Numbers,
}

/// The numbers that have come: all below `next`, and those `ahead`.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    ahead: BTreeSet<u64>,
}

impl Receiving {
    pub(super) fn new(count: u16) -> Receiving {
        Receiving {
            here: vec![false; count.into()],
            arrived: VecDeque::new(),
            given_back: Vec::new(),
            numbers: Numbers::default(),
        }
    }

    /// Takes in that the other end has written a slot.
    pub(super) fn written(&mut self, slot: u32) -> Result<(), Breach> {
        let slot = u16::try_from(slot).map_err(|_| Breach)?;
        let here = self.here.get_mut(usize::from(slot)).filter(|here| !**here).ok_or(Breach)?;
        *here = true;
        self.arrived.push_back(slot);
        Ok(())
    }

    /// Returns a slot that has something for the reader, who gives it back when it is read.
    pub(super) fn take(&mut self) -> Option<u16> {
        self.arrived.pop_front()
    }

    /// Takes in the number of what was in a slot. A number that has come before is a breach, and one so far ahead that
    /// the ring cannot hold all before it.
    pub(super) fn number(&mut self, number: u64) -> Result<(), Breach> {
        let numbers = &mut self.numbers;
        let is_new = number >= numbers.next && !numbers.ahead.contains(&number);
        // The other end numbers contents before it writes them, and writes as many at once as there are slots.
        if !is_new || number - numbers.next >= self.here.len() as u64 {
            return Err(Breach);
        }
        numbers.ahead.insert(number);
        while numbers.ahead.remove(&numbers.next) {
            numbers.next += 1;
        }
        Ok(())
    }

    /// Returns whether all contents up to the number `total` have come.
    pub(super) fn has_all(&self, total: u64) -> bool {
        self.numbers.next >= total
    }

    /// Takes in that a slot is read. The other end does not know that yet.
    pub(super) fn read(&mut self, slot: u16) {
        self.given_back.push(slot);
    }

    /// Returns how many slots the other end gets back.
    pub(super) fn to_give_back(&self) -> usize {
        self.given_back.len()
    }

    /// Takes out slots of which the other end is told now, at most `most`: it may write them from now on.
    pub(super) fn take_given_back(&mut self, most: usize) -> Vec<u16> {
        let told: Vec<u16> = self.given_back.drain(..self.given_back.len().min(most)).collect();
        told.iter().for_each(|slot| self.here[usize::from(*slot)] = false);
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_not_given_back_is_not_written_again() {
        let mut receiving = Receiving::new(2);
        receiving.written(1).unwrap();
        assert_eq!([1, 2, 0x1_0000, u32::MAX].map(|slot| receiving.written(slot)), [Err(Breach); 4]);
        assert_eq!((receiving.take(), receiving.take()), (Some(1), None));
        assert_eq!(receiving.written(1), Err(Breach), "it is being read");
        receiving.read(1);
        assert_eq!(receiving.written(1), Err(Breach), "the other end does not know");
        assert_eq!(receiving.take_given_back(5), [1]);
        assert_eq!(receiving.written(1), Ok(()));
    }

    #[test]
    fn numbers_come_once_in_any_order() {
        let mut receiving = Receiving::new(4);
        for number in [2, 0, 3, 1] {
            receiving.number(number).unwrap();
            assert_eq!(receiving.number(number), Err(Breach), "{number} again");
        }
        assert!(receiving.has_all(4) && !receiving.has_all(5));
        assert_eq!((receiving.number(8), receiving.number(7)), (Err(Breach), Ok(())));
    }
}
