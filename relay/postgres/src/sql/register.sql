-- Called by: lanes.rs, at the start of each session.
-- Index: primary key of outbox.relay.
-- Locks: the relay's own row.
-- $1 relay id, $2 version, $3 host, $4 process id
INSERT INTO outbox.relay AS r (id, version, host, pid) VALUES ($1, $2, $3, $4)
    ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()
