//! The holders of the slots of a decoder's ring. No device is touched here.

/// Slots of the ring: while one is decoded, the next ones are filled.
pub(super) const SLOTS: usize = 4;

/// A group of a batch: the number that the decoder gave the batch, and the group's in it.
pub(super) type Holder = (u64, usize);

/// The slots' state, as of what was put into streams so far.
///
/// A slot is *held* from the moment that copies for a group are put into the copying stream until the group's decoding is
/// put into a stream; otherwise it is *free*, and may be written once the last decoding from it is done. Holding is a
/// preference, not a lock: a launch that finds no free slot takes one from the group that was prefetched last, which is then
/// copied again when its turn comes. So nothing that is prefetched and never launched can stop others.
#[derive(Debug, Default)]
pub(super) struct Slots {
    states: [State; SLOTS],
    /// Changes so far.
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    holder: Option<Holder>,
    /// The clock when it became held, or free.
    since: u64,
}

impl Slots {
    /// The slot that a group holds.
    pub fn held(&self, holder: Holder) -> Option<usize> {
        self.states.iter().position(|s| s.holder == Some(holder))
    }

    /// Gives a group a free slot: the one whose last decoding was put into a stream first.
    pub fn take_free(&mut self, holder: Holder) -> Option<usize> {
        let free = (0..SLOTS).filter(|&i| self.states[i].holder.is_none());
        let slot = free.min_by_key(|&i| self.states[i].since)?;
        self.set(slot, Some(holder));
        Some(slot)
    }

    /// Gives a group a slot: a free one, or the one that was filled for others last.
    pub fn take(&mut self, holder: Holder) -> usize {
        self.take_free(holder).unwrap_or_else(|| {
            let slot = (0..SLOTS).max_by_key(|&i| self.states[i].since).expect("there are slots");
            self.set(slot, Some(holder));
            slot
        })
    }

    /// Frees a slot.
    pub fn release(&mut self, slot: usize) {
        self.set(slot, None);
    }

    /// Frees the slots of a batch that is no more.
    pub fn forget(&mut self, batch: u64) {
        for slot in 0..SLOTS {
            if self.states[slot].holder.is_some_and(|(b, _)| b == batch) {
                self.release(slot);
            }
        }
    }

    fn set(&mut self, slot: usize, holder: Option<Holder>) {
        self.clock += 1;
        self.states[slot] = State { holder, since: self.clock };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slots_are_given_in_the_order_in_which_they_became_free() {
        let mut slots = Slots::default();
        let first: Vec<_> = (0..SLOTS).map(|g| slots.take_free((1, g)).unwrap()).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        assert_eq!(slots.take_free((2, 0)), None);
        for slot in [2, 0, 3] {
            slots.release(slot);
        }
        assert_eq!([2, 3, 4].map(|g| slots.take_free((2, g))), [Some(2), Some(0), Some(3)]);
        assert_eq!((slots.held((1, 1)), slots.held((2, 3)), slots.held((1, 0))), (Some(1), Some(0), None));
    }

    #[test]
    fn a_launch_always_gets_a_slot_and_takes_the_one_that_is_needed_last() {
        let mut slots = Slots::default();
        for batch in 1..=4 {
            slots.take_free((batch, 0)).unwrap();
        }
        // A fifth batch, never prefetched, of three groups.
        for group in 0..3 {
            assert_eq!(slots.held((5, group)), None);
            let slot = slots.take((5, group));
            assert_eq!(slot, 3);
            slots.release(slot);
        }
        // Batch 4 lost its slot, and gets one when it is launched; the others have theirs.
        assert_eq!((1..=4).map(|b| slots.held((b, 0))).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), None]);
        assert_eq!(slots.take((4, 0)), 3);
        // Everything is held, by this group too: the newest of all is its own.
        assert_eq!(slots.take((6, 0)), 3);
    }

    #[test]
    fn what_is_never_launched_is_forgotten() {
        let mut slots = Slots::default();
        (0..SLOTS).for_each(|g| assert_eq!(slots.take_free((7, g)), Some(g)));
        slots.release(1);
        slots.take_free((8, 0)).unwrap();
        slots.forget(7);
        assert_eq!((slots.held((7, 0)), slots.held((8, 0))), (None, Some(1)));
        assert_eq!((0..3).filter_map(|g| slots.take_free((9, g))).count(), 3);
        assert_eq!(slots.take_free((9, 3)), None);
    }
}
