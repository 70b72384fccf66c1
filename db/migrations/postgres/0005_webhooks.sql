-- Webhooks: where each realm's go, the deliveries, and what was tried. Conventions as in 0001; `error_class` is a word of
-- the attempt log (`timeout`, `dns`, …).

-- One row for each realm of a merchant that ever had a URL. It is also what the worker picks from: `in_flight` and
-- `next_at_ms` sum up the endpoint's deliveries, and are written in the transaction that changes these.
CREATE TABLE webhook_endpoints (
    merchant_id  TEXT   NOT NULL REFERENCES merchants (id),
    realm        TEXT   NOT NULL CHECK (realm IN ('live', 'sandbox')),
    -- NULL: it was taken away.
    url          TEXT,
    -- Deliveries of which an attempt is under way, and how many may be.
    in_flight    BIGINT NOT NULL DEFAULT 0 CHECK (in_flight >= 0),
    cap          BIGINT NOT NULL CHECK (cap >= 1),
    -- When attempts were last begun. Those that come due stand in line behind whoever has waited since then.
    served_at_ms BIGINT NOT NULL DEFAULT 0,
    -- Its place in the line; NULL when nothing is pending.
    next_at_ms   BIGINT,
    -- Of the URL.
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, realm)
);
-- The line: endpoints at which an attempt may begin, by when.
CREATE INDEX webhook_endpoints_ready ON webhook_endpoints (next_at_ms)
    WHERE in_flight < cap AND next_at_ms IS NOT NULL;

-- One webhook to one endpoint, from its making to its end. Each CHECK is a sentence:
CREATE TABLE webhook_deliveries (
    -- Its `Idempotency-Key`: made of realm, payment and time of the update, or of chance for whatever a person triggers.
    id             TEXT   NOT NULL PRIMARY KEY CHECK (length(id) = 30),
    merchant_id    TEXT   NOT NULL,
    realm          TEXT   NOT NULL,
    state          TEXT   NOT NULL CHECK (state IN ('pending', 'in_flight', 'delivered', 'failed', 'exhausted',
                                                    'cancelled')),
    trigger        TEXT   NOT NULL CHECK (trigger IN ('update', 'replay', 'test')),
    payment_id     TEXT   REFERENCES payments (id),
    -- The payment's `updatedAt`.
    payment_at_ms  BIGINT,
    replay_of      TEXT   REFERENCES webhook_deliveries (id),
    attempts       BIGINT NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 100),
    created_at_ms  BIGINT NOT NULL,
    -- When the next attempt is due, or that which is under way was.
    next_at_ms     BIGINT,
    -- Chance, to recognise one's own claim; and until when nobody else may make one.
    claim          TEXT,
    lease_until_ms BIGINT,
    ended_at_ms    BIGINT,
    -- How the last attempt went: a status or an error.
    status         BIGINT,
    error_class    TEXT,
    -- What is sent, byte for byte, as it was when it was triggered.
    body           BYTEA  NOT NULL,
    FOREIGN KEY (merchant_id, realm) REFERENCES webhook_endpoints (merchant_id, realm),
    -- What is not over has a due time, what is over has a date.
    CHECK ((state IN ('pending', 'in_flight')) = (next_at_ms IS NOT NULL)),
    CHECK ((state IN ('pending', 'in_flight')) = (ended_at_ms IS NULL)),
    -- An attempt is under way under a claim, for the time of a lease.
    CHECK ((state = 'in_flight') = (claim IS NOT NULL) AND (state = 'in_flight') = (lease_until_ms IS NOT NULL)),
    -- The hundredth attempt is the last; and there is no attempt under way that was not counted.
    CHECK (state <> 'pending' OR attempts < 100),
    CHECK (state <> 'in_flight' OR attempts >= 1),
    -- Nothing arrived without an answer that says so.
    CHECK (state <> 'delivered' OR (status IS NOT NULL AND status BETWEEN 200 AND 299 AND error_class IS NULL)),
    -- An update is of a payment, a replay of a delivery, a test of nothing.
    CHECK (trigger <> 'update' OR payment_id IS NOT NULL),
    CHECK ((payment_id IS NULL) = (payment_at_ms IS NULL)),
    CHECK ((trigger = 'replay') = (replay_of IS NOT NULL))
);
-- One update of a payment is delivered once, by itself; replays are as many as are asked for.
CREATE UNIQUE INDEX webhook_deliveries_once ON webhook_deliveries (realm, payment_id, payment_at_ms)
    WHERE trigger = 'update';
-- What an endpoint waits for, and what is under way at it.
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (merchant_id, realm, next_at_ms) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_in_flight ON webhook_deliveries (merchant_id, realm, lease_until_ms)
    WHERE state = 'in_flight';
-- Lists, newest first: of all, of an endpoint, of a payment; and of what needs somebody to look at it.
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (created_at_ms, id);
CREATE INDEX webhook_deliveries_by_endpoint ON webhook_deliveries (merchant_id, realm, created_at_ms, id);
CREATE INDEX webhook_deliveries_by_payment ON webhook_deliveries (payment_id, created_at_ms, id);
CREATE INDEX webhook_deliveries_failed ON webhook_deliveries (created_at_ms, id) WHERE state = 'failed';
CREATE INDEX webhook_deliveries_exhausted ON webhook_deliveries (created_at_ms, id) WHERE state = 'exhausted';

-- What ended stays ended: it may be replayed, as a delivery of its own.
CREATE TRIGGER webhook_deliveries_end BEFORE UPDATE OF state ON webhook_deliveries FOR EACH ROW
WHEN (OLD.ended_at_ms IS NOT NULL AND NEW.state <> OLD.state)
EXECUTE FUNCTION refuse('a delivery that ended stays ended');

-- Every attempt. The row is there before anything is sent.
CREATE TABLE webhook_attempts (
    delivery_id   TEXT   NOT NULL REFERENCES webhook_deliveries (id),
    -- From 1.
    number        BIGINT NOT NULL CHECK (number BETWEEN 1 AND 100),
    due_at_ms     BIGINT NOT NULL,
    started_at_ms BIGINT NOT NULL,
    -- All NULL until it is over.
    duration_ms   BIGINT CHECK (duration_ms >= 0),
    -- `t` of the signature.
    signed_at     BIGINT,
    status        BIGINT,
    error_class   TEXT,
    -- For people: why there was no answer, or the beginning of the answer's body.
    detail        TEXT,
    -- When the next attempt is due because of this one.
    next_at_ms    BIGINT,
    PRIMARY KEY (delivery_id, number),
    -- An attempt that is over had an answer or an error, not both.
    CHECK (status IS NULL OR error_class IS NULL),
    CHECK ((duration_ms IS NOT NULL) = (status IS NOT NULL OR error_class IS NOT NULL))
);
