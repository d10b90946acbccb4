//! A TCP proxy between the relay and a service, whose faults a test switches on and off.
//!
//! Guarantees: bytes are forwarded in order and unchanged; a fault acts on open connections at
//! once, not only on new ones. It knows no protocol.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Chunks that may wait in the proxy for a direction; then the sender feels back-pressure.
const CHUNKS_MAX: usize = 64;
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Which way bytes go: requests from the relay to the service, replies back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Requests,
    Replies,
}

/// What one direction does with its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flow {
    #[default]
    Forward,
    /// Bytes are kept; the connection looks open and silent.
    Stall,
    /// Bytes are thrown away; the connection looks open and silent, for ever.
    Drop,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    requests: Way,
    replies: Way,
    refuse: bool,
    /// Grows by one for each cut.
    cuts: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    flow: Flow,
    delay: Duration,
}

impl Faults {
    fn way(&self, direction: Direction) -> Way {
        match direction {
            Direction::Requests => self.requests,
            Direction::Replies => self.replies,
        }
    }

    fn way_mut(&mut self, direction: Direction) -> &mut Way {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Replies => &mut self.replies,
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    replies: AtomicU64,
    connections: AtomicU64,
    /// What a test looks for, and where.
    wanted: Mutex<Option<(Direction, Vec<u8>)>>,
    sightings: AtomicU64,
}

impl Counters {
    fn look(&self, direction: Direction, chunk: &[u8]) {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((where_to, text)) = wanted.as_ref()
            && *where_to == direction
            && chunk.windows(text.len()).any(|part| part == text.as_slice())
        {
            self.sightings.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn bytes(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Requests => &self.requests,
            Direction::Replies => &self.replies,
        }
    }
}

/// The handle; dropping it closes the listener and all connections.
pub struct Proxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    counters: Arc<Counters>,
    stop: CancellationToken,
}

impl Proxy {
    /// Listens on a free loopback port for the service at a loopback port.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(service_port: u16) -> Result<Self> {
        Self::start_on(0, service_port).await
    }

    /// Like [`Proxy::start`] on a given port.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn start_on(port: u16, service_port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.with_context(|| format!("binding port {port}"))?;
        let proxy = Self {
            address: listener.local_addr()?,
            faults: watch::Sender::default(),
            counters: Arc::default(),
            stop: CancellationToken::new(),
        };
        let shared = Shared {
            service: SocketAddr::from(([127, 0, 0, 1], service_port)),
            faults: proxy.faults.subscribe(),
            counters: Arc::clone(&proxy.counters),
            stop: proxy.stop.clone(),
        };
        tokio::spawn(accept(listener, shared));
        Ok(proxy)
    }

    /// The port to hand to the relay.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Closes all open connections and loses what was kept of them; new ones are accepted.
    pub fn cut(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Keeps a direction's bytes until [`Proxy::forward`]: a black hole that may recover.
    pub fn stall(&self, direction: Direction) {
        self.set_flow(direction, Flow::Stall);
    }

    /// Throws a direction's bytes away. An open connection never recovers from that: cut it.
    pub fn drop_bytes(&self, direction: Direction) {
        self.set_flow(direction, Flow::Drop);
    }

    /// Forwards a direction again, kept bytes first.
    pub fn forward(&self, direction: Direction) {
        self.set_flow(direction, Flow::Forward);
    }

    /// Each byte of a direction arrives this much later; order and throughput stay.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.faults.send_modify(|faults| faults.way_mut(direction).delay = by);
    }

    /// New connections are reset at once (the port stays bound, so that nobody takes it).
    pub fn refuse(&self, refuse: bool) {
        self.faults.send_modify(|faults| faults.refuse = refuse);
    }

    /// The service is away: open connections are cut and new ones reset.
    pub fn take_away(&self) {
        self.faults.send_modify(|faults| {
            faults.refuse = true;
            faults.cuts += 1;
        });
    }

    /// Ends all faults. Connections that lost bytes stay broken; cut them.
    pub fn heal(&self) {
        self.faults.send_modify(|faults| *faults = Faults { cuts: faults.cuts, ..Faults::default() });
    }

    /// Bytes that arrived from a direction's sender so far.
    #[must_use]
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.counters.bytes(direction).load(Ordering::Relaxed)
    }

    /// Connections accepted so far, refused ones not counted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.counters.connections.load(Ordering::Relaxed)
    }

    /// Counts from now on the chunks of a direction that hold this text, kept ones too. A text that two chunks share
    /// is not seen.
    pub fn look_for(&self, direction: Direction, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        assert!(!text.is_empty(), "nothing to look for");
        let mut wanted = self.counters.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        *wanted = Some((direction, text.to_vec()));
        self.counters.sightings.store(0, Ordering::Relaxed);
    }

    /// Chunks with the text of [`Proxy::look_for`] so far.
    #[must_use]
    pub fn sightings(&self) -> u64 {
        self.counters.sightings.load(Ordering::Relaxed)
    }

    fn set_flow(&self, direction: Direction, flow: Flow) {
        self.faults.send_modify(|faults| faults.way_mut(direction).flow = flow);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[derive(Clone)]
struct Shared {
    service: SocketAddr,
    faults: watch::Receiver<Faults>,
    counters: Arc<Counters>,
    stop: CancellationToken,
}

async fn accept(listener: TcpListener, shared: Shared) {
    let stop = shared.stop.clone();
    let accepting = async {
        while let Ok((client, _)) = listener.accept().await {
            if shared.faults.borrow().refuse {
                // Without lingering a close is a reset, as from a port where nobody listens.
                let _ = client.set_zero_linger();
                continue;
            }
            shared.counters.connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(client, shared.clone()));
        }
    };
    let _ = stop.run_until_cancelled(accepting).await;
}

