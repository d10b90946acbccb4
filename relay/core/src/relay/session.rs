//! One database session: takes lanes, keeps their leases, gives them back. Ends with the session, on a stop, or
//! when drained.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::Millis;
use crate::lane_worker::{Assignment, End, LaneMemory, LaneWorker};
use crate::mark::{MarkHandle, Marker};
use crate::mutant::{crash_point, mutant};
use crate::relay::{Dormant, Finish, background, intake, leases};
use crate::shared::Shared;
use crate::source::{Acquired, DrainGoal, Horizon, Lease, Session, SourceError};

/// Leases are renewed, and relays that came or went are noticed, at least this often.
const HEARTBEAT_MAX_MS: u64 = 1_000;

/// A lane in work.
struct Slot {
    lease: Lease,
    lease_until: Arc<AtomicU64>,
    stop: CancellationToken,
    abandon: CancellationToken,
}

struct Ended {
    lane: i16,
    memory: LaneMemory,
    end: End,
}

/// Everything that lives and dies with one session.
pub(super) struct SessionRun<S> {
    session: Arc<S>,
    shared: Arc<Shared>,
    slots: HashMap<i16, Slot>,
    workers: JoinSet<Ended>,
    dormant: HashMap<i16, Dormant>,
    marks: MarkHandle,
    horizon: watch::Sender<Option<Horizon>>,
    background: JoinSet<Result<(), SourceError>>,
}

impl<S: Session> SessionRun<S> {
    pub(super) fn new(session: Arc<S>, shared: Arc<Shared>, dormant: HashMap<i16, Dormant>) -> Self {
        let (marks, marker) = Marker::new(session.clone(), shared.clone());
        let mut background = JoinSet::new();
        background.spawn(marker.run());
        Self {
            session,
            shared,
            slots: HashMap::new(),
            workers: JoinSet::new(),
            dormant,
            marks,
            horizon: watch::Sender::new(None),
            background,
        }
    }

    /// Works until told to stop, drained, or the session is over.
    pub(super) async fn run(
        &mut self,
        stop: &CancellationToken,
        drain: bool,
        goal: &mut Option<DrainGoal>,
    ) -> Result<Finish, SourceError> {
        let (session, shared) = (self.session.clone(), self.shared.clone());
        self.background.spawn(background::poll(session.clone(), shared.clone(), drain));
        self.background.spawn(background::horizon(session.clone(), shared.clone(), self.horizon.clone()));
        self.background.spawn(background::prune(session.clone(), shared.clone()));
        let emptied = intake::start(&mut self.background, &session, &shared);
        let drained = async {
            if drain {
                if goal.is_none() {
                    intake::all_emptied(emptied, shared.settings.intakes.len()).await;
                }
                background::drained(session.clone(), shared.clone(), goal).await
            } else {
                std::future::pending().await
            }
        };
        let mut drained = std::pin::pin!(drained);
        let beat_ms = shared.settings.lease_renew_ms.min(HEARTBEAT_MAX_MS);
        let mut beat = tokio::time::interval(Duration::from_millis(beat_ms));
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let finish = loop {
            tokio::select! {
                () = stop.cancelled() => break Finish::Stopped,
                drained = &mut drained => {
                    drained?;
                    break Finish::Drained;
                }
                detail = session.lost() => return Err(SourceError::Lost(detail)),
                Some(ended) = self.workers.join_next() => self.ended(ended).await?,
                Some(ended) = self.background.join_next() => return Err(background_error(ended)),
                _ = beat.tick() => self.heartbeat().await?,
            }
        };
        self.stop(&mut beat).await?;
        Ok(finish)
    }

