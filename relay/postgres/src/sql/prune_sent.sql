-- Called by: retention.rs, a small batch at a time, by one relay.
-- Index: message_sent.
-- Locks: an advisory lock of this transaction (one relay prunes), then the rows it removes.
-- $1 retention in seconds, $2 rows at most
WITH old AS MATERIALIZED (
    SELECT m.seq
      FROM outbox.message m
     WHERE (SELECT pg_try_advisory_xact_lock(hashtextextended('outbox.prune', 0)))
       AND m.sent_at < statement_timestamp() - $1 * interval '1 second'
     ORDER BY m.sent_at LIMIT $2
       FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox.message m USING old WHERE m.seq = old.seq