/// One connection, until either side closes it, a cut, or the end of the proxy.
async fn serve(client: TcpStream, shared: Shared) {
    let mut faults = shared.faults.clone();
    let cuts = faults.borrow_and_update().cuts;
    let Ok(service) = TcpStream::connect(shared.service).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = service.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_service, to_service) = service.into_split();
    let requests = pump(from_client, to_service, Direction::Requests, cuts, &shared);
    let replies = pump(from_service, to_client, Direction::Replies, cuts, &shared);
    tokio::select! {
        ((), ()) = async { tokio::join!(requests, replies) } => {}
        _ = faults.wait_for(|faults| faults.cuts != cuts) => {}
        () = shared.stop.cancelled() => {}
    }
}

/// One direction, until its sender closes it; a half-closed connection stays half open.
async fn pump(from: OwnedReadHalf, to: OwnedWriteHalf, direction: Direction, cuts: u64, shared: &Shared) {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::join!(read(from, sender, direction, shared), write(to, receiver, direction, cuts, shared.faults.clone()));
}

async fn read(mut from: OwnedReadHalf, chunks: mpsc::Sender<(Instant, Bytes)>, direction: Direction, shared: &Shared) {
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        shared.counters.bytes(direction).fetch_add(count as u64, Ordering::Relaxed);
        shared.counters.look(direction, &buffer[..count]);
        let due = Instant::now() + shared.faults.borrow().way(direction).delay;
        if chunks.send((due, Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
            return;
        }
    }
}

async fn write(
    mut to: OwnedWriteHalf,
    mut chunks: mpsc::Receiver<(Instant, Bytes)>,
    direction: Direction,
    cuts: u64,
    mut faults: watch::Receiver<Faults>,
) {
    while let Some((due, chunk)) = chunks.recv().await {
        tokio::time::sleep_until(due).await;
        let flowing = |faults: &Faults| faults.cuts != cuts || faults.way(direction).flow != Flow::Stall;
        let Ok(now) = faults.wait_for(flowing).await.map(|faults| *faults) else {
            return;
        };
        // A cut loses what was kept, also when the faults ended in the same moment.
        if now.cuts != cuts {
            return;
        }
        let flow = now.way(direction).flow;
        if flow == Flow::Forward && to.write_all(&chunk).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
