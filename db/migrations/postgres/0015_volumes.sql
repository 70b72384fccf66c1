-- Volumes: named file systems of a team that outlive sandboxes. Conventions as in 0001.
CREATE TABLE volumes (
    id             TEXT    NOT NULL PRIMARY KEY,
    team_id        TEXT    NOT NULL REFERENCES teams (id),
    name           TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 63),
    -- `failed`: the host has lost it. `deleted` is the end: such a row answers 404 and remains for what refers to it.
    state          TEXT    NOT NULL CHECK (state IN ('creating', 'ready', 'failed', 'deleting', 'deleted')),
    size_gib       BIGINT  NOT NULL CHECK (size_gib >= 1),
    -- Of the host's disk, as the agent counts it.
    retained_bytes BIGINT  NOT NULL DEFAULT 0 CHECK (retained_bytes >= 0),
    created_at_ms  BIGINT  NOT NULL,
    deleted_at_ms  BIGINT,
    -- The process that makes or removes it, if that is still alive.
    process        TEXT,
    CHECK ((state = 'deleted') = (deleted_at_ms IS NOT NULL))
);
-- A name stands for one volume of the team, also for one that was lost, until that is deleted.
CREATE UNIQUE INDEX volumes_by_name ON volumes (team_id, name) WHERE state <> 'deleted';
-- Lists: a team's volumes, newest first (ids sort by time).
CREATE INDEX volumes_by_team ON volumes (team_id, id) WHERE state <> 'deleted';

-- What is deleted stays deleted.
CREATE TRIGGER volumes_end BEFORE UPDATE OF state ON volumes FOR EACH ROW
WHEN (OLD.state = 'deleted' AND NEW.state <> 'deleted')
EXECUTE FUNCTION refuse('a volume that was deleted stays deleted');

-- Where sandboxes mount volumes: written with the sandbox, and never changed but in `attached`.
CREATE TABLE sandbox_volumes (
    sandbox_id TEXT    NOT NULL REFERENCES sandboxes (id),
    path       TEXT    NOT NULL,
    volume_id  TEXT    NOT NULL REFERENCES volumes (id),
    -- 1 while the sandbox is live.
    attached   BIGINT  NOT NULL CHECK (attached IN (0, 1)),
    PRIMARY KEY (sandbox_id, path)
);
-- A volume is attached to one sandbox at a time.
CREATE UNIQUE INDEX sandbox_volumes_attached ON sandbox_volumes (volume_id) WHERE attached = 1;

-- A sandbox takes and releases its volumes in the statement that changes its state, whichever that is. One that would become
-- live while another sandbox has one of them does not: the statement fails.
CREATE FUNCTION follow_sandbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sandbox_volumes
    SET attached = CASE WHEN NEW.state IN ('creating', 'ready', 'restoring', 'checkpointing', 'stopping')
                        THEN 1 ELSE 0 END
    WHERE sandbox_id = NEW.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER sandboxes_volumes AFTER UPDATE OF state ON sandboxes FOR EACH ROW
WHEN (OLD.state <> NEW.state)
EXECUTE FUNCTION follow_sandbox();
