//! Is the slots of the other end that this end writes. Pure.

/// A slot of the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OutgoingSlot {
    /// This end has begun to fill the slot, or writes it.
    is_writing: bool,
    /// The other end has not given the slot back.
    is_there: bool,
    /// The number of what is in the slot.
    number: u64,
}

/// The other end said something of a slot that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Breach;

/// Which slots are free.
#[derive(Debug)]
pub(super) struct Sending {
    slots: Vec<OutgoingSlot>,
    free: Vec<u16>,
    /// Slots that are written, of which the other end has to be told.
    untold: Vec<u16>,
    /// Whether the other end has to be told.
    tells: bool,
    /// How many slots were given out to be written.
    numbered: u64,
}

impl Sending {
    /// Makes it with `count` free slots. `tells`: writes carry no immediate data.
    pub(super) fn new(count: u16, tells: bool) -> Sending {
        let slots = vec![OutgoingSlot::default(); count.into()];
        Sending { slots, free: (0..count).rev().collect(), untold: Vec::new(), tells, numbered: 0 }
    }

    /// Returns a free slot, to be filled and written, and the number of what is put into it. `None`: there is none now.
    pub(super) fn take(&mut self) -> Option<(u16, u64)> {
        if !self.has_free() {
            return None;
        }
        let (slot, number) = (self.free.pop()?, self.numbered);
        self.slots[usize::from(slot)] = OutgoingSlot { is_writing: true, is_there: true, number };
        self.numbered += 1;
        Some((slot, number))
    }

    /// Returns how many slots were given out.
    pub(super) fn numbered(&self) -> u64 {
        self.numbered
    }

    /// Takes in that the write of a slot is done.
    pub(super) fn written(&mut self, slot: u16) -> Result<(), Breach> {
        let state = self.slots.get_mut(usize::from(slot)).filter(|state| state.is_writing).ok_or(Breach)?;
        state.is_writing = false;
        let is_there = state.is_there;
        if self.tells {
            self.untold.push(slot);
        } else if !is_there {
            self.free.push(slot);
        }
        Ok(())
    }

    /// Takes in that the other end gave a slot back. With immediate data that may be known before the write's own end.
    pub(super) fn given_back(&mut self, slot: u16) -> Result<(), Breach> {
        let state = self.slots.get_mut(usize::from(slot)).filter(|state| state.is_there).ok_or(Breach)?;
        if self.tells && (state.is_writing || self.untold.contains(&slot)) {
            return Err(Breach);
        }
        state.is_there = false;
        if !state.is_writing {
            self.free.push(slot);
        }
        Ok(())
    }

    /// Takes slots out of which the other end has to be told, at most `most`.
    pub(super) fn take_untold(&mut self, most: usize) -> Vec<u16> {
        self.untold.drain(..self.untold.len().min(most)).collect()
    }

    /// Returns whether there is a free slot. Where no order is kept others may overtake what was written first, and the
    /// other end knows a content that came twice by numbers: none runs ahead of what it has by more than all slots.
    pub(super) fn has_free(&self) -> bool {
        let out = self.slots.iter().filter(|slot| slot.is_writing || slot.is_there);
        let oldest = out.map(|slot| slot.number).min().unwrap_or(self.numbered);
        !self.free.is_empty() && self.numbered - oldest < self.slots.len() as u64
    }

    /// Returns whether a write is under way, or the other end was not told of one.
    pub(super) fn is_busy(&self) -> bool {
        !self.untold.is_empty() || self.slots.iter().any(|slot| slot.is_writing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_again_when_it_is_written_and_given_back_in_either_order() {
        for back_first in [false, true] {
            let mut sending = Sending::new(1, false);
            let (slot, _) = sending.take().unwrap();
            assert_eq!((sending.take(), sending.is_busy()), (None, true));
            let step = |sending: &mut Sending, back| match back {
                true => sending.given_back(slot),
                false => sending.written(slot),
            };
            assert_eq!(step(&mut sending, back_first), Ok(()));
            assert_eq!((sending.has_free(), sending.is_busy()), (false, back_first));
            assert_eq!(step(&mut sending, back_first), Err(Breach), "twice");
            assert_eq!(step(&mut sending, !back_first), Ok(()));
            assert_eq!(sending.take(), Some((slot, 1)));
        }
    }

    #[test]
    fn what_is_overtaken_keeps_the_rest_from_running_ahead() {
        let mut sending = Sending::new(2, false);
        let ((late, _), (slot, _)) = (sending.take().unwrap(), sending.take().unwrap());
        sending.written(slot).unwrap();
        sending.given_back(slot).unwrap();
        // The first has not come there: the third would be one that the other end cannot tell from a repetition.
        assert_eq!((sending.has_free(), sending.take()), (false, None));
        sending.written(late).unwrap();
        sending.given_back(late).unwrap();
        assert_eq!((sending.take().unwrap().1, sending.take().unwrap().1, sending.numbered()), (2, 3, 4));
    }

    #[test]
    fn without_immediate_data_the_other_end_is_told_before_it_gives_back() {
        let mut sending = Sending::new(2, true);
        let ((a, _), (b, _)) = (sending.take().unwrap(), sending.take().unwrap());
        assert_eq!(sending.given_back(a), Err(Breach), "nobody can know of it");
        sending.written(a).unwrap();
        sending.written(b).unwrap();
        assert_eq!(sending.given_back(a), Err(Breach));
        assert_eq!(sending.take_untold(1), [a]);
        assert!(sending.is_busy());
        sending.given_back(a).unwrap();
        assert_eq!((sending.take_untold(9), sending.take()), (vec![b], Some((a, 2))));
        assert_eq!(sending.given_back(7), Err(Breach));
    }
}
