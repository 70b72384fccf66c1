-- Snapshots: a stopped sandbox keeps its disk, a checkpoint keeps one of its own. Conventions as in 0001; a trigger's
-- counterpart in PostgreSQL is a trigger with a function.

-- A sandbox as it was, under a name, from which new ones are started.
CREATE TABLE checkpoints (
    id               TEXT    NOT NULL PRIMARY KEY,
    team_id          TEXT    NOT NULL REFERENCES teams (id),
    name             TEXT    NOT NULL CHECK (length(name) >= 1),
    -- `failed`: the host has lost it. `deleted` is the end: such a row answers 404 and remains for what refers to it.
    state            TEXT    NOT NULL CHECK (state IN ('creating', 'ready', 'failed', 'deleted')),
    -- What it was taken of, which may be gone.
    sandbox_id       TEXT    NOT NULL REFERENCES sandboxes (id),
    template         TEXT    NOT NULL,
    template_version TEXT    NOT NULL REFERENCES template_versions (id),
    memory           BOOLEAN NOT NULL,
    cpu              BIGINT  NOT NULL CHECK (cpu >= 1),
    memory_mb        BIGINT  NOT NULL CHECK (memory_mb >= 1),
    disk_gib         BIGINT  NOT NULL CHECK (disk_gib >= 1),
    -- Of the host's disk, as the agent counts it.
    size_bytes       BIGINT  NOT NULL DEFAULT 0 CHECK (size_bytes >= 0),
    created_at_ms    BIGINT  NOT NULL,
    deleted_at_ms    BIGINT,
    CHECK ((state = 'deleted') = (deleted_at_ms IS NOT NULL))
);
-- A name stands for one checkpoint of the team, also for one that was lost, until that is deleted.
CREATE UNIQUE INDEX checkpoints_by_name ON checkpoints (team_id, name) WHERE state <> 'deleted';
-- Lists: a team's checkpoints, and those of one sandbox, newest first (ids sort by time).
CREATE INDEX checkpoints_by_team ON checkpoints (team_id, id) WHERE state <> 'deleted';
CREATE INDEX checkpoints_by_sandbox ON checkpoints (sandbox_id, id) WHERE state <> 'deleted';

-- A checkpoint is made once and deleted once; one that was lost may turn up again.
CREATE TRIGGER checkpoints_transitions BEFORE UPDATE OF state ON checkpoints
WHEN NOT (OLD.state = NEW.state
          OR (OLD.state = 'creating' AND NEW.state IN ('ready', 'deleted'))
          OR (OLD.state = 'ready' AND NEW.state IN ('failed', 'deleted'))
          OR (OLD.state = 'failed' AND NEW.state IN ('ready', 'deleted')))
BEGIN
    SELECT RAISE(ABORT, 'a checkpoint cannot change its state like this');
END;

-- Of the host's disk, as the agent counts it: what is billed while a sandbox is stopped.
ALTER TABLE sandboxes ADD COLUMN retained_bytes BIGINT NOT NULL DEFAULT 0 CHECK (retained_bytes >= 0);
-- The checkpoint that it started from.
ALTER TABLE sandboxes ADD COLUMN snapshot_id TEXT REFERENCES checkpoints (id);

-- A stopped sandbox may live again; one that failed or was destroyed never does.
CREATE TRIGGER sandboxes_end BEFORE UPDATE OF state ON sandboxes
WHEN (OLD.state = 'destroyed' AND NEW.state <> 'destroyed')
     OR (OLD.state = 'failed' AND NEW.state NOT IN ('failed', 'destroyed'))
BEGIN
    SELECT RAISE(ABORT, 'a sandbox that ended stays ended');
END;
