use std::time::{Duration, Instant};

use anyhow::Result;
use outbox_tests::database::{self, Database};
use outbox_tests::kafka::Kafka;
use outbox_tests::kafka_proxy::KafkaProxy;
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SHORT: Duration = Duration::from_millis(200);

/// A service that answers every byte with the same byte.
async fn echo() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    });
    Ok(port)
}

async fn ask(stream: &mut TcpStream, text: &str) -> Result<String> {
    stream.write_all(text.as_bytes()).await?;
    answer(stream, text.len()).await
}

async fn answer(stream: &mut TcpStream, length: usize) -> Result<String> {
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8(answer)?)
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    tokio::time::timeout(SHORT, stream.read_u8()).await.is_err()
}

#[tokio::test]
async fn bytes_pass_unchanged_and_are_counted() -> Result<()> {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
    let long = "0123456789".repeat(100_000);
    let (mut reader, mut writer) = stream.split();
    let mut answer = vec![0; long.len()];
    let (sent, read) = tokio::join!(writer.write_all(long.as_bytes()), reader.read_exact(&mut answer));
    sent?;
    read?;
    assert_eq!(answer, long.as_bytes());
    assert_eq!(proxy.bytes(Direction::Requests), 1_000_000);
    assert_eq!(proxy.bytes(Direction::Replies), 1_000_000);
    assert_eq!(proxy.connections(), 1);
    Ok(())
}

#[tokio::test]
async fn a_stall_keeps_bytes_and_dropping_does_not() -> Result<()> {
    for direction in [Direction::Requests, Direction::Replies] {
        let proxy = Proxy::start(echo().await?).await?;
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
        assert_eq!(ask(&mut stream, "before").await?, "before");
        proxy.stall(direction);
        stream.write_all(b"kept").await?;
        assert!(is_silent(&mut stream).await);
        proxy.forward(direction);
        assert_eq!(answer(&mut stream, 4).await?, "kept");

        proxy.drop_bytes(direction);
        stream.write_all(b"gone").await?;
        assert!(is_silent(&mut stream).await);
        proxy.heal();
        assert_eq!(ask(&mut stream, "after").await?, "after");
    }
    Ok(())
}

#[tokio::test]
async fn a_text_that_is_looked_for_is_seen_while_it_is_kept() -> Result<()> {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
    ask(&mut stream, "the text").await?;
    proxy.look_for(Direction::Requests, "text");
    ask(&mut stream, "others").await?;
    assert_eq!(proxy.sightings(), 0);
    proxy.stall(Direction::Requests);
    stream.write_all(b"a text again").await?;
    wait::until_true("the text to be seen", wait::SOON, || async { Ok(proxy.sightings() == 1) }).await?;
    assert!(is_silent(&mut stream).await);
    Ok(())
}

#[tokio::test]
async fn a_cut_closes_open_connections_and_refusing_the_new_ones() -> Result<()> {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
    ask(&mut stream, "x").await?;
    proxy.cut();
    assert!(wait::bounded("the cut", wait::SOON, stream.read_u8()).await?.is_err());
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
    assert_eq!(ask(&mut stream, "again").await?, "again");

    proxy.take_away();
    assert!(wait::bounded("the cut", wait::SOON, stream.read_u8()).await?.is_err());
    let refused = async { ask(&mut TcpStream::connect(("127.0.0.1", proxy.port())).await?, "x").await };
    assert!(wait::bounded("the reset", wait::SOON, refused).await?.is_err());
    proxy.heal();
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
    assert_eq!(ask(&mut stream, "back").await?, "back");
    assert_eq!(proxy.connections(), 3);
    Ok(())
}

#[tokio::test]
async fn a_cut_loses_what_was_kept_even_when_the_faults_end_at_once() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = Proxy::start(listener.local_addr()?.port()).await?;
    proxy.stall(Direction::Requests);
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
    let (mut service, _) = listener.accept().await?;
    client.write_all(b"kept").await?;
    let kept = || async { Ok(proxy.bytes(Direction::Requests) == 4) };
    wait::until_true("the proxy to have the bytes", wait::SOON, kept).await?;
    proxy.cut();
    proxy.heal();
    let mut read = Vec::new();
    // The end may come as a reset or in order; what counts is that no byte came before it.
    let _ = wait::bounded("the cut", wait::SOON, service.read_to_end(&mut read)).await?;
    assert_eq!(read, b"");
    Ok(())
}

#[tokio::test]
async fn a_delay_is_paid_once_by_bytes_sent_together() -> Result<()> {
    let proxy = Proxy::start(echo().await?).await?;
    proxy.delay(Direction::Replies, SHORT);
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
    let start = Instant::now();
    for _ in 0..20 {
        stream.write_all(b"x").await?;
        tokio::task::yield_now().await;
    }
    assert_eq!(answer(&mut stream, 20).await?.len(), 20);
    let took = start.elapsed();
    assert!(took >= SHORT && took < SHORT * 19, "{took:?}");
    Ok(())
}

#[tokio::test]
async fn a_database_is_reached_through_the_proxy_until_it_is_cut() -> Result<()> {
    let database = Database::empty().await?;
    let proxy = Proxy::start(database.port()?).await?;
    let client = database::connect(&database.url_through(proxy.port())?).await?;
    client.simple_query("SELECT 1").await?;
    proxy.cut();
    let broken = || async { Ok(client.simple_query("SELECT 1").await.is_err()) };
    wait::until_true("the session to break", wait::SOON, broken).await
}

#[tokio::test]
async fn kafka_clients_stay_on_the_proxy() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("kafka_clients_stay_on_the_proxy")? else {
        return Ok(());
    };
    let topic = kafka.unique("proxied");
    kafka.create_topic(&topic, 1, &[]).await?;
    let proxy = KafkaProxy::start().await?;
    let through = Kafka::at(&proxy.brokers());
    let reader = through.reader(&topic).await?;
    assert!(reader.next(SHORT).await?.is_none());
    let before = proxy.bytes(Direction::Replies);
    let polls = || async {
        reader.next(SHORT).await?;
        Ok(proxy.bytes(Direction::Replies) > before)
    };
    wait::until_true("fetches to go through the proxy", wait::SOON, polls).await
}
