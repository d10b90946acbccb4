//! Stop signals. The first SIGTERM or SIGINT cancels a token, the second ends the process at once.
//!
//! The handlers stand before anything else is done, so that a stop during start-up is a clean one too. A forced end
//! uses the code that shells expect, 128 plus the signal: 130 for SIGINT, 143 for SIGTERM. It loses nothing: rows in
//! flight stay unsent and go out again with the same id.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The wish to stop.
#[derive(Clone, Debug)]
pub struct Stop {
    token: CancellationToken,
    signal: Arc<AtomicI32>,
}

impl Stop {
    /// Installs the handlers. Must run inside the runtime and before anything else.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn install() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stop = Self { token: CancellationToken::new(), signal: Arc::new(AtomicI32::new(0)) };
        let wish = stop.clone();
        tokio::spawn(async move {
            loop {
                let number = tokio::select! {
                    Some(()) = terminate.recv() => SignalKind::terminate().as_raw_value(),
                    Some(()) = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
                    else => return,
                };
                wish.receive(number);
            }
        });
        Ok(stop)
    }

    /// Cancelled by the first signal.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// The exit code of a command that a signal cut short.
    pub fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.signal.load(Ordering::Relaxed)).unwrap_or(1)
    }

    // Exits from here: a second signal must work even when the runtime no longer gets anything done.
    fn receive(&self, number: i32) {
        self.signal.store(number, Ordering::Relaxed);
        if self.token.is_cancelled() {
            std::process::exit(i32::from(self.exit_code()));
        }
        self.token.cancel();
    }
}
