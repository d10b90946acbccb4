-- Part of take.sql for a table with a column for the mark. A refused row is marked too, and noted; a row that was
-- refused before, and is taken now, is noted no longer.
refused AS (
    INSERT INTO outbox.source_row AS r (source, row_id, state, reason, detail)
    SELECT $1, v.row_id, v.state, v.reason, v.detail FROM verdict AS v WHERE v.state = 'refused'
        ON CONFLICT (source, row_id) DO UPDATE
       SET state = excluded.state, reason = excluded.reason, detail = excluded.detail, noted_at = clock_timestamp()
),
mended AS (
    DELETE FROM outbox.source_row AS r USING verdict AS v
     WHERE r.source = $1 AND r.row_id = v.row_id AND v.state = 'taken'
),
settled AS (
    UPDATE «table» AS t SET «mark» = clock_timestamp()
     WHERE t.«id» = ANY (ARRAY(SELECT v.id FROM verdict AS v WHERE v.state <> 'later'))
    RETURNING 1
)
