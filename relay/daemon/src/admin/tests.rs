//! The endpoint over a real socket.

use outbox_core::{Link, Sink};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

fn sources(bound_ms: u64) -> Sources {
    let sinks = [Sink::Rabbitmq];
    Sources {
        metrics: Arc::new(Metrics::new(&sinks, &[], &[], 30_000).unwrap()),
        progress: Arc::new(Progress::new(bound_ms)),
        readiness: Arc::new(Readiness::new(&sinks)),
    }
}

async fn start(sources: &Sources) -> Admin {
    Admin::start(SocketAddr::from(([127, 0, 0, 1], 0)), sources.clone()).await.unwrap()
}

async fn get(admin: &Admin, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(admin.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // Reads to the end: each connection carries one request.
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn metrics_and_liveness_answer() {
    let sources = sources(60_000);
    let admin = start(&sources).await;
    assert_ne!(admin.address.port(), 0);
    let answer = get(&admin, "/metrics", "").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("text/plain; version=0.0.4") && answer.contains("outbox_claimed_messages_total 0"),
        "{answer}"
    );
    assert!(get(&admin, "/livez", "").await.ends_with("ok\n"));
    assert!(get(&admin, "/", "").await.starts_with("HTTP/1.1 404"));
    let address = admin.address;
    admin.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn liveness_goes_by_progress_alone() {
    let mut sources = sources(60_000);
    sources.progress = Arc::new(Progress::silent_for(61_000, 60_000));
    let admin = start(&sources).await;
    let answer = get(&admin, "/livez", "").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("the send loop has made no progress"), "{answer}");
    admin.stop().await;
}

#[tokio::test]
async fn readiness_names_its_reasons() {
    let sources = sources(60_000);
    let admin = start(&sources).await;
    let answer = get(&admin, "/readyz", "").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("database: not connected yet\n"), "{answer}");
    sources.readiness.database(Ok(()));
    sources.readiness.schema(Ok(()));
    sources.readiness.sampled(true);
    sources.readiness.sink(Sink::Rabbitmq, Link::Down { detail: "connection refused".to_owned() });
    let answer = get(&admin, "/readyz", "accept: application/json\r\n").await;
    assert!(answer.ends_with("{\"ready\":false,\"reasons\":[\"rabbitmq: connection refused\"]}\n"), "{answer}");
    sources.readiness.sink(Sink::Rabbitmq, Link::Up);
    assert!(get(&admin, "/readyz", "").await.starts_with("HTTP/1.1 200"));
    admin.stop().await;
}

#[tokio::test]
async fn an_address_in_use_says_what_to_do() {
    let sources = sources(60_000);
    let admin = start(&sources).await;
    let error = Admin::start(admin.address, sources.clone()).await.unwrap_err();
    assert_eq!(error.exit, Exit::Failed);
    assert!(error.to_string().contains("choose another with --admin-listen"), "{error}");
    admin.stop().await;
}
