-- Called by: mark.rs, for all lanes of the process at once.
-- Index: the primary keys of outbox.message and outbox.held.
-- Locks: the lanes FOR SHARE, in order, so that a takeover cannot slip between check and write; then the rows.
--
-- Fenced by owner and epoch. Names rows by seq and tx (rule 9). A row leaves the waiting room in this statement
-- and nowhere else (rule 3). Losing these marks in a crash is allowed: the rows go again with the same id.
--
-- $1 source, $2 owner, $3 lanes, $4 epochs, $5 lock_timeout, $6 to $9 of each row: lane, epoch, seq, tx
WITH setting AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS a, set_config('lock_timeout', $5, true) AS b
),
fence AS MATERIALIZED (
    SELECT l.lane, l.epoch
      FROM setting, outbox.lane l
      JOIN unnest($3, $4) AS o (lane, epoch) ON o.lane = l.lane AND o.epoch = l.epoch
     WHERE l.source = $1 AND l.owner = $2 AND setting.a IS NOT NULL
     ORDER BY l.lane
       FOR SHARE OF l
),
confirmed AS MATERIALIZED (
    SELECT r.seq, r.tx
      FROM unnest($6, $7, $8, $9) AS r (lane, epoch, seq, tx)
      JOIN fence f ON f.lane = r.lane AND f.epoch = r.epoch
     -- In the order of the table: rows of several lanes lie on the same pages.
     ORDER BY r.seq
),
marked AS (
    UPDATE outbox.message m SET sent_at = clock_timestamp()
      FROM confirmed c
     WHERE m.seq = c.seq AND m.tx = c.tx AND m.sent_at IS NULL
),
released AS (
    DELETE FROM outbox.held h
     USING confirmed c
     -- Asked once: the waiting room is mostly empty, and a look for each row would cost as much as its mark.
     WHERE (SELECT EXISTS (SELECT FROM outbox.held w WHERE w.source = $1))
       AND h.source = $1 AND h.row_id = c.seq::text AND h.tx = c.tx
)
SELECT lane, epoch FROM fence
