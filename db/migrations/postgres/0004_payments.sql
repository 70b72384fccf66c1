-- Merchants, what they may discover, and their payments. Conventions as in 0001; lists of words are TEXT, separated by
-- spaces, and empty for "all".

-- Keys of those who operate the service. As in `api_keys`, only the hash is kept.
CREATE TABLE operator_keys (
    id            TEXT   NOT NULL PRIMARY KEY,
    name          TEXT   NOT NULL,
    hash          TEXT   NOT NULL UNIQUE CHECK (length(hash) = 64),
    created_at_ms BIGINT NOT NULL,
    revoked_at_ms BIGINT
);

CREATE TABLE merchants (
    id                       TEXT   NOT NULL PRIMARY KEY,
    name                     TEXT   NOT NULL UNIQUE,
    -- Stands in where a request names no `trafficVertical`.
    default_traffic_vertical TEXT,
    created_at_ms            BIGINT NOT NULL
);

CREATE TABLE merchant_keys (
    id            TEXT   NOT NULL PRIMARY KEY,
    merchant_id   TEXT   NOT NULL REFERENCES merchants (id),
    realm         TEXT   NOT NULL CHECK (realm IN ('live', 'sandbox')),
    kind          TEXT   NOT NULL CHECK (kind IN ('public', 'secret')),
    hash          TEXT   NOT NULL UNIQUE CHECK (length(hash) = 64),
    -- The whole key, sealed under the secrets key: it is also the key that signs webhooks, so it must be recoverable.
    sealed        TEXT,
    created_at_ms BIGINT NOT NULL,
    revoked_at_ms BIGINT,
    -- A secret key can be recovered for as long as it signs; of every other key only the hash is there.
    CHECK ((sealed IS NOT NULL) = (kind = 'secret' AND revoked_at_ms IS NULL))
);
-- Webhooks of a realm are signed with one key, and there is never a doubt with which.
CREATE UNIQUE INDEX merchant_keys_signing ON merchant_keys (merchant_id, realm)
    WHERE kind = 'secret' AND revoked_at_ms IS NULL;
CREATE INDEX merchant_keys_by_merchant ON merchant_keys (merchant_id, id);

-- A market is a country with one of its currencies.
CREATE TABLE markets (
    country_code  TEXT NOT NULL CHECK (length(country_code) = 2),
    currency_code TEXT NOT NULL CHECK (length(currency_code) = 3),
    PRIMARY KEY (country_code, currency_code)
);

-- How one can pay in a market: `PAYMENT_METHOD_…`, in and out.
CREATE TABLE market_methods (
    country_code  TEXT NOT NULL,
    currency_code TEXT NOT NULL,
    direction     TEXT NOT NULL CHECK (direction IN ('in', 'out')),
    method        TEXT NOT NULL,
    PRIMARY KEY (country_code, currency_code, direction, method),
    FOREIGN KEY (country_code, currency_code) REFERENCES markets (country_code, currency_code) ON DELETE CASCADE
);

-- Which markets a merchant has, in each realm. A market that is withdrawn is nobody's.
CREATE TABLE merchant_markets (
    merchant_id   TEXT NOT NULL REFERENCES merchants (id),
    realm         TEXT NOT NULL CHECK (realm IN ('live', 'sandbox')),
    country_code  TEXT NOT NULL,
    currency_code TEXT NOT NULL,
    PRIMARY KEY (merchant_id, realm, country_code, currency_code),
    FOREIGN KEY (country_code, currency_code) REFERENCES markets (country_code, currency_code) ON DELETE CASCADE
);

-- Banks for pay-ins to a bank account.
CREATE TABLE banks (
    country_code      TEXT NOT NULL CHECK (length(country_code) = 2),
    code              TEXT NOT NULL,
    name              TEXT NOT NULL,
    traffic_verticals TEXT NOT NULL,
    customer_segments TEXT NOT NULL,
    PRIMARY KEY (country_code, code)
);

-- Mobile money operators: wallets for one method, inbound transfer rails for the other.
CREATE TABLE mobile_operators (
    country_code      TEXT NOT NULL CHECK (length(country_code) = 2),
    method            TEXT NOT NULL,
    code              TEXT NOT NULL,
    name              TEXT NOT NULL,
    traffic_verticals TEXT NOT NULL,
    customer_segments TEXT NOT NULL,
    PRIMARY KEY (country_code, method, code)
);

-- Grows with every change to what merchants may discover, in the same transaction: an answer that was made under the
-- present revision is still true.
CREATE TABLE discovery_revision (
    single   BIGINT NOT NULL PRIMARY KEY CHECK (single = 1),
    revision BIGINT NOT NULL
);
INSERT INTO discovery_revision (single, revision) VALUES (1, 1);

-- A payment as it was last reported. Only the newest state is kept: each one that was told to the merchant is in its
-- webhook delivery.
CREATE TABLE payments (
    id            TEXT   NOT NULL PRIMARY KEY,
    merchant_id   TEXT   NOT NULL REFERENCES merchants (id),
    realm         TEXT   NOT NULL CHECK (realm IN ('live', 'sandbox')),
    status        TEXT   NOT NULL CHECK (status IN ('PENDING', 'COMPLETED', 'FAILED')),
    actual_amount TEXT,
    created_at_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    -- The PaymentOrder, byte for byte as the merchant reads it and as its webhook carries it.
    document      TEXT   NOT NULL,
    -- What was credited is known.
    CHECK (status <> 'COMPLETED' OR actual_amount IS NOT NULL),
    CHECK (created_at_ms <= updated_at_ms)
);
-- Lists, newest first: of all, and of a merchant.
CREATE INDEX payments_by_age ON payments (created_at_ms, id);
CREATE INDEX payments_by_merchant ON payments (merchant_id, created_at_ms, id);

-- Updates go forward in time; what is completed stays completed, and what failed can only turn out to be completed.
CREATE TRIGGER payments_transitions BEFORE UPDATE OF status ON payments FOR EACH ROW
WHEN (NEW.updated_at_ms <= OLD.updated_at_ms OR NOT (OLD.status = 'PENDING' OR NEW.status = 'COMPLETED'))
EXECUTE FUNCTION refuse('a payment cannot be updated like this');
