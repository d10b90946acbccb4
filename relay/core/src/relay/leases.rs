//! How many lanes this relay should own, and which it takes or gives back.

/// Lanes in one outbox; fixed for ever, since each row's lane is stored.
pub(super) const LANES: usize = 16;

/// This relay's fair share: lanes divided by relays, the rest to the first of them.
pub(super) const fn share(relays_alive: usize, rank: usize) -> usize {
    if relays_alive <= 1 {
        return LANES;
    }
    LANES / relays_alive + (rank < LANES % relays_alive) as usize
}

/// Which of the free lanes to take, starting at a place of its own so that relays seldom want the same.
pub(super) fn wanted(free: &[i16], owned: usize, relays_alive: usize, rank: usize) -> Vec<i16> {
    let missing = share(relays_alive, rank).saturating_sub(owned);
    if free.is_empty() || missing == 0 {
        return Vec::new();
    }
    let start = rank * LANES / relays_alive.max(1);
    let mut lanes = free.to_vec();
    lanes.sort_by_key(|lane| (usize::try_from(*lane).unwrap_or(0) + LANES - start % LANES) % LANES);
    lanes.truncate(missing);
    lanes
}

/// How many lanes are too many.
pub(super) const fn surplus(owned: usize, relays_alive: usize, rank: usize) -> usize {
    owned.saturating_sub(share(relays_alive, rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_all_lanes() {
        for relays in 1..=40 {
            let sum: usize = (0..relays).map(|rank| share(relays, rank)).sum();
            assert_eq!(sum, LANES, "{relays} relays");
        }
    }

    #[test]
    fn relays_that_start_together_want_different_lanes() {
        let free: Vec<i16> = (0..16).collect();
        let mut all: Vec<i16> = (0..3).flat_map(|rank| wanted(&free, 0, 3, rank)).collect();
        all.sort_unstable();
        all.dedup();
        assert!(all.len() >= 15, "{all:?}");
    }
}
