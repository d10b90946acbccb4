-- Called by: lanes.rs, for lanes that are free, expired, or ours from an earlier session.
-- Index: primary key of outbox.lane.
-- Locks: the lanes; one that somebody else is taking is left to them.
--
-- The epoch grows at each acquisition, so whatever was written late under the old one changes nothing (rule 8).
-- Synchronous, whatever the server's default: a crash that undid an acquisition would give its epoch out again, and
-- a hold sent before, through a pooler that hid the crash, would pass the fence.
-- $1 source, $2 relay id, $3 lanes, $4 the epoch last held of each (NULL: none), $5 lease in milliseconds
WITH setting AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'on', true) AS a
),
wanted AS MATERIALIZED (
    SELECT l.lane, l.owner IS NOT DISTINCT FROM $2 AND l.epoch IS NOT DISTINCT FROM w.epoch AS continuous
      FROM setting, outbox.lane l
      JOIN unnest($3, $4) AS w (lane, epoch) ON w.lane = l.lane
     WHERE l.source = $1 AND setting.a IS NOT NULL
       AND (l.owner IS NULL OR l.owner = $2 OR l.expires_at < clock_timestamp())
     ORDER BY l.lane
       FOR UPDATE OF l SKIP LOCKED
)
UPDATE outbox.lane l
   SET owner = $2, epoch = l.epoch + 1, expires_at = clock_timestamp() + $5 * interval '1 millisecond'
  FROM wanted
 WHERE l.source = $1 AND l.lane = wanted.lane
RETURNING l.lane, l.epoch, wanted.continuous
