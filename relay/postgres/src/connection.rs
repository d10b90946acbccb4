//! One connection of a session: every statement has a deadline, and a deadline that passes ends the session.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Object};
use futures_util::TryStreamExt as _;
use outbox_core::SourceError;
use tokio::sync::watch;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::config::PostgresConfig;
use crate::errors::{classify, is_confined};
use crate::tls::{Tls, cancel};

/// A parameter with its type: statements are sent unnamed.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// What went wrong with statements that concern one table only.
pub(crate) enum Confined {
    Database(tokio_postgres::Error),
    Refused(String),
}

impl From<tokio_postgres::Error> for Confined {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

/// Tells the whole session that one of its connections is gone.
#[derive(Clone)]
pub(crate) struct Alarm(Arc<watch::Sender<Option<String>>>);

impl Alarm {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    /// The first reason stays.
    pub(crate) fn raise(&self, detail: &str) {
        self.0.send_if_modified(|reason| {
            let first = reason.is_none();
            if first {
                *reason = Some(detail.to_owned());
            }
            first
        });
    }

    /// Resolves once raised.
    pub(crate) async fn raised(&self) -> String {
        let mut reason = self.0.subscribe();
        let seen = reason.wait_for(Option::is_some).await;
        seen.ok().and_then(|reason| reason.clone()).unwrap_or_default()
    }

    fn reason(&self) -> Option<String> {
        self.0.borrow().clone()
    }
}

/// A connection taken out of the pool for good: it is never handed to anybody else.
pub(crate) struct Connection {
    client: ClientWrapper,
    name: &'static str,
    timeout: Duration,
    tls: Option<Tls>,
    alarm: Alarm,
}

impl Connection {
    pub(crate) fn new(object: Object, name: &'static str, config: &PostgresConfig, alarm: Alarm) -> Self {
        let timeout = Duration::from_millis(config.statement_timeout_ms);
        Self { client: Object::take(object), name, timeout, tls: config.database.tls().cloned(), alarm }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs one statement in a transaction of its own.
    pub(crate) async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, SourceError> {
        self.query_within(self.timeout, sql, parameters).await
    }

    /// As `query`, with a deadline of its own.
    pub(crate) async fn query_within(
        &self,
        timeout: Duration,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, SourceError> {
        self.within(timeout, self.client.query_typed(&crate::wrong::twisted(sql), parameters)).await
    }

    /// Runs one statement in a transaction of its own and hands over each row as it comes, so that a page of rows is
    /// not kept twice. The first error of `each` ends it.
    pub(crate) async fn for_each(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        mut each: impl FnMut(&Row) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let read = async {
            let parameters = parameters.iter().map(|(value, kind)| (*value, kind.clone()));
            let mut rows = std::pin::pin!(self.client.query_typed_raw(sql, parameters).await?);
            while let Some(row) = rows.try_next().await? {
                if let Err(error) = each(&row) {
                    return Ok(Err(error));
                }
            }
            Ok(Ok(()))
        };
        self.within(self.timeout, read).await?
    }

    /// Runs one statement in a transaction of its own; the number of rows it touched.
    pub(crate) async fn execute(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<u64, SourceError> {
        self.within(self.timeout, self.client.execute_typed(sql, parameters)).await
    }

    /// For statements whose failure concerns one of an application's tables: what the server says against them ends
    /// no session. Only a connection that is gone, or does not answer, does.
    pub(crate) async fn confined<T>(
        &self,
        timeout: Duration,
        statements: impl Future<Output = Result<T, Confined>>,
    ) -> Result<T, SourceError> {
        let statements = async {
            match statements.await {
                Ok(answer) => Ok(Ok(answer)),
                Err(Confined::Database(error)) if is_confined(&error) => Ok(Err(match classify(&error) {
                    SourceError::Lost(text) => SourceError::Refused(text),
                    other => other,
                })),
                Err(Confined::Database(error)) => Err(error),
                Err(Confined::Refused(text)) => Ok(Err(SourceError::Refused(text))),
            }
        };
        self.within(timeout, statements).await?
    }

    pub(crate) fn client(&self) -> &tokio_postgres::Client {
        &self.client
    }

    async fn within<T>(
        &self,
        timeout: Duration,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, SourceError> {
        if let Some(reason) = self.alarm.reason() {
            return Err(SourceError::Lost(reason));
        }
        let error = match tokio::time::timeout(timeout, statement).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => classify(&error),
            Err(_) => {
                self.cancel();
                let ms = timeout.as_millis();
                SourceError::Lost(format!("no answer to a statement on the {} connection within {ms} ms", self.name))
            }
        };
        if !matches!(error, SourceError::Again(_)) {
            self.alarm.raise(&error.to_string());
        }
        Err(error)
    }

    /// Dropping the future does not stop the statement: the server is asked to, and the connection is given up.
    fn cancel(&self) {
        let token = self.client.cancel_token();
        let (timeout, tls) = (self.timeout, self.tls.clone());
        tokio::spawn(async move {
            // The server may be gone; then there is nothing to cancel.
            let _ = tokio::time::timeout(timeout, cancel(&token, tls.as_ref())).await;
        });
    }
}
