-- Called by: lanes.rs, when a lane is given back.
-- Index: primary key of outbox.lane.
-- Locks: the lanes.
-- $1 source, $2 relay id, $3 lanes, $4 epochs
UPDATE outbox.lane l SET owner = NULL, expires_at = NULL
  FROM unnest($3, $4) AS o (lane, epoch)
 WHERE l.source = $1 AND l.lane = o.lane AND l.epoch = o.epoch AND l.owner = $2
