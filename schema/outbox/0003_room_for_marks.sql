-- outbox, version 3: room on the pages of two indexes for what a mark enters.
--
-- No mark is HOT, since the partial indexes mention sent_at: each enters its row once more into every index. Where
-- numbers and keys grow, as seq does, new rows fill a page to 90 % and their marks then split it. With half of a page
-- left free no mark splits one: in a drain of 500,000 rows PostgreSQL took 38 to 43 CPU-seconds a million rows in the place
-- of 47 to 49, and the indexes are not larger but smaller by a tenth, before and after old rows were removed. Where keys
-- are random nothing changes for theirs.
--
-- Holds for new pages; nothing is rewritten, and nobody waits for it. A program made for version 1 runs as before.
-- Apply it in one transaction, as 0001_outbox.sql.

INSERT INTO outbox.migration (version, name, compatible_from) VALUES (3, '0003_room_for_marks', 1);

ALTER INDEX outbox.message_pkey SET (fillfactor = 50);
ALTER INDEX outbox.message_idempotency_key_key SET (fillfactor = 50);
