//! The TCP connection below lapin, and the switch that ends it for certain.
//!
//! While the broker blocks a connection lapin neither writes nor closes, so that a close in AMQP's terms may hang
//! without limit, and what lapin has queued may leave later. Therefore the adapter opens the socket itself and
//! keeps a second handle on it: `kill` shuts it down in both directions, after which no write succeeds, whatever
//! lapin still holds. The socket closes with a reset (zero linger), so that bytes in the kernel's send buffer are
//! thrown away too. What the broker's own kernel has already received cannot be taken back by anybody.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::tcp::RustlsConnector;
use lapin::types::{LongString, ShortString};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use outbox_tls::TlsError;

use crate::config::{RabbitmqConfig, WORDS};
use crate::url::Tls;

/// Between two looks whether the peer has ended the connection.
const LOOK: Duration = Duration::from_millis(100);
/// What lapin gets to say so in its own words.
const OWN_WORDS: Duration = Duration::from_millis(500);

/// A second handle on a connection's socket.
#[derive(Clone, Default)]
pub(crate) struct KillSwitch(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    socket: Option<TcpStream>,
    killed: bool,
}

impl KillSwitch {
    /// Takes the handle; a switch that was thrown before kills at once.
    fn arm(&self, socket: TcpStream) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.killed {
            return socket.shutdown(Shutdown::Both);
        }
        state.socket = Some(socket);
        Ok(())
    }

    /// Whether the peer has ended the connection and all that it sent was read.
    fn peer_ended(&self) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The handle shares the runtime's non-blocking mode.
        state.socket.as_ref().is_some_and(|socket| matches!(socket.peek(&mut [0]), Ok(0)))
    }

    /// Resolves a moment after the peer has ended the connection. lapin does not notice it at every point of a
    /// handshake and of opening channels, and its caller would wait out the deadline.
    pub(crate) async fn peer_gone(&self) {
        while !self.peer_ended() {
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(OWN_WORDS).await;
    }

    /// After this returns nothing more leaves the socket. Never waits; twice is harmless.
    pub(crate) fn kill(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.killed = true;
        if let Some(socket) = state.socket.take() {
            // It fails only when the peer has ended the connection already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Opens a connection over a socket that `switch` can end. It has no deadline of its own: the caller sets one and
/// throws the switch when it passes, which also ends lapin's thread.
pub(crate) async fn open(config: &RabbitmqConfig, switch: &KillSwitch) -> lapin::Result<Connection> {
    let secure = match config.tls() {
        Some(tls) => Some((connector(tls.clone()).await?, tls.clone())),
        None => None,
    };
    let timeout = Duration::from_millis(config.options().connect_timeout_ms);
    let switch = switch.clone();
    Connection::connector(
        config.fresh_uri().await,
        lapin::runtime::default_runtime()?,
        async move |uri, runtime| {
            let addresses = runtime.to_socket_addrs((uri.authority.host.clone(), uri.authority.port));
            let dial = async {
                let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                if let AsyncTcpStream::Plain(plain) = &stream {
                    plain.get_ref().set_zero_linger()?;
                    switch.arm(TcpStream::from(plain.get_ref().as_fd().try_clone_to_owned()?))?;
                }
                let Some((connector, tls)) = &secure else { return Ok(stream) };
                let roots = outbox_tls::shown_roots(tls.ca_file.as_deref(), &WORDS);
                let shaken = stream.into_rustls(connector, &tls.server_name).await;
                shaken
                    .map_err(|error| io::Error::other(TlsError::of_handshake(&error, &tls.server_name, &roots, &WORDS)))
            };
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no TCP or TLS connection within the time-out");
            Ok(tokio::time::timeout(timeout, dial).await.map_err(late)??)
        },
        properties(),
    )
    .await
}

/// With the files as they are now.
async fn connector(tls: Tls) -> io::Result<RustlsConnector> {
    let made = move || {
        let (builder, _) = outbox_tls::builder()?;
        let builder = builder.with_root_certificates(outbox_tls::roots(tls.ca_file.as_deref(), &WORDS)?);
        outbox_tls::with_identity(builder, tls.identity.as_ref(), &WORDS)
    };
    // Files may lie on a file system that hangs.
    let made = tokio::task::spawn_blocking(made).await.map_err(io::Error::other)?;
    made.map(RustlsConnector::from).map_err(io::Error::other)
}

/// Recovery stays off: it gives up after some attempts, and a re-opened channel could miss its confirm mode.
fn properties() -> ConnectionProperties {
    let properties = ConnectionProperties::default().with_connection_name(LongString::from("outbox-relay"));
    let named = [("product", "outbox-relay"), ("version", env!("CARGO_PKG_VERSION"))];
    named.into_iter().fold(properties, |properties, (name, value)| match ShortString::try_new(name) {
        Ok(name) => properties.with_client_property(name, LongString::from(value)),
        Err(_) => properties,
    })
}