    /// Renews, counts the relays, takes what is missing to the fair share and starts to give back what is too
    /// much.
    async fn heartbeat(&mut self) -> Result<(), SourceError> {
        let asked_at = self.shared.clock.now();
        let owned: Vec<Lease> = self.slots.values().map(|slot| slot.lease).collect();
        let beat = match self.session.heartbeat(&owned).await {
            Ok(beat) => beat,
            Err(SourceError::Again(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        crash_point("after_renew");
        self.shared.observer.progress();
        for slot in self.slots.values() {
            if beat.kept.contains(&slot.lease) {
                slot.lease_until.store(self.lease_until(asked_at).0, Ordering::Release);
            } else {
                slot.abandon.cancel();
            }
        }
        // A lane that somebody else owns by now never comes back with its memory, whose permits others need.
        self.dormant.retain(|lane, _| beat.free.contains(lane));
        let owned = self.slots.len();
        // A lane that ran out and was renewed in this very look still stands among the free ones.
        let free: Vec<i16> = beat.free.iter().copied().filter(|lane| !self.slots.contains_key(lane)).collect();
        let wanted = leases::wanted(&free, owned, beat.relays_alive, beat.rank);
        let wanted: Vec<(i16, Option<i64>)> =
            wanted.into_iter().map(|lane| (lane, self.dormant.get(&lane).map(|dormant| dormant.epoch))).collect();
        if !wanted.is_empty() {
            let asked_at = self.shared.clock.now();
            match self.session.acquire(&wanted).await {
                Ok(acquired) => self.start(acquired, asked_at).await?,
                Err(SourceError::Again(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let surplus = leases::surplus(owned, beat.relays_alive, beat.rank);
        let yielding = self.slots.values().filter(|slot| slot.stop.is_cancelled()).count();
        for slot in self.slots.values().filter(|slot| !slot.stop.is_cancelled()).take(surplus.saturating_sub(yielding))
        {
            slot.stop.cancel();
        }
        self.shared.observer.breakers_open(self.shared.breakers().len());
        Ok(())
    }

    /// A lease is believed a tenth shorter than the database grants it, counted from before it was asked.
    fn lease_until(&self, asked_at: Millis) -> Millis {
        if mutant("long_window") {
            return asked_at.plus(u64::from(u32::MAX));
        }
        asked_at.plus(self.shared.settings.lease_ttl_ms * 9 / 10)
    }

    /// Starts a worker for each lane. Rows kept from the last session are read again first: a crash of the
    /// database may have taken them, or given their number to another row.
    async fn start(&mut self, acquired: Vec<Acquired>, asked_at: Millis) -> Result<(), SourceError> {
        crash_point("after_acquire");
        for Acquired { lease, continuous } in acquired {
            let mut memory = match self.dormant.remove(&lease.lane) {
                Some(dormant) => dormant.memory,
                None => LaneMemory::new(&self.shared),
            };
            if !continuous {
                memory.lane.clear();
            } else if !memory.lane.is_empty() {
                let still = self.session.recheck(&memory.lane.kept()).await;
                match still {
                    Ok(still) => memory.lane.retain(&still),
                    Err(error) => {
                        self.dormant.insert(lease.lane, Dormant { memory, epoch: lease.epoch });
                        return Err(error);
                    }
                }
            }
            let slot = Slot {
                lease,
                lease_until: Arc::new(AtomicU64::new(self.lease_until(asked_at).0)),
                stop: CancellationToken::new(),
                abandon: CancellationToken::new(),
            };
            let worker = LaneWorker::new(
                self.shared.clone(),
                memory,
                Assignment {
                    session: self.session.clone(),
                    lease,
                    lease_until: slot.lease_until.clone(),
                    marks: self.marks.clone(),
                    horizon: self.horizon.subscribe(),
                },
            );
            let (stop, abandon) = (slot.stop.clone(), slot.abandon.clone());
            self.workers.spawn(async move {
                let (memory, end) = worker.run(stop, abandon).await;
                Ended { lane: lease.lane, memory, end }
            });
            self.slots.insert(lease.lane, slot);
        }
        self.shared.note_lanes_owned(self.slots.len());
        Ok(())
    }

    async fn ended(&mut self, ended: Result<Ended, tokio::task::JoinError>) -> Result<(), SourceError> {
        let Ended { lane, memory, end } = match ended {
            Ok(ended) => ended,
            // A panic in a lane is a broken invariant: nothing in memory is believed any more.
            Err(error) => return Err(SourceError::Lost(format!("a lane worker failed: {error}"))),
        };
        let Some(slot) = self.slots.remove(&lane) else { return Ok(()) };
        self.shared.note_lanes_owned(self.slots.len());
        match end {
            End::Lost(error) => {
                self.dormant.insert(lane, Dormant { memory, epoch: slot.lease.epoch });
                Err(error)
            }
            End::Stale => {
                self.shared.observer.fenced(1);
                tracing::warn!(lane, "lane was taken over by another relay");
                Ok(())
            }
            End::Abandoned => {
                tracing::warn!(lane, "lease was lost");
                Ok(())
            }
            End::Stopped => {
                crash_point("before_release");
                match self.session.release(&[slot.lease]).await {
                    Ok(()) | Err(SourceError::Again(_)) => Ok(()),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Clean stop: nothing new, confirms within the grace, marks, releases.
    async fn stop(&mut self, beat: &mut tokio::time::Interval) -> Result<(), SourceError> {
        let grace_ms = self.shared.settings.shutdown_grace_ms;
        for slot in self.slots.values() {
            slot.stop.cancel();
        }
        // What the sinks have taken is flushed and answered; the lanes wait for the answers.
        drop(self.shared.stop_sinks());
        let mut deadline = std::pin::pin!(tokio::time::sleep(Duration::from_millis(grace_ms)));
        while !self.slots.is_empty() {
            tokio::select! {
                () = &mut deadline => {
                    tracing::warn!(lanes = self.slots.len(), "grace is over; unconfirmed rows go again later");
                    break;
                }
                detail = self.session.lost() => return Err(SourceError::Lost(detail)),
                Some(ended) = self.workers.join_next() => self.ended(ended).await?,
                _ = beat.tick() => self.renew_only().await?,
            }
        }
        let leases: Vec<Lease> = self.slots.values().map(|slot| slot.lease).collect();
        crash_point("before_release");
        self.session.release(&leases).await?;
        self.session.leave().await
    }

    async fn renew_only(&self) -> Result<(), SourceError> {
        let owned: Vec<Lease> = self.slots.values().map(|slot| slot.lease).collect();
        match self.session.heartbeat(&owned).await {
            Ok(_) | Err(SourceError::Again(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What the lanes published is kept for the next session; everything else of this one is over.
    pub(super) async fn into_dormant(mut self) -> HashMap<i16, Dormant> {
        self.background.shutdown().await;
        for slot in self.slots.values() {
            slot.abandon.cancel();
        }
        while let Some(ended) = self.workers.join_next().await {
            if let Ok(Ended { lane, memory, .. }) = ended
                && let Some(slot) = self.slots.get(&lane)
            {
                self.dormant.insert(lane, Dormant { memory, epoch: slot.lease.epoch });
            }
        }
        for dormant in self.dormant.values_mut() {
            dormant.memory.lane.session_lost();
        }
        self.dormant.retain(|_, dormant| !dormant.memory.lane.is_empty() || mutant("keep_positions"));
        self.shared.board.lanes().clear();
        self.dormant
    }
}

fn background_error(ended: Result<Result<(), SourceError>, tokio::task::JoinError>) -> SourceError {
    match ended {
        Ok(Err(error)) => error,
        Ok(Ok(())) => SourceError::Lost("a background task ended".to_owned()),
        Err(error) => SourceError::Lost(format!("a background task failed: {error}")),
    }
}
