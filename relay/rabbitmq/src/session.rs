//! One live connection: its channels, its limits, and its end.
//!
//! Every question to the broker has a deadline and ends early when the connection does, because lapin answers
//! nothing while the broker blocks the connection. A session ends once, for one reason (`fail`), and then its
//! socket is dead before anybody is told.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};
use outbox_tls::TlsError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{RabbitmqConfig, WORDS};
use crate::message::Limits;
use crate::socket::{self, KillSwitch};

/// AMQP's reply codes that the adapter tells apart.
pub(crate) const ACCESS_REFUSED: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const RESOURCE_LOCKED: u16 = 405;
pub(crate) const PRECONDITION_FAILED: u16 = 406;
pub(crate) const NOT_ALLOWED: u16 = 530;

/// The connection's end without a word.
const PEER_ENDED: &str = "the broker ended it without a word";

/// Why something could not be asked or done.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The connection ended meanwhile.
    #[error("the connection to RabbitMQ ended: {0}")]
    Ended(String),
    /// The broker blocks the connection, so that lapin sends nothing.
    #[error("RabbitMQ blocks the connection (a memory or disk alarm)")]
    Blocked,
    /// The broker did not answer.
    #[error("RabbitMQ did not answer {what} within {ms} ms")]
    Late { what: &'static str, ms: u64 },
    /// The broker, or lapin, said no.
    #[error("{0}")]
    Amqp(#[from] lapin::Error),
    /// A channel came back without confirms; nothing may be published on it.
    #[error("the broker gave a channel that is not in confirm mode")]
    NotConfirming,
}

impl SessionError {
    /// The broker's reply code, where it gave one.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Amqp(error) => code(error),
            Self::Ended(_) | Self::Blocked | Self::Late { .. } | Self::NotConfirming => None,
        }
    }
}

/// The broker's reply code, where it gave one.
pub(crate) fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// The broker's words, else what is wrong with TLS, else lapin's; none holds payload, headers or credentials.
pub(crate) fn words(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        _ => tls_error(error).map_or_else(|| error.to_string(), |error| error.to_string()),
    }
}

/// What is wrong with TLS, if that is what ended the connection or never let it begin.
pub(crate) fn tls_error(error: &lapin::Error) -> Option<TlsError> {
    let ErrorKind::IOError(error) = error.kind() else { return None };
    let ours = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    ours.cloned().or_else(|| TlsError::of_alert_in(error, &WORDS))
}

