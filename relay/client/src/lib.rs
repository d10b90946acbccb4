//! What an application imports to use the outbox and the inbox: enqueue an event in the transaction of its work, and
//! do the work of one message once.
//!
//! Guarantees: everything happens in the caller's transaction, and a failure leaves it to the caller to roll back.
//! It deliberately makes no keys: they must come from the work, or a second attempt would be other work.
//! `schema/IDEMPOTENCY.md` says more.
//!
//! ```no_run
//! use outbox_client::{Event, Inbox, Message, Outcome, enqueue};
//!
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! // The producer: the change and its event, both or neither.
//! let transaction = client.transaction().await?;
//! transaction.execute("UPDATE orders SET state = 'paid' WHERE id = 481", &[]).await?;
//! let event = Event::text("order:481:paid", "order.paid", r#"{"order": 481}"#).ordered_by("order:481");
//! enqueue(&transaction, &event).await?;
//! transaction.commit().await?;
//!
//! // The consumer: the work of one message, once. Acknowledge after the commit.
//! let message = Message { id: "order:481:paid".to_owned(), body: br#"{"order": 481}"#.to_vec() };
//! let transaction = client.transaction().await?;
//! let outcome = Inbox::process(&transaction, "mailer", &message, async |transaction| {
//!     transaction.execute("INSERT INTO sent_email (purchase) VALUES (481)", &[]).await
//! })
//! .await?;
//! transaction.commit().await?;
//! assert!(matches!(outcome, Outcome::Done(1) | Outcome::Repeated));
//! # Ok(())
//! # }
//! ```
//!
//! The features `rabbitmq` and `kafka` add consumers that do this for each message of a queue or topic, with TLS to the
//! database where `Settings::with_tls` brings it; `testkit` tries out any consumer.

mod enqueue;
mod error;
mod inbox;

#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
mod consumer;
#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
mod dialer;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "testkit")]
pub mod testkit;

#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
pub use consumer::{ConsumeError, Handler, REASON_HEADER, Settings};
pub use enqueue::{Event, enqueue};
pub use error::{BoxError, Error, ProcessError};
pub use inbox::{Inbox, Message, Outcome};
