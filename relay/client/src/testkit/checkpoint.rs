//! A way to PostgreSQL that stops at the n-th statement of a delivery, before the server gets it or after it has
//! answered: whoever is killed then, was killed exactly there.
//!
//! It counts what ends a request in PostgreSQL's protocol: `Query` and `Sync` (manual, "Message Formats"). What comes
//! before a `Sync` is kept back with it, since the server would execute it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::BoxError;

/// More than any request or answer of a test; a link that needs more is closed.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// Where a delivery is stopped, counted from 1 over all its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Before(u32),
    After(u32),
}

pub(super) struct Checkpoint {
    port: u16,
    met: watch::Receiver<bool>,
    serving: JoinHandle<()>,
}

struct Shared {
    server: String,
    stop: Stop,
    seen: AtomicU32,
    met: watch::Sender<bool>,
}

impl Checkpoint {
    /// `server`: host and port.
    pub(super) async fn before(server: &str, stop: Stop) -> Result<Self, BoxError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (met, receiver) = watch::channel(false);
        let shared = Arc::new(Shared { server: server.to_owned(), stop, seen: AtomicU32::new(0), met });
        let serving = tokio::spawn(async move {
            let mut links = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let shared = shared.clone();
                // A link that breaks is what the delivery sees, and no more is to be said of it.
                links.spawn(async move { drop(link(client, &shared).await) });
            }
        });
        Ok(Self { port, met: receiver, serving })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Resolves when the statement is reached; the links stand still from then on.
    pub(super) async fn met(&self) {
        if self.met.clone().wait_for(|met| *met).await.is_err() {
            std::future::pending().await
        }
    }
}

/// All links are closed with it.
impl Drop for Checkpoint {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn link(mut client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut server = TcpStream::connect(&shared.server).await?;
    let (mut asked, mut answered) = (Packets::default(), Packets::tagged());
    let mut request = Vec::new();
    let (mut up, mut down) = (vec![0; 8_192], vec![0; 8_192]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let count = some(read?)?;
                asked.bytes.extend_from_slice(&up[..count]);
            }
            read = server.read(&mut down) => {
                let count = some(read?)?;
                answered.bytes.extend_from_slice(&down[..count]);
                while let Some(packet) = answered.next() {
                    client.write_all(&packet).await?;
                }
            }
        }
        if asked.bytes.len() + answered.bytes.len() + request.len() > KEPT_BYTES_MAX {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        while let Some(packet) = asked.next() {
            if is_offer_to_encrypt(&packet) && !asked.tagged {
                client.write_all(b"N").await?;
                continue;
            }
            asked.tagged = true;
            let tag = packet[0];
            request.extend_from_slice(&packet);
            if matches!(tag, b'Q' | b'S') {
                end_request(shared, &mut server, &mut answered, &request).await?;
                request.clear();
            } else if !matches!(tag, b'P' | b'B' | b'D' | b'E' | b'C') {
                server.write_all(&request).await?;
                request.clear();
            }
        }
    }
}

/// Hands a whole request to the server, unless it is the one to stop at.
async fn end_request(
    shared: &Shared,
    server: &mut TcpStream,
    answered: &mut Packets,
    request: &[u8],
) -> std::io::Result<()> {
    let number = shared.seen.fetch_add(1, Ordering::SeqCst) + 1;
    if shared.stop == Stop::Before(number) {
        return halt(shared).await;
    }
    server.write_all(request).await?;
    if shared.stop == Stop::After(number) {
        let mut bytes = vec![0; 8_192];
        loop {
            let count = some(server.read(&mut bytes).await?)?;
            answered.bytes.extend_from_slice(&bytes[..count]);
            while let Some(packet) = answered.next() {
                // ReadyForQuery: the request is done, and committed where it was a COMMIT.
                if packet[0] == b'Z' {
                    return halt(shared).await;
                }
            }
        }
    }
    Ok(())
}

async fn halt(shared: &Shared) -> std::io::Result<()> {
    shared.met.send_replace(true);
    std::future::pending().await
}

fn some(count: usize) -> std::io::Result<usize> {
    if count == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(count) }
}

/// SSLRequest and GSSENCRequest, which are declined: the statements could not be counted.
fn is_offer_to_encrypt(packet: &[u8]) -> bool {
    matches!(packet, [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f | 0x30])
}

/// Cuts a stream into the protocol's messages. A client's first ones have no tag.
#[derive(Default)]
struct Packets {
    bytes: Vec<u8>,
    tagged: bool,
}

impl Packets {
    fn tagged() -> Self {
        Self { tagged: true, ..Self::default() }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let start = usize::from(self.tagged);
        let length: [u8; 4] = self.bytes.get(start..start + 4)?.try_into().ok()?;
        let end = start + usize::try_from(u32::from_be_bytes(length)).ok()?.max(4);
        (self.bytes.len() >= end).then(|| self.bytes.drain(..end).collect())
    }
}
