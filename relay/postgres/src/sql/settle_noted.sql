-- Part of take.sql for a table that may only be read: each row is noted beside the outbox. The primary key refuses a
-- row that was taken before, and with it the whole batch.
settled AS (
    INSERT INTO outbox.source_row (source, row_id, state, reason, detail)
    SELECT $1, v.row_id, v.state, v.reason, CASE WHEN v.state = 'refused' THEN v.detail END
      FROM verdict AS v WHERE v.state <> 'later'
    RETURNING 1
)
