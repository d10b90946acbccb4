//! A TCP proxy between the adapter and the broker that can stand still, swallow the broker's replies, or cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the proxy does with traffic, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Reads nothing from the client: its bytes stay in kernel buffers. Replies pass.
    Freeze,
    /// Forwards to the broker, but the broker's replies vanish.
    SwallowReplies,
    /// Ends all connections and refuses new ones.
    Cut,
}

pub struct Proxy {
    pub url: String,
    pub mode: watch::Sender<Mode>,
    /// Connections whose client side has ended.
    pub ended: Arc<AtomicUsize>,
    /// Bytes that came from clients, forwarded or not yet.
    pub uploaded: Arc<AtomicUsize>,
}

impl Proxy {
    pub async fn start(broker_url: &str) -> Self {
        let authority = broker_url.split_once("://").expect("a URL").1;
        let (credentials, rest) = authority.rsplit_once('@').expect("credentials");
        let (host, vhost) = rest.split_once('/').expect("a virtual host");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let proxy = Self {
            url: format!("amqp://{credentials}@127.0.0.1:{port}/{vhost}"),
            mode: watch::Sender::new(Mode::Pass),
            ended: Arc::default(),
            uploaded: Arc::default(),
        };
        let (mode, ended, uploaded) = (proxy.mode.subscribe(), proxy.ended.clone(), proxy.uploaded.clone());
        let host = host.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *mode.borrow() == Mode::Cut {
                    continue;
                }
                let server = TcpStream::connect(&host).await.expect("the broker listens");
                tokio::spawn(serve(client, server, mode.clone(), ended.clone(), uploaded.clone()));
            }
        });
        proxy
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn serve(
    client: TcpStream,
    server: TcpStream,
    mode: watch::Receiver<Mode>,
    ended: Arc<AtomicUsize>,
    uploaded: Arc<AtomicUsize>,
) {
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = server.into_split();
    let mut cut = mode.clone();
    let mut gate = mode.clone();
    let up = async {
        let mut buffer = vec![0; 65_536];
        // Also while frozen: one buffer is taken and held up.
        while let Ok(count @ 1..) = client_read.read(&mut buffer).await {
            uploaded.fetch_add(count, Ordering::SeqCst);
            let _ = gate.wait_for(|mode| *mode != Mode::Freeze).await;
            if server_write.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
        ended.fetch_add(1, Ordering::SeqCst);
    };
    let down = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = server_read.read(&mut buffer).await {
            // Not after a cut either: this may be polled once more before the cut is seen.
            let passes = matches!(*mode.borrow(), Mode::Pass | Mode::Freeze);
            if passes && client_write.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        biased;
        // First, so that a cut lets nothing through that a freeze held up.
        _ = cut.wait_for(|mode| *mode == Mode::Cut) => {}
        () = up => {}
        () = down => {}
    }
}
