-- Called by: lanes.rs, once a second or a third of the lease.
-- Index: primary keys of outbox.relay and outbox.lane.
-- Locks: the lanes of this relay, in order.
-- $1 source, $2 relay id, $3 lanes, $4 epochs, $5 lease in milliseconds
WITH me AS (
    UPDATE outbox.relay SET heartbeat_at = clock_timestamp() WHERE id = $2 RETURNING id
),
mine AS MATERIALIZED (
    SELECT l.lane, l.epoch
      FROM outbox.lane l
      JOIN unnest($3, $4) AS o (lane, epoch) ON o.lane = l.lane AND o.epoch = l.epoch
     WHERE l.source = $1 AND l.owner = $2
     ORDER BY l.lane
       FOR NO KEY UPDATE OF l
),
kept AS (
    UPDATE outbox.lane l SET expires_at = clock_timestamp() + $5 * interval '1 millisecond'
      FROM mine
     WHERE l.source = $1 AND l.lane = mine.lane AND l.epoch = mine.epoch AND l.owner = $2
    RETURNING l.lane, l.epoch
),
-- A relay that was only paused enters itself again.
dead AS (
    DELETE FROM outbox.relay
     WHERE heartbeat_at < clock_timestamp() - 10 * $5 * interval '1 millisecond' AND id <> $2
),
alive AS (
    SELECT r.id FROM outbox.relay r
     WHERE r.id = $2 OR r.heartbeat_at > clock_timestamp() - $5 * interval '1 millisecond'
)
SELECT EXISTS (SELECT FROM me) AS known,
       ARRAY(SELECT lane FROM kept ORDER BY lane) AS lanes,
       ARRAY(SELECT epoch FROM kept ORDER BY lane) AS epochs,
       (SELECT count(*) FROM alive) AS relays,
       (SELECT count(*) FROM alive WHERE id < $2) AS rank,
       ARRAY(SELECT l.lane FROM outbox.lane l
              WHERE l.source = $1 AND (l.owner IS NULL OR l.expires_at < clock_timestamp()
                                       OR l.owner = $2 AND l.lane <> ALL ($3))
              ORDER BY l.lane) AS free
