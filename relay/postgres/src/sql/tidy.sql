-- Called by: intake.rs, a small batch at a time, in a walk over all notes of a source.
-- Index: the primary key of outbox.source_row, the application's on its id.
-- Locks: the notes it removes. A note follows its row's commit, so whoever sees the note sees the row, unless it is
-- gone.
-- $1 source, $2 the row id after which to go on, $3 notes at most
WITH batch AS MATERIALIZED (
    SELECT r.row_id FROM outbox.source_row AS r WHERE r.source = $1 AND r.row_id > $2 ORDER BY r.row_id LIMIT $3
),
gone AS (
    DELETE FROM outbox.source_row AS r USING batch AS b
     WHERE r.source = $1 AND r.row_id = b.row_id
       AND NOT EXISTS (SELECT FROM «table» AS t WHERE t.«id» = b.row_id::«id_type»)
)
SELECT max(b.row_id) AS last FROM batch AS b HAVING count(*) = $3
