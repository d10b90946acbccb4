//! A TCP way to RabbitMQ that confirms late and all at once, as AMQP lets a broker do: the acks of a channel are kept
//! until everything published on it is answered, and then one ack with `multiple` stands for all. Returns go through
//! at once, so that they all come before the confirms.
//!
//! Guarantees: nothing but acks is changed or kept, and no ack is kept once all are in. It works for one relay that
//! waits for the confirms of what it wrote before it writes much more, as ours does.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// What a client says before its first frame.
const GREETING_BYTES: usize = 8;
const METHOD_FRAME: u8 = 1;
const FRAME_END: u8 = 0xce;
/// Class and method.
const CHANNEL_OPEN: (u16, u16) = (20, 10);
const BASIC_PUBLISH: (u16, u16) = (60, 40);
const BASIC_ACK: (u16, u16) = (60, 80);
const BASIC_NACK: (u16, u16) = (60, 120);

/// The handle; dropping it closes the listener and all connections.
pub struct AckMerger {
    port: u16,
    stop: CancellationToken,
}

impl AckMerger {
    /// Listens on a free loopback port for the broker at a loopback port.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(broker_port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(accept(listener, broker_port, stop.clone())));
        Ok(Self { port, stop })
    }

    /// The port to hand to the relay.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for AckMerger {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, broker_port: u16, stop: CancellationToken) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            // Either side's end is the end of both; whoever is left sees a closed connection.
            let _ = serve(client, broker_port).await;
        }));
    }
}

async fn serve(client: TcpStream, broker_port: u16) -> std::io::Result<()> {
    let broker = TcpStream::connect(("127.0.0.1", broker_port)).await?;
    client.set_nodelay(true)?;
    broker.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (from_broker, mut to_broker) = broker.into_split();
    let channels = Arc::new(Mutex::new(Channels::default()));
    let mut greeting = [0; GREETING_BYTES];
    from_client.read_exact(&mut greeting).await?;
    to_broker.write_all(&greeting).await?;
    let requests = pump(from_client, to_broker, |frame| {
        lock(&channels).requested(&frame);
        vec![frame]
    });
    let replies = pump(from_broker, to_client, |frame| lock(&channels).replied(frame));
    tokio::select! {
        ended = requests => ended,
        ended = replies => ended,
    }
}

fn lock(channels: &Mutex<Channels>) -> std::sync::MutexGuard<'_, Channels> {
    channels.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on frame by frame what `pass` makes of each.
async fn pump(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    pass: impl Fn(Frame) -> Vec<Frame>,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    loop {
        let frame = Frame { kind: from.read_u8().await?, channel: from.read_u16().await?, payload: Vec::new() };
        let size = from.read_u32().await?;
        let mut payload = vec![0; size as usize];
        from.read_exact(&mut payload).await?;
        from.read_u8().await?;
        for frame in pass(Frame { payload, ..frame }) {
            to.write_all(&frame.bytes()).await?;
        }
    }
}

struct Frame {
    kind: u8,
    channel: u16,
    payload: Vec<u8>,
}

impl Frame {
    fn method(&self) -> Option<(u16, u16)> {
        match self.payload[..] {
            [a, b, c, d, ..] if self.kind == METHOD_FRAME => {
                Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
            }
            _ => None,
        }
    }

    /// Delivery tag and `multiple` of an ack or nack.
    fn answer(&self) -> (u64, bool) {
        let tag = self.payload.get(4..12).and_then(|tag| tag.try_into().ok()).map_or(0, u64::from_be_bytes);
        (tag, self.payload.get(12).is_some_and(|bits| bits & 1 == 1))
    }

    fn ack_all(channel: u16, to: u64) -> Self {
        let mut payload = vec![0, 60, 0, 80];
        payload.extend(to.to_be_bytes());
        payload.push(1);
        Self { kind: METHOD_FRAME, channel, payload }
    }

    fn bytes(&self) -> Vec<u8> {
        let size = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let mut bytes = vec![self.kind];
        bytes.extend(self.channel.to_be_bytes());
        bytes.extend(size.to_be_bytes());
        bytes.extend(&self.payload);
        bytes.push(FRAME_END);
        bytes
    }
}

/// By channel: the last tag, and those without an answer.
#[derive(Default)]
struct Channels(HashMap<u16, (u64, BTreeSet<u64>)>);

impl Channels {
    fn requested(&mut self, frame: &Frame) {
        match frame.method() {
            Some(CHANNEL_OPEN) => {
                self.0.remove(&frame.channel);
            }
            Some(BASIC_PUBLISH) => {
                let (last, open) = self.0.entry(frame.channel).or_default();
                *last += 1;
                open.insert(*last);
            }
            _ => {}
        }
    }

    fn replied(&mut self, frame: Frame) -> Vec<Frame> {
        let method = frame.method();
        if method != Some(BASIC_ACK) && method != Some(BASIC_NACK) {
            return vec![frame];
        }
        let (tag, multiple) = frame.answer();
        let (last, open) = self.0.entry(frame.channel).or_default();
        open.retain(|open| *open != tag && !(multiple && *open < tag));
        let whole = open.is_empty().then(|| Frame::ack_all(frame.channel, *last));
        (method == Some(BASIC_NACK)).then_some(frame).into_iter().chain(whole).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(channel: u16, (class, method): (u16, u16), rest: &[u8]) -> Frame {
        let mut payload = class.to_be_bytes().to_vec();
        payload.extend(method.to_be_bytes());
        payload.extend(rest);
        Frame { kind: METHOD_FRAME, channel, payload }
    }

    fn answer(channel: u16, method_name: (u16, u16), tag: u64, multiple: bool) -> Frame {
        let mut rest = tag.to_be_bytes().to_vec();
        rest.push(multiple.into());
        method(channel, method_name, &rest)
    }

    fn answers(frames: &[Frame]) -> Vec<(u16, u64, bool)> {
        frames.iter().map(|frame| (frame.channel, frame.answer().0, frame.answer().1)).collect()
    }

    #[test]
    fn a_channel_is_confirmed_once_all_of_it_is_answered() {
        let mut channels = Channels::default();
        for channel in [1, 1, 2, 1, 1] {
            channels.requested(&method(channel, BASIC_PUBLISH, &[]));
        }
        assert!(channels.replied(answer(1, BASIC_ACK, 3, false)).is_empty());
        assert!(channels.replied(answer(1, BASIC_ACK, 2, true)).is_empty());
        assert_eq!(answers(&channels.replied(answer(2, BASIC_ACK, 1, false))), [(2, 1, true)]);
        assert_eq!(answers(&channels.replied(answer(1, BASIC_NACK, 4, false))), [(1, 4, false), (1, 4, true)]);
        channels.requested(&method(1, BASIC_PUBLISH, &[]));
        assert_eq!(answers(&channels.replied(answer(1, BASIC_ACK, 5, false))), [(1, 5, true)]);
    }

    #[test]
    fn a_channel_that_is_opened_again_counts_anew_and_returns_pass() {
        let mut channels = Channels::default();
        channels.requested(&method(1, BASIC_PUBLISH, &[]));
        channels.requested(&method(1, CHANNEL_OPEN, &[]));
        channels.requested(&method(1, BASIC_PUBLISH, &[]));
        let returned = method(1, (60, 50), b"why");
        assert_eq!(channels.replied(returned).len(), 1);
        assert_eq!(answers(&channels.replied(answer(1, BASIC_ACK, 1, false))), [(1, 1, true)]);
    }
}
