-- Called by: retention.rs. A discarded row and its entry go together (rule 10).
-- Index: held_state, then primary keys.
-- Locks: as prune_sent.
-- $1 source, $2 retention in seconds, $3 rows at most
WITH old AS MATERIALIZED (
    SELECT h.row_id, h.seq, h.tx
      FROM outbox.held h
     WHERE (SELECT pg_try_advisory_xact_lock(hashtextextended('outbox.prune', 0)))
       AND h.source = $1 AND h.state = 'discarded'
       AND h.held_since < statement_timestamp() - $2 * interval '1 second'
     LIMIT $3
       FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM outbox.message m USING old WHERE m.seq = old.seq AND m.tx = old.tx AND m.sent_at IS NULL
)
DELETE FROM outbox.held h USING old WHERE h.source = $1 AND h.row_id = old.row_id
