-- Conventions: ids are text, times are milliseconds since 1970 (UTC), truth values are 0 and 1, documents are JSON in TEXT.
-- Each file is the twin of the one for SQLite and makes the same tables (BLOB is BYTEA).

-- A team owns everything else. Its plan decides limits and quota; the numbers of a plan are configuration.
CREATE TABLE teams (
    id            TEXT    NOT NULL PRIMARY KEY,
    slug          TEXT    NOT NULL UNIQUE,
    plan          TEXT    NOT NULL CHECK (plan IN ('basic', 'pro', 'enterprise')),
    created_at_ms BIGINT  NOT NULL
);

-- Only the hash of a key is kept: the key itself is shown once, when it is made.
CREATE TABLE api_keys (
    id            TEXT    NOT NULL PRIMARY KEY,
    team_id       TEXT    NOT NULL REFERENCES teams (id),
    name          TEXT    NOT NULL,
    hash          TEXT    NOT NULL UNIQUE CHECK (length(hash) = 64),
    capability    TEXT    NOT NULL CHECK (capability IN ('read', 'write')),
    created_at_ms BIGINT  NOT NULL,
    revoked_at_ms BIGINT
);
CREATE INDEX api_keys_by_team ON api_keys (team_id, id);

-- The catalog, as the agent reported it. `number` counts a template's versions from 1 in the order they were first seen,
-- so `base:3` stays what it was. A version that the host no longer has is kept: sandboxes refer to it.
CREATE TABLE template_versions (
    id            TEXT    NOT NULL PRIMARY KEY,
    slug          TEXT    NOT NULL,
    number        BIGINT  NOT NULL CHECK (number >= 1),
    digest        TEXT    NOT NULL,
    cpu           BIGINT  NOT NULL CHECK (cpu >= 1),
    memory_mb     BIGINT  NOT NULL CHECK (memory_mb >= 1),
    created_at_ms BIGINT  NOT NULL,
    runnable      BIGINT  NOT NULL CHECK (runnable IN (0, 1)),
    UNIQUE (slug, number)
);

-- The life of a sandbox as its tenant sees it. Each CHECK is a sentence:
CREATE TABLE sandboxes (
    id                   TEXT    NOT NULL PRIMARY KEY,
    team_id              TEXT    NOT NULL REFERENCES teams (id),
    -- `destroyed` is the end: such a row answers 404 and remains for the audit only.
    state                TEXT    NOT NULL CHECK (state IN ('creating', 'ready', 'checkpointing', 'stopping', 'stopped',
                                                           'restoring', 'failed', 'destroyed')),
    template             TEXT    NOT NULL,
    template_version     TEXT    NOT NULL REFERENCES template_versions (id),
    cpu                  BIGINT  NOT NULL CHECK (cpu >= 1),
    memory_mb            BIGINT  NOT NULL CHECK (memory_mb >= 1),
    disk_gib             BIGINT  NOT NULL CHECK (disk_gib >= 1),
    timeout_seconds      BIGINT  NOT NULL CHECK (timeout_seconds >= 1),
    deadline_ms          BIGINT,
    on_timeout           TEXT    NOT NULL CHECK (on_timeout IN ('kill', 'pause')),
    auto_resume          BIGINT  NOT NULL CHECK (auto_resume IN (0, 1)),
    exposed_ports        TEXT    NOT NULL,
    allow_public_traffic BIGINT  NOT NULL CHECK (allow_public_traffic IN (0, 1)),
    data_plane_url       TEXT,
    -- Sealed under the secrets key; gone with the sandbox.
    envs                 TEXT,
    created_at_ms        BIGINT  NOT NULL,
    started_at_ms        BIGINT,
    stopped_at_ms        BIGINT,
    destroyed_at_ms      BIGINT,
    error_code           TEXT,
    error_message        TEXT,
    -- Only a sandbox that is paused on time-out can be resumed by a request.
    CHECK (auto_resume = 0 OR on_timeout = 'pause'),
    -- A sandbox that serves has been started and has an address and a deadline.
    CHECK (state <> 'ready' OR (started_at_ms IS NOT NULL AND deadline_ms IS NOT NULL AND data_plane_url IS NOT NULL)),
    -- A failure is explained.
    CHECK (state <> 'failed' OR (error_code IS NOT NULL AND error_message IS NOT NULL)),
    -- The dead have a date of death and no secrets, the living neither.
    CHECK ((state = 'destroyed') = (destroyed_at_ms IS NOT NULL)),
    CHECK (state <> 'destroyed' OR envs IS NULL)
);
-- Lists: a team's sandboxes, newest first (ids sort by time).
CREATE INDEX sandboxes_by_team ON sandboxes (team_id, id) WHERE state <> 'destroyed';
-- What the synchronisation with the agent looks at.
CREATE INDEX sandboxes_existing ON sandboxes (state) WHERE state <> 'destroyed';

CREATE TABLE sandbox_metadata (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id),
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, key)
);
CREATE INDEX sandbox_metadata_by_value ON sandbox_metadata (key, value, sandbox_id);

-- One row per Idempotency-Key of a team, for a day. It is claimed before the work begins; the work writes `resource_id` in
-- the transaction that makes the resource, so after a crash it is known whether there is one.
CREATE TABLE idempotency_keys (
    team_id          TEXT   NOT NULL REFERENCES teams (id),
    key              TEXT   NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    -- SHA-256 over method, path and body: another request under the same key is refused.
    fingerprint      TEXT   NOT NULL CHECK (length(fingerprint) = 64),
    -- Chance, to recognise one's own claim.
    claim            TEXT   NOT NULL,
    state            TEXT   NOT NULL CHECK (state IN ('in_flight', 'finished')),
    lease_until_ms   BIGINT NOT NULL,
    created_at_ms    BIGINT NOT NULL,
    expires_at_ms    BIGINT NOT NULL,
    resource_id      TEXT,
    status           BIGINT,
    -- Never holds a session: tokens are minted anew for a replay, for the sandbox named here.
    body             TEXT,
    session_of       TEXT,
    PRIMARY KEY (team_id, key),
    CHECK ((state = 'finished') = (status IS NOT NULL))
);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at_ms);

-- Who asked for what, and how it ended. Rows are only ever added.
CREATE TABLE audit (
    id         TEXT   NOT NULL PRIMARY KEY,
    at_ms      BIGINT NOT NULL,
    team_id    TEXT   NOT NULL,
    key_id     TEXT   NOT NULL,
    request_id TEXT   NOT NULL,
    action     TEXT   NOT NULL,
    resource   TEXT,
    status     BIGINT NOT NULL
);
CREATE INDEX audit_by_team ON audit (team_id, id);
CREATE INDEX audit_by_resource ON audit (resource, id);
