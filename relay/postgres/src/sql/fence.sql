-- Called by: fence.rs, when WAL is not flushed far enough by itself.
-- A small commit of our own flushes everything before it. It must write WAL (a transaction id alone does not make
-- a commit wait for the flush), and synchronous_commit is set in the same statement: the server's may be off.
-- $1 synchronous_commit
SELECT set_config('synchronous_commit', $1, true), pg_logical_emit_message(true, 'outbox-relay', '')
