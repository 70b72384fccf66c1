-- Templates of teams, and versions that are built. Conventions as in 0001.
CREATE TABLE templates (
    id            TEXT   NOT NULL PRIMARY KEY,
    -- NULL: the host's own, which everybody may use.
    team_id       TEXT   REFERENCES teams (id),
    slug          TEXT   NOT NULL CHECK (length(slug) >= 1),
    visibility    TEXT   NOT NULL CHECK (visibility IN ('private', 'public')),
    description   TEXT   NOT NULL DEFAULT '',
    created_at_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    -- Such a row answers 404 and remains for what refers to it.
    deleted_at_ms BIGINT,
    CHECK (team_id IS NOT NULL OR visibility = 'public')
);
-- A slug stands for one template of a team, and for one of the host.
CREATE UNIQUE INDEX templates_of_team ON templates (team_id, slug) WHERE deleted_at_ms IS NULL;
CREATE UNIQUE INDEX templates_of_host ON templates (slug) WHERE team_id IS NULL AND deleted_at_ms IS NULL;

-- What was imported so far is the host's. Its template has the id of its first version, with another prefix.
INSERT INTO templates (id, slug, visibility, created_at_ms, updated_at_ms)
SELECT 'tpl' || substr(MIN(id), 4), slug, 'public', MIN(created_at_ms), MIN(created_at_ms)
FROM template_versions GROUP BY slug;

ALTER TABLE template_versions RENAME COLUMN slug TO template_id;
UPDATE template_versions SET template_id = (SELECT t.id FROM templates t WHERE t.slug = template_versions.template_id);

ALTER TABLE template_versions ADD FOREIGN KEY (template_id) REFERENCES templates (id);
-- A version that is being built has no digest yet.
ALTER TABLE template_versions ALTER COLUMN digest DROP NOT NULL;

-- `queued`, `building` and `warming` go on at the agent. `deleted` is the end: such a row answers 404 and remains for what
-- refers to it.
ALTER TABLE template_versions ADD COLUMN state TEXT NOT NULL DEFAULT 'ready'
    CHECK (state IN ('queued', 'building', 'warming', 'ready', 'failed', 'cancelled', 'deleted'));
-- What it is made of, in one word.
ALTER TABLE template_versions ADD COLUMN source TEXT NOT NULL DEFAULT 'import'
    CHECK (source IN ('import', 'checkpoint', 'sandbox', 'image', 'archive', 'dockerfile', 'steps'));
-- Of its file system: what a sandbox of it has at least. 0: any size will do.
ALTER TABLE template_versions ADD COLUMN disk_gib BIGINT NOT NULL DEFAULT 0 CHECK (disk_gib >= 0);
ALTER TABLE template_versions ADD COLUMN start_cmd TEXT;
ALTER TABLE template_versions ADD COLUMN ready_cmd TEXT;
-- The version that its steps begin with.
ALTER TABLE template_versions ADD COLUMN base_version TEXT REFERENCES template_versions (id);
-- Tags that become its own when it is ready; a list in JSON.
ALTER TABLE template_versions ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
-- What its image says of processes, and which images it was made of; in JSON.
ALTER TABLE template_versions ADD COLUMN report TEXT;
-- Builds before it, while it waits.
ALTER TABLE template_versions ADD COLUMN position BIGINT;
ALTER TABLE template_versions ADD COLUMN error_code TEXT CHECK (state <> 'failed' OR error_code IS NOT NULL);
ALTER TABLE template_versions ADD COLUMN error_message TEXT CHECK (state <> 'failed' OR error_message IS NOT NULL);
ALTER TABLE template_versions ADD COLUMN error_step BIGINT;
-- What the agent is asked to build, sealed under the secrets key, until the agent has it.
ALTER TABLE template_versions ADD COLUMN sealed_order TEXT CHECK (sealed_order IS NULL OR state = 'queued');
-- 1: the agent is to be told to end it.
ALTER TABLE template_versions ADD COLUMN cancel_asked BIGINT NOT NULL DEFAULT 0 CHECK (cancel_asked IN (0, 1));
ALTER TABLE template_versions ADD COLUMN started_at_ms BIGINT;
ALTER TABLE template_versions ADD COLUMN finished_at_ms BIGINT;
ALTER TABLE template_versions ADD COLUMN deleted_at_ms BIGINT CHECK ((state = 'deleted') = (deleted_at_ms IS NOT NULL));
-- Number of its log's last entry.
ALTER TABLE template_versions ADD COLUMN log_end BIGINT NOT NULL DEFAULT 0 CHECK (log_end >= 0);
-- Of the host's disk, as the agent counts it.
ALTER TABLE template_versions ADD COLUMN retained_bytes BIGINT NOT NULL DEFAULT 0 CHECK (retained_bytes >= 0);
-- Who asks the agent to build it; NULL while nobody does.
ALTER TABLE template_versions ADD COLUMN process TEXT;

-- What the synchronisation with the agent looks at; nearly always nothing.
CREATE INDEX template_versions_building ON template_versions (id) WHERE state IN ('queued', 'building', 'warming');

-- A version that has ended is immutable, and goes at most.
CREATE TRIGGER template_versions_end BEFORE UPDATE OF state ON template_versions FOR EACH ROW
WHEN (OLD.state <> NEW.state
      AND (OLD.state = 'deleted' OR (OLD.state IN ('ready', 'failed', 'cancelled') AND NEW.state <> 'deleted')))
EXECUTE FUNCTION refuse('a version that has ended stays as it is');

-- Names of versions; each stands for one version of its template, which is ready.
CREATE TABLE template_tags (
    template_id TEXT NOT NULL REFERENCES templates (id),
    tag         TEXT NOT NULL,
    version_id  TEXT NOT NULL REFERENCES template_versions (id),
    PRIMARY KEY (template_id, tag)
);

-- Files that were sent for builds, until they are removed at the agent.
CREATE TABLE uploads (
    id            TEXT   NOT NULL PRIMARY KEY,
    team_id       TEXT   NOT NULL REFERENCES teams (id),
    -- The name that an SDK gave to its content.
    hash          TEXT,
    bytes         BIGINT NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    -- NULL until all of it is there.
    sha256        TEXT,
    -- Who receives it; NULL when all of it is there.
    process       TEXT,
    created_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    CHECK ((sha256 IS NULL) = (process IS NOT NULL))
);
CREATE INDEX uploads_by_team ON uploads (team_id, id);
CREATE INDEX uploads_by_expiry ON uploads (expires_at_ms);
CREATE INDEX uploads_unfinished ON uploads (id) WHERE process IS NOT NULL;

-- Files that a version is made of: they are kept while it is under way.
CREATE TABLE version_uploads (
    version_id TEXT NOT NULL REFERENCES template_versions (id) ON DELETE CASCADE,
    upload_id  TEXT NOT NULL,
    PRIMARY KEY (version_id, upload_id)
);
CREATE INDEX version_uploads_by_upload ON version_uploads (upload_id);

-- Versions that an SDK has announced, with what it says of them then: they are queued when it sends what they are made of.
CREATE TABLE announced_versions (
    id            TEXT   NOT NULL PRIMARY KEY,
    template_id   TEXT   NOT NULL REFERENCES templates (id),
    cpu           BIGINT NOT NULL CHECK (cpu >= 1),
    memory_mb     BIGINT NOT NULL CHECK (memory_mb >= 1),
    -- A list in JSON.
    tags          TEXT   NOT NULL,
    expires_at_ms BIGINT NOT NULL
);
