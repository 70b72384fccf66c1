-- What teams are billed for. Conventions as in 0001. Nothing here goes with what it is about: it outlives that.

-- When sandboxes had a machine, as the agent's journal says: each interval is one row, however often it is told.
CREATE TABLE usage_intervals (
    id          TEXT   NOT NULL PRIMARY KEY,
    -- Id of the agent's journal, and number of the record there that said last what is here.
    journal     TEXT   NOT NULL,
    sequence    BIGINT NOT NULL CHECK (sequence > 0),
    -- NULL: of a sandbox that no team here ever had.
    team_id     TEXT,
    sandbox_id  TEXT   NOT NULL,
    cpu         BIGINT NOT NULL CHECK (cpu > 0),
    memory_mb   BIGINT NOT NULL CHECK (memory_mb > 0),
    began_at_ms BIGINT NOT NULL,
    -- NULL: it goes on, as of the time that its journal was seen.
    ended_at_ms BIGINT CHECK (ended_at_ms >= began_at_ms),
    end_reason  TEXT   CHECK (end_reason IN ('paused', 'deleted', 'expired', 'host_stopped', 'crashed', 'lost')),
    CHECK ((ended_at_ms IS NULL) = (end_reason IS NULL))
);
CREATE INDEX usage_intervals_of_team ON usage_intervals (team_id, ended_at_ms);
CREATE INDEX usage_intervals_of_sandbox ON usage_intervals (sandbox_id, began_at_ms);
CREATE INDEX usage_intervals_by_end ON usage_intervals (ended_at_ms, id);

-- Until when all intervals of a journal that have no end are known to have gone on.
CREATE TABLE usage_journals (
    id         TEXT   NOT NULL PRIMARY KEY,
    seen_at_ms BIGINT NOT NULL
);

-- Full hours, by their beginning, in which was looked what is stored; once in each.
CREATE TABLE storage_hours (
    hour_ms BIGINT NOT NULL PRIMARY KEY CHECK (hour_ms % 3600000 = 0)
);

-- What was held of the host's disk then.
CREATE TABLE storage_samples (
    hour_ms   BIGINT NOT NULL,
    object_id TEXT   NOT NULL,
    team_id   TEXT   NOT NULL,
    kind      TEXT   NOT NULL CHECK (kind IN ('sandbox', 'checkpoint', 'volume', 'template_version')),
    bytes     BIGINT NOT NULL CHECK (bytes > 0),
    PRIMARY KEY (hour_ms, object_id)
);
CREATE INDEX storage_samples_of_team ON storage_samples (team_id, hour_ms);
