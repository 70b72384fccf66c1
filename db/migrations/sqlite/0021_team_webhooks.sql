-- Webhooks of teams: where a team's events go, the deliveries, and what was tried. The three tables have the shape of those of
-- 0005, and are worked with by the same program; conventions as in 0001.

CREATE TABLE team_webhooks (
    team_id           TEXT   NOT NULL REFERENCES teams (id),
    webhook_id        TEXT   NOT NULL UNIQUE,
    name              TEXT   NOT NULL,
    configured_url    TEXT   NOT NULL,
    -- Where attempts go: NULL while it is disabled, and once it is deleted.
    url               TEXT,
    -- Types of events, an array in JSON; an empty one means all.
    types             TEXT   NOT NULL,
    -- The secret that signs; NULL once it is deleted.
    sealed            TEXT,
    -- Of the team's events up to this one there are deliveries, as far as there are to be any. It moves in the transaction that
    -- makes them.
    enqueued_sequence BIGINT NOT NULL CHECK (enqueued_sequence >= 0),
    in_flight         BIGINT NOT NULL DEFAULT 0 CHECK (in_flight >= 0),
    cap               BIGINT NOT NULL CHECK (cap >= 1),
    served_at_ms      BIGINT NOT NULL DEFAULT 0,
    next_at_ms        BIGINT,
    created_at_ms     BIGINT NOT NULL,
    updated_at_ms     BIGINT NOT NULL,
    -- The row stays for as long as there are deliveries.
    deleted_at_ms     BIGINT,
    PRIMARY KEY (team_id, webhook_id),
    CHECK (url IS NULL OR url = configured_url),
    CHECK ((sealed IS NULL) = (deleted_at_ms IS NOT NULL)),
    CHECK (deleted_at_ms IS NULL OR url IS NULL)
);
CREATE INDEX team_webhooks_ready ON team_webhooks (next_at_ms) WHERE in_flight < cap AND next_at_ms IS NOT NULL;
CREATE INDEX team_webhooks_enabled ON team_webhooks (team_id, enqueued_sequence) WHERE url IS NOT NULL;

CREATE TABLE team_webhook_deliveries (
    -- Its `Idempotency-Key`: made of webhook and event, or of chance for whatever a person triggers.
    id             TEXT   NOT NULL PRIMARY KEY CHECK (length(id) = 30),
    team_id        TEXT   NOT NULL,
    webhook_id     TEXT   NOT NULL,
    state          TEXT   NOT NULL CHECK (state IN ('pending', 'in_flight', 'delivered', 'failed', 'exhausted',
                                                    'cancelled')),
    trigger        TEXT   NOT NULL CHECK (trigger IN ('event', 'redelivery', 'test')),
    event_sequence BIGINT,
    event_type     TEXT   NOT NULL,
    -- The delivery that this one repeats.
    replay_of      TEXT   REFERENCES team_webhook_deliveries (id),
    attempts       BIGINT NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 100),
    created_at_ms  BIGINT NOT NULL,
    next_at_ms     BIGINT,
    claim          TEXT,
    lease_until_ms BIGINT,
    ended_at_ms    BIGINT,
    status         BIGINT,
    error_class    TEXT,
    body           BLOB   NOT NULL,
    FOREIGN KEY (team_id, webhook_id) REFERENCES team_webhooks (team_id, webhook_id),
    CHECK ((state IN ('pending', 'in_flight')) = (next_at_ms IS NOT NULL)),
    CHECK ((state IN ('pending', 'in_flight')) = (ended_at_ms IS NULL)),
    CHECK ((state = 'in_flight') = (claim IS NOT NULL) AND (state = 'in_flight') = (lease_until_ms IS NOT NULL)),
    CHECK (state <> 'pending' OR attempts < 100),
    CHECK (state <> 'in_flight' OR attempts >= 1),
    CHECK (state <> 'delivered' OR (status IS NOT NULL AND status BETWEEN 200 AND 299 AND error_class IS NULL)),
    -- A test is of no event.
    CHECK (trigger <> 'event' OR event_sequence IS NOT NULL),
    CHECK (trigger <> 'test' OR event_sequence IS NULL),
    CHECK ((trigger = 'redelivery') = (replay_of IS NOT NULL))
);
-- One event goes to one webhook once, by itself.
CREATE UNIQUE INDEX team_webhook_deliveries_once ON team_webhook_deliveries (webhook_id, event_sequence)
    WHERE trigger = 'event';
CREATE INDEX team_webhook_deliveries_pending ON team_webhook_deliveries (team_id, webhook_id, next_at_ms)
    WHERE state = 'pending';
CREATE INDEX team_webhook_deliveries_in_flight ON team_webhook_deliveries (team_id, webhook_id, lease_until_ms)
    WHERE state = 'in_flight';
CREATE INDEX team_webhook_deliveries_by_webhook ON team_webhook_deliveries (team_id, webhook_id, created_at_ms, id);
CREATE INDEX team_webhook_deliveries_ended ON team_webhook_deliveries (ended_at_ms) WHERE ended_at_ms IS NOT NULL;
CREATE INDEX team_webhook_deliveries_replays ON team_webhook_deliveries (replay_of) WHERE replay_of IS NOT NULL;
-- How many a person has had sent lately is counted before each.
CREATE INDEX team_webhook_deliveries_by_hand ON team_webhook_deliveries (team_id, webhook_id, created_at_ms)
    WHERE trigger <> 'event';

CREATE TRIGGER team_webhook_deliveries_end BEFORE UPDATE OF state ON team_webhook_deliveries
WHEN OLD.ended_at_ms IS NOT NULL AND NEW.state <> OLD.state
BEGIN
    SELECT RAISE(ABORT, 'a delivery that ended stays ended');
END;

CREATE TABLE team_webhook_attempts (
    delivery_id   TEXT   NOT NULL REFERENCES team_webhook_deliveries (id),
    number        BIGINT NOT NULL CHECK (number BETWEEN 1 AND 100),
    due_at_ms     BIGINT NOT NULL,
    started_at_ms BIGINT NOT NULL,
    duration_ms   BIGINT CHECK (duration_ms >= 0),
    signed_at     BIGINT,
    status        BIGINT,
    error_class   TEXT,
    detail        TEXT,
    next_at_ms    BIGINT,
    PRIMARY KEY (delivery_id, number),
    CHECK (status IS NULL OR error_class IS NULL),
    CHECK ((duration_ms IS NOT NULL) = (status IS NOT NULL OR error_class IS NOT NULL))
);