/// Whether the peer's end, and nothing that it said, was the error.
pub(crate) fn is_cut(error: &lapin::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let ErrorKind::IOError(error) = error.kind() else { return false };
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

/// One connection with its channels in confirm mode.
pub(crate) struct Session {
    connection: Connection,
    channels: Vec<Channel>,
    switch: KillSwitch,
    ended: CancellationToken,
    why: OnceLock<String>,
    blocked: watch::Sender<bool>,
    answered: AtomicBool,
    frame_bytes_max: usize,
    message_bytes_max: AtomicUsize,
    ask_ms: u64,
}

impl Session {
    /// Connects and opens all channels in confirm mode. On an error nothing is left behind.
    pub(crate) async fn open(config: &RabbitmqConfig) -> Result<Arc<Self>, SessionError> {
        let ask_ms = config.options().connect_timeout_ms;
        let switch = KillSwitch::default();
        let connecting = async {
            tokio::select! {
                biased;
                connected = socket::open(config, &switch) => Ok(connected?),
                () = switch.peer_gone() => Err(SessionError::Ended(PEER_ENDED.to_owned())),
            }
        };
        // Twice the time: once for TCP and TLS, which count for themselves, and once for AMQP's handshake.
        let connection = match tokio::time::timeout(Duration::from_millis(2 * ask_ms), connecting).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                switch.kill();
                return Err(error);
            }
            Err(_) => {
                switch.kill();
                return Err(SessionError::Late { what: "the connection handshake", ms: 2 * ask_ms });
            }
        };
        let frame_bytes_max = usize::try_from(connection.configuration().frame_max()).unwrap_or(usize::MAX);
        let mut session = Self {
            connection,
            channels: Vec::new(),
            switch,
            ended: CancellationToken::new(),
            why: OnceLock::new(),
            blocked: watch::Sender::new(false),
            answered: AtomicBool::new(false),
            frame_bytes_max,
            message_bytes_max: AtomicUsize::new(config.message_bytes_max()),
            ask_ms,
        };
        for _ in 0..config.options().channels {
            match session.confirming_channel().await {
                Ok(channel) => session.channels.push(channel),
                Err(error) => {
                    session.fail("a channel could not be opened");
                    return Err(error);
                }
            }
        }
        Ok(Arc::new(session))
    }

    pub(crate) const fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn channel(&self, index: usize) -> Option<Channel> {
        self.channels.get(index).cloned()
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            frame_bytes_max: self.frame_bytes_max,
            message_bytes_max: self.message_bytes_max.load(Ordering::Relaxed),
        }
    }

    /// Remembers a lower limit that the broker told in a refusal.
    pub(crate) fn learn_message_bytes_max(&self, most: usize) {
        self.message_bytes_max.fetch_min(most, Ordering::Relaxed);
    }

    /// Ends the connection for a reason. When it returns, nothing more leaves the socket.
    pub(crate) fn fail(&self, why: impl Into<String>) {
        let _ = self.why.set(why.into());
        self.switch.kill();
        self.ended.cancel();
    }

    /// Why it ended; empty while it lives.
    pub(crate) fn why(&self) -> String {
        self.why.get().cloned().unwrap_or_default()
    }

    /// Resolves when the session ended.
    pub(crate) const fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Whether the connection stands, blocked or not.
    pub(crate) fn alive(&self) -> bool {
        !self.ended.is_cancelled() && self.connection.status().connected()
    }

    /// The broker confirmed or refused a row.
    pub(crate) fn note_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Whether the broker has answered for a row.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.blocked.send_replace(blocked);
    }

    /// Whether rows may be written now.
    pub(crate) fn usable(&self) -> bool {
        self.alive() && !*self.blocked.borrow() && !self.connection.status().blocked()
    }

    /// Resolves when no answer can come in.
    async fn unusable(&self) -> SessionError {
        let mut blocked = self.blocked.subscribe();
        tokio::select! {
            () = self.ended.cancelled() => SessionError::Ended(self.why()),
            _ = blocked.wait_for(|blocked| *blocked) => SessionError::Blocked,
        }
    }

    /// Waits for an answer, but neither for ever nor past the end or a blocking of the connection.
    async fn ask<T>(
        &self,
        what: &'static str,
        question: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, SessionError> {
        tokio::select! {
            biased;
            answer = question => Ok(answer?),
            error = self.unusable() => Err(error),
            () = self.switch.peer_gone() => {
                self.fail(PEER_ENDED);
                Err(SessionError::Ended(self.why()))
            }
            () = tokio::time::sleep(Duration::from_millis(self.ask_ms)) => {
                Err(SessionError::Late { what, ms: self.ask_ms })
            }
        }
    }

    /// A new channel on which only a real confirm can come back.
    pub(crate) async fn confirming_channel(&self) -> Result<Channel, SessionError> {
        let channel = self.ask("channel.open", self.connection.create_channel()).await?;
        self.ask("confirm.select", channel.confirm_select(ConfirmSelectOptions::default())).await?;
        if channel.status().confirm() { Ok(channel) } else { Err(SessionError::NotConfirming) }
    }

    /// Whether the broker answers anything at all on this connection.
    pub(crate) async fn answers(&self) -> bool {
        self.ask("channel.open", self.connection.create_channel()).await.is_ok()
    }

    /// Whether an exchange exists, asked on a channel of its own because "no" closes the channel. The default
    /// exchange always exists, and the broker refuses to be asked about it.
    pub(crate) async fn exchange_exists(&self, exchange: &str) -> Result<bool, SessionError> {
        if exchange.is_empty() {
            return Ok(true);
        }
        let channel = self.ask("channel.open", self.connection.create_channel()).await?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let question = channel.exchange_declare(name(exchange)?, ExchangeKind::Topic, options, FieldTable::default());
        existence(self.ask("a passive exchange.declare", question).await)
    }

    /// Whether a queue exists, for addresses of the default exchange.
    pub(crate) async fn queue_exists(&self, queue: &str) -> Result<bool, SessionError> {
        let channel = self.ask("channel.open", self.connection.create_channel()).await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let question = channel.queue_declare(name(queue)?, options, FieldTable::default());
        existence(self.ask("a passive queue.declare", question).await.map(|_| ()))
    }

    /// Closes in AMQP's own way if that goes quickly, and for certain in any case.
    pub(crate) async fn close(&self, wait: Duration) {
        if self.usable() {
            let bye = ShortString::try_new("outbox-relay stops").unwrap_or_default();
            let _ = tokio::time::timeout(wait, self.connection.close(200, bye)).await;
        }
        self.fail("closed");
    }
}

/// A session that nobody holds any more must not leave lapin's thread waiting on a silent socket.
impl Drop for Session {
    fn drop(&mut self) {
        self.switch.kill();
    }
}

/// Only "not found" is a no. A refusal to tell (403), or a queue held by another connection (405), means that it is
/// there or that only publishing can show it.
fn existence(answer: Result<(), SessionError>) -> Result<bool, SessionError> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) => match error.code() {
            Some(NOT_FOUND) => Ok(false),
            Some(ACCESS_REFUSED | RESOURCE_LOCKED | PRECONDITION_FAILED) => Ok(true),
            _ => Err(error),
        },
    }
}

fn name(text: &str) -> Result<ShortString, SessionError> {
    ShortString::try_new(text).map_err(|error| SessionError::Amqp(std::io::Error::other(error).into()))
}
