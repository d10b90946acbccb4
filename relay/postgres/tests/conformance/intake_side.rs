//! Rows of a table that may only be read, noted beside the outbox.

use outbox_core::{Refusal, Session, Take};
use outbox_postgres::{IntakeTable, Mark};
use uuid::Uuid;

use crate::intake::{Bed, name, plain};

const TABLE: &str = "CREATE TABLE public.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
                     at timestamptz NOT NULL DEFAULT clock_timestamp(), kind text, ref text)";

fn noted() -> IntakeTable {
    IntakeTable { order: Some(name("at")), ..plain(Mark::SideTable) }
}

#[tokio::test]
async fn rows_are_noted_once_and_taken_in_the_order_of_their_column() {
    let bed = Bed::new(TABLE, noted()).await;
    let reader = format!("reader_{}", Uuid::new_v4().simple());
    bed.sql(&format!(
        "CREATE ROLE {reader} IN ROLE outbox_relay, outbox_source; GRANT USAGE ON SCHEMA public TO {reader}; \
         GRANT SELECT ON public.outbox TO {reader}"
    ))
    .await;
    let session = bed.database.session_with(Uuid::new_v4(), &format!("-c role={reader}"), vec![noted()]).await;
    bed.sql("INSERT INTO public.outbox (kind, ref) SELECT 'k', n FROM generate_series(1, 150) AS n").await;
    bed.sql("INSERT INTO public.outbox (kind) VALUES ('no ref')").await;
    let first = crate::intake::taken(session.take(0, true).await);
    assert_eq!((first.rows, first.more), (100, true));
    let second = crate::intake::taken(session.take(0, false).await);
    assert_eq!((second.rows, second.refused.as_slice()), (50, [(Refusal::MessageId, 1)].as_slice()));
    assert_eq!(session.take(0, true).await.expect("a look"), Take::Nothing, "a refused row is not looked at again");
    assert_eq!(bed.messages().await, (1..=150).map(|n| format!("k:{n}")).collect::<Vec<_>>());
    assert_eq!(bed.count("SELECT count(*) FROM outbox.source_row WHERE state = 'taken'").await, 150);

    // A refused row that was mended goes once its note is gone.
    bed.sql("UPDATE public.outbox SET ref = '1' WHERE kind = 'no ref'; DELETE FROM outbox.source_row WHERE state = 'refused'")
        .await;
    assert_eq!(crate::intake::taken(session.take(0, true).await).rows, 1);
    drop(session);
    bed.sql(&format!("DROP OWNED BY {reader}; DROP ROLE {reader}")).await;
}

/// Even where the message is gone: a row that was taken is not taken again.
#[tokio::test]
async fn a_taken_row_stays_taken_when_its_message_was_removed() {
    let bed = Bed::new(TABLE, noted()).await;
    bed.sql("INSERT INTO public.outbox (kind, ref) VALUES ('k', '1')").await;
    assert_eq!(bed.take().await.rows, 1);
    bed.sql("DELETE FROM outbox.message").await;
    assert_eq!(bed.take().await.rows, 0);
    assert!(bed.messages().await.is_empty());
}

#[tokio::test]
async fn notes_go_with_their_rows_and_not_before() {
    let bed = Bed::new(TABLE, IntakeTable { batch_rows: 10_000, ..noted() }).await;
    bed.sql("INSERT INTO public.outbox (kind, ref) SELECT 'k', n FROM generate_series(1, 2500) AS n").await;
    assert_eq!(bed.take().await.rows, 2500);
    let open = bed.database.client().await;
    bed.sql("DELETE FROM public.outbox WHERE ref::int <= 1200").await;
    open.batch_execute("BEGIN; DELETE FROM public.outbox WHERE ref::int > 2000").await.expect("delete");
    let (mut above, mut batches) = (String::new(), 0);
    while let Some(next) = bed.session.tidy(0, &above).await.expect("a batch") {
        assert!(next > above);
        above = next;
        batches += 1;
    }
    assert_eq!(batches, 2, "a thousand at a time, the rest without a next");
    assert_eq!(bed.count("SELECT count(*) FROM outbox.source_row").await, 1300);
    open.batch_execute("ROLLBACK").await.expect("rollback");
    assert_eq!(bed.take().await.rows, 0, "what is still there is not taken again");
}
