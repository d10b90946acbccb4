//! Hands out tokens as an identity provider does (OAuth 2.0, client credentials, RFC 6749 section 4.4): unsigned ones,
//! which a broker takes that was not told whose to trust.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::http_server::{Answer, HttpServer, Request};
use crate::wait;

/// A server on loopback; it goes with its value.
pub struct TokenEndpoint {
    server: HttpServer,
    state: Arc<State>,
}

struct State {
    secret: Mutex<String>,
    /// It hangs up on who asks.
    away: Mutex<bool>,
    given: Mutex<usize>,
    /// Seconds since 1970, when it began.
    now_s: i64,
    begun: Instant,
    lifetime_s: i64,
}

/// The one whom it knows.
pub const CLIENT: &str = "relay";

impl TokenEndpoint {
    /// Knows [`CLIENT`] by this secret. `now_s` is the time, in seconds since 1970.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(tls: Option<TlsAcceptor>, secret: &str, now_s: i64, lifetime_s: i64) -> Result<Self> {
        let state = Arc::new(State {
            secret: Mutex::new(secret.to_owned()),
            away: Mutex::new(false),
            given: Mutex::new(0),
            now_s,
            begun: Instant::now(),
            lifetime_s,
        });
        let asked = Arc::clone(&state);
        let answer = move |request| std::future::ready(asked.answer(&request));
        Ok(Self { server: HttpServer::start(tls, answer).await?, state })
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("{}/token", self.server.url())
    }

    /// Whether it hangs up on who asks from now on.
    pub fn set_away(&self, away: bool) {
        *lock(&self.state.away) = away;
    }

    /// From now on its client needs this secret.
    pub fn set_secret(&self, secret: &str) {
        secret.clone_into(&mut lock(&self.state.secret));
    }

    /// Waits until at least so many tokens were given out.
    ///
    /// # Errors
    /// When they are not in time.
    pub async fn wait_given(&self, count: usize, within: Duration) -> Result<()> {
        let enough = || async { Ok(*lock(&self.state.given) >= count) };
        wait::until_true(&format!("{count} tokens to be given out"), within, enough).await
    }
}

impl State {
    fn answer(&self, request: &Request) -> Result<Option<Answer>> {
        if *lock(&self.away) {
            return Ok(None);
        }
        let login = BASE64_STANDARD.encode(format!("{CLIENT}:{}", *lock(&self.secret)));
        let asks = std::str::from_utf8(&request.body)?.contains("grant_type=client_credentials");
        let (status, body) = if asks && request.head.contains(&format!("Basic {login}")) {
            *lock(&self.given) += 1;
            let token = self.token()?;
            (200, json!({ "access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s }))
        } else {
            (401, json!({ "error": "invalid_client" }))
        };
        Ok(Some(Answer { status, content_type: "application/json", body: body.to_string().into_bytes() }))
    }

    /// RFC 7519 section 6.
    fn token(&self) -> Result<String> {
        let now_s = self.now_s + i64::try_from(self.begun.elapsed().as_secs())?;
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let head = json!({ "alg": "none", "typ": "JWT" });
        let claims = json!({ "sub": CLIENT, "iat": now_s - 1, "exp": now_s + self.lifetime_s });
        Ok(format!("{}.{}.", part(&head), part(&claims)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
