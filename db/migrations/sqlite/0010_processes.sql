-- The processes that serve this database, each for as long as it says again and again that it is alive. What a process is at
-- work on bears its id, so that the others leave it alone; when its time has run out, they do not.
CREATE TABLE processes (
    id             TEXT   NOT NULL PRIMARY KEY,
    alive_until_ms BIGINT NOT NULL,
    -- The agent that it works with; all have the same. NULL where there is none.
    agent          TEXT
);

-- Who has claimed the key; of no process that lives, it may be claimed again.
ALTER TABLE idempotency_keys ADD COLUMN process TEXT;
-- Who starts, resumes, takes or removes it; NULL while nobody does.
ALTER TABLE sandboxes ADD COLUMN process TEXT;
ALTER TABLE checkpoints ADD COLUMN process TEXT;
