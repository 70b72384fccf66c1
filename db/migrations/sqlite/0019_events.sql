-- What happened to a team's sandboxes, checkpoints, volumes and builds. Conventions as in 0001.
CREATE TABLE events (
    team_id       TEXT   NOT NULL REFERENCES teams (id),
    -- From 1 on, one more each, in the order in which they were committed.
    sequence      BIGINT NOT NULL CHECK (sequence >= 1),
    type          TEXT   NOT NULL,
    resource      TEXT   NOT NULL,
    -- What is told of the resource: an object in JSON.
    data          TEXT   NOT NULL,
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (team_id, sequence)
);
CREATE INDEX events_of_resource ON events (team_id, resource, sequence);

-- Whoever writes events of a team takes their numbers here, and so holds this row to the end of the transaction: numbers are
-- committed in their order.
CREATE TABLE event_counters (
    team_id          TEXT   NOT NULL PRIMARY KEY REFERENCES teams (id),
    last_sequence    BIGINT NOT NULL CHECK (last_sequence >= 1),
    -- All up to this one are old, and gone.
    removed_sequence BIGINT NOT NULL DEFAULT 0 CHECK (removed_sequence >= 0 AND removed_sequence <= last_sequence)
);

-- The last start and the last stop of the machine that events have told of, by the agent's clock: each is told once, however
-- often the agent reports it, and in whatever order the reports come.
ALTER TABLE sandboxes ADD COLUMN told_start_ms BIGINT;
ALTER TABLE sandboxes ADD COLUMN told_stop_ms BIGINT;
-- Of what was before there were events, nothing is told.
UPDATE sandboxes SET told_start_ms = started_at_ms, told_stop_ms = stopped_at_ms;
