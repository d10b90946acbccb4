//! Ownership: acquisition, continuity, heartbeats.

use crate::kit::{Fixture, LANE};
use outbox_core::{Lease, Session, SourceError};
use uuid::Uuid;

#[tokio::test]
async fn each_acquisition_has_the_next_epoch_and_says_whether_nobody_was_between() {
    let f = Fixture::new().await;
    let epoch = f.lease.epoch;
    let again = f.session.acquire(&[(LANE, Some(epoch))]).await.expect("acquire")[0];
    assert_eq!((again.lease.epoch, again.continuous), (epoch + 1, true));
    let unknown = f.session.acquire(&[(LANE, Some(epoch))]).await.expect("acquire")[0];
    assert_eq!((unknown.lease.epoch, unknown.continuous), (epoch + 2, false), "an epoch in between is not known");
    let unnamed = f.session.acquire(&[(LANE, None)]).await.expect("acquire")[0];
    assert!(!unnamed.continuous);
    f.take_over().await;
    assert_eq!(f.session.acquire(&[(LANE, Some(epoch + 3))]).await.expect("acquire"), [], "it is somebody else's");
    f.client.execute("UPDATE outbox.lane SET expires_at = 'epoch' WHERE lane = $1", &[&LANE]).await.expect("expire");
    let after = f.session.acquire(&[(LANE, Some(epoch + 3))]).await.expect("acquire")[0];
    assert_eq!((after.lease.epoch, after.continuous), (epoch + 5, false));
}

#[tokio::test]
async fn a_released_lane_is_free_and_an_old_lease_releases_nothing() {
    let f = Fixture::new().await;
    f.session.release(&[Lease { epoch: f.lease.epoch - 1, ..f.lease }]).await.expect("release");
    let beat = f.session.heartbeat(&[f.lease]).await.expect("a heartbeat");
    assert_eq!((beat.kept.as_slice(), beat.free.len()), ([f.lease].as_slice(), 15));
    f.session.release(&[f.lease]).await.expect("release");
    let other = f.database.session(Uuid::new_v4(), "").await;
    assert_eq!(other.acquire(&[(LANE, None)]).await.expect("acquire").len(), 1);
    let beat = f.session.heartbeat(&[f.lease]).await.expect("a heartbeat");
    assert_eq!((beat.kept.len(), beat.free.len(), beat.relays_alive), (0, 15, 2));
}

#[tokio::test]
async fn a_heartbeat_extends_only_what_it_names_and_offers_the_rest_of_ours() {
    let f = Fixture::new().await;
    f.session.acquire(&[(5, None)]).await.expect("acquire");
    let beat = f.session.heartbeat(&[f.lease]).await.expect("a heartbeat");
    assert_eq!(beat.kept, [f.lease]);
    assert!(beat.free.contains(&5), "a lane of an earlier session may be taken again at once");
    assert!(!beat.free.contains(&LANE));
    f.take_over().await;
    let beat = f.session.heartbeat(&[]).await.expect("a heartbeat");
    assert!(!beat.free.contains(&LANE), "what was kept of a lane that somebody else owns is void");
    assert_eq!(f.session.heartbeat(&[f.lease]).await.expect("a heartbeat").kept, []);
}

/// The relay's row is in an unlogged table: it is gone after a crash that a pooler hides.
#[tokio::test]
async fn without_its_own_row_a_relay_is_lost() {
    for question in ["heartbeat", "claim", "poll"] {
        let f = Fixture::new().await;
        f.row(0).await;
        f.client.execute("DELETE FROM outbox.relay", &[]).await.expect("crash");
        let answer = match question {
            "heartbeat" => f.session.heartbeat(&[f.lease]).await.map(|_| ()),
            "claim" => f.session.claim(f.request()).await.map(|_| ()),
            _ => {
                let positions = vec![outbox_core::Position { lane: LANE, low: 0 }];
                let request = outbox_core::PollRequest {
                    positions,
                    exclude: Vec::new(),
                    with_held: false,
                    open_gates: Vec::new(),
                    block_key: false,
                };
                f.session.poll(&request).await.map(|_| ())
            }
        };
        assert!(matches!(answer, Err(SourceError::Lost(_))), "{question}: {answer:?}");
    }
}

#[tokio::test]
async fn a_broken_connection_ends_the_whole_session() {
    let f = Fixture::new().await;
    let lost = tokio::spawn({
        let session = f.session.clone();
        async move { session.lost().await }
    });
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND application_name = 'outbox-relay'";
    f.client.execute(cut, &[]).await.expect("cut");
    let answer = f.session.claim(f.request()).await;
    assert!(matches!(answer, Err(SourceError::Lost(_))), "{answer:?}");
    assert!(!lost.await.expect("a task").is_empty());
    assert!(f.session.recheck(&[]).await.is_err(), "no other connection is used any more");
}
