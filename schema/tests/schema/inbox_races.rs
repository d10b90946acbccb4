//! Claims at the same moment, many times: one true each, the other is told, nobody deadlocks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio_postgres::Client;

use crate::kit::{Database, one};

const PAIRS: usize = 10;
const ROUNDS: usize = 100;
/// A deadlock or a lost wake-up shows as this running out; the races themselves take seconds.
const RACES_MAX: Duration = Duration::from_secs(120);

/// One session of a pair: claims each id at the same moment as the other one and says which it won.
async fn claim_all(client: Client, pair: usize, barrier: Arc<Barrier>, claim: fn(&str) -> String) -> Vec<bool> {
    let mut won = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let id = format!("{pair}:{round}");
        barrier.wait().await;
        client.batch_execute("BEGIN").await.unwrap();
        won.push(one::<bool>(&client, &claim(&id)).await);
        client.batch_execute("COMMIT").await.unwrap();
    }
    won
}

/// 1,000 ids, two sessions each; both of a pair start together.
async fn race(claim: fn(&str) -> String) {
    let db = Database::migrated().await;
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let barrier = Arc::new(Barrier::new(2));
        let first = tokio::spawn(claim_all(db.connect().await, pair, barrier.clone(), claim));
        let second = tokio::spawn(claim_all(db.connect().await, pair, barrier, claim));
        pairs.push((first, second));
    }
    let run = async {
        let mut by_first = 0;
        for (first, second) in pairs {
            let (first, second) = (first.await.unwrap(), second.await.unwrap());
            for (round, (a, b)) in first.iter().zip(&second).enumerate() {
                assert!(a ^ b, "round {round}: {a} and {b}");
                by_first += usize::from(*a);
            }
        }
        by_first
    };
    let by_first = tokio::time::timeout(RACES_MAX, run).await.expect("the claims do not end: a deadlock?");
    assert!((1..PAIRS * ROUNDS).contains(&by_first), "one side won all {by_first}: there was no race");
    let entries: i64 = one(&db.connect().await, "SELECT count(*) FROM inbox.processed").await;
    assert_eq!(entries, i64::try_from(PAIRS * ROUNDS).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_double_claims_one_each_is_true() {
    race(|id| format!("SELECT inbox.claim('c', '{id}', pg_catalog.sha256('{id}'))")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_double_claims_of_a_step_one_each_is_true() {
    race(|id| format!("SELECT inbox.claim_step('c', '{id}', 's')")).await;
}

/// Sessions claim one id while another one prunes it all the time: always an answer, one true for each entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_beside_retention_always_answer() {
    let db = Database::migrated().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let client = db.connect().await;
        tasks.push(tokio::spawn(async move {
            let mut won = 0;
            for _ in 0..150 {
                won += i64::from(one::<bool>(&client, "SELECT inbox.claim_step('c', 'm', 's')").await);
            }
            won
        }));
    }
    let pruner = db.connect().await;
    let prune = "SELECT inbox.prune(interval '1 microsecond')";
    let mut removed = 0;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        removed += i64::from(one::<i32>(&pruner, prune).await);
    }
    let mut won = 0;
    for task in tasks {
        won += task.await.unwrap();
    }
    let left: i64 = one(&pruner, "SELECT count(*) FROM inbox.processed").await;
    assert_eq!(won, removed + left);
    assert!(won > 1, "the race did not happen");
}
