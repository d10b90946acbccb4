//! `in_flight_max`: one permit a row that may stand at a broker unmarked, shared by the lanes of a process.
//!
//! A lane with as many rows out there as its share, `in_flight_max` through the lanes of the process, takes no more
//! while a lane with fewer waits for a permit. Else a lane that has many keeps them, since its own marks give them
//! to it, and lanes of one backlog drift far apart: the oldest rows are not first, and lanes come to a page of the
//! table at times far apart, each to read and mark its rows there. Where nobody with less waits, one lane may have all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Permits that a lane takes at a time.
const AT_A_TIME: usize = 32;

/// See the module.
pub(crate) struct InFlight {
    free: Arc<Semaphore>,
    max: usize,
    lanes: AtomicUsize,
    /// Lanes with less than their share that wait.
    hungry: watch::Sender<usize>,
}

impl InFlight {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(max));
        Arc::new(Self { free, max, lanes: AtomicUsize::new(1), hungry: watch::Sender::new(0) })
    }

    pub(crate) fn share_among(&self, lanes: usize) {
        self.lanes.store(lanes.max(1), Ordering::Relaxed);
    }

    pub(crate) fn any_free(&self) -> bool {
        self.free.available_permits() > 0
    }

    fn share(&self) -> usize {
        (self.max / self.lanes.load(Ordering::Relaxed)).max(1)
    }
}

/// Why no permit was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// None is free.
    Free,
    /// Others have less and wait.
    Others,
}

/// Counts a lane among those that wait with less than their share.
struct Hungry(Arc<InFlight>);

impl Hungry {
    fn new(all: &Arc<InFlight>) -> Self {
        // Nobody waits for it to grow.
        all.hungry.send_if_modified(|hungry| {
            *hungry += 1;
            false
        });
        Self(Arc::clone(all))
    }
}

impl Drop for Hungry {
    fn drop(&mut self) {
        self.0.hungry.send_if_modified(|hungry| {
            *hungry -= 1;
            *hungry == 0
        });
    }
}

/// The permits of one lane. Whoever drops them gives them back.
pub(crate) struct Permits {
    all: Arc<InFlight>,
    held: Option<OwnedSemaphorePermit>,
    hungry: Option<Hungry>,
}

impl Permits {
    pub(crate) fn none(all: &Arc<InFlight>) -> Self {
        Self { all: Arc::clone(all), held: None, hungry: None }
    }

    fn count(&self) -> usize {
        self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Whether one more row may go, where `used` are out there and so many want to.
    pub(crate) fn allow(&mut self, used: usize, wanting: usize) -> Result<(), Wait> {
        let others = *self.all.hungry.borrow() > usize::from(self.hungry.is_some());
        if others && used >= self.all.share() {
            return Err(Wait::Others);
        }
        if self.count() > used {
            return Ok(());
        }
        let free = &self.all.free;
        let wanted = u32::try_from(wanting.clamp(1, AT_A_TIME)).unwrap_or(1);
        let taken = Arc::clone(free).try_acquire_many_owned(wanted).or_else(|_| Arc::clone(free).try_acquire_owned());
        taken.map(|permit| self.add(permit)).map_err(|_| Wait::Free)
    }

    /// After publishing had its turn: gives back what no row uses, and says whether the lane waits for more. Not
    /// before: a permit that was waited for would else go round among the lanes that wait, and none would use it.
    pub(crate) fn settle(&mut self, used: usize, wait: Option<Wait>) {
        let surplus = self.count().saturating_sub(used);
        if surplus > 0
            && let Some(held) = self.held.as_mut()
        {
            drop(held.split(surplus));
        }
        if wait.is_none() || used >= self.all.share() {
            self.hungry = None;
        } else if self.hungry.is_none() {
            self.hungry = Some(Hungry::new(&self.all));
        }
    }

    /// Waits until `allow` is worth another try; a permit that it waited for is the lane's then.
    pub(crate) async fn wait(&mut self, why: Option<Wait>) {
        match why {
            Some(Wait::Free) => {
                if let Ok(permit) = Arc::clone(&self.all.free).acquire_owned().await {
                    self.add(permit);
                }
            }
            Some(Wait::Others) => {
                let _ = self.all.hungry.subscribe().wait_for(|hungry| *hungry == 0).await;
            }
            None => std::future::pending().await,
        }
    }

    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match self.held.as_mut() {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn lanes<const COUNT: usize>(max: usize) -> [Permits; COUNT] {
        let all = InFlight::new(max);
        all.share_among(COUNT);
        std::array::from_fn(|_| Permits::none(&all))
    }

    /// As many rows as are allowed go; how many are out there then, and why no more are.
    fn fill(lane: &mut Permits, mut used: usize) -> (usize, Wait) {
        let wait = loop {
            match lane.allow(used, 1) {
                Ok(()) => used += 1,
                Err(wait) => break wait,
            }
        };
        lane.settle(used, Some(wait));
        (used, wait)
    }

    #[test]
    fn one_lane_has_all_while_nobody_waits() {
        let [mut one, _idle] = lanes(10);
        assert_eq!(fill(&mut one, 0), (10, Wait::Free));
    }

    #[test]
    fn a_lane_with_its_share_leaves_what_it_gets_back_to_those_that_wait() {
        let [mut much, mut little] = lanes(10);
        assert_eq!(fill(&mut much, 0).0, 10);
        assert_eq!(fill(&mut little, 0), (0, Wait::Free));
        // Three rows are marked.
        assert_eq!(fill(&mut much, 7), (7, Wait::Others));
        assert!(much.wait(Some(Wait::Others)).now_or_never().is_none(), "the other one still waits");
        assert!(little.wait(Some(Wait::Free)).now_or_never().is_some());
        assert_eq!(fill(&mut little, 0), (3, Wait::Free));
        assert_eq!(fill(&mut much, 4), (5, Wait::Others), "what is below its share it keeps");
        assert_eq!(fill(&mut little, 3), (5, Wait::Free));
        assert!(much.wait(Some(Wait::Others)).now_or_never().is_some(), "who has its share is not waited for");
    }

    #[tokio::test]
    async fn who_waits_no_more_holds_up_nobody() {
        let [mut much, mut little, mut least] = lanes(9);
        assert_eq!(fill(&mut much, 0).0, 9);
        assert_eq!(fill(&mut little, 0).0, 0);
        assert_eq!(fill(&mut least, 0).0, 0);
        let waiting = tokio::spawn(async move {
            much.wait(Some(Wait::Others)).await;
            fill(&mut much, 8)
        });
        tokio::task::yield_now().await;
        drop(least);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "one still waits");
        little.settle(0, None);
        let done = tokio::time::timeout(std::time::Duration::from_secs(10), waiting).await;
        assert_eq!(done.expect("it hears that nobody waits").expect("no panic"), (9, Wait::Free));
    }
}
