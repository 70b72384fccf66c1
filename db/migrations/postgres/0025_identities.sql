-- Who users are at a provider of OpenID Connect. Conventions as in 0001.
CREATE TABLE identities (
    id              TEXT   NOT NULL PRIMARY KEY,
    user_id         TEXT   NOT NULL REFERENCES users (id),
    issuer          TEXT   NOT NULL,
    -- What the issuer calls the user, and never anybody else.
    subject         TEXT   NOT NULL,
    created_at_ms   BIGINT NOT NULL,
    last_used_at_ms BIGINT NOT NULL,
    UNIQUE (issuer, subject),
    -- One at each provider: an address that it gives to somebody else does not open the account of who had it before.
    UNIQUE (user_id, issuer)
);

-- NULL: the user signs in at a provider.
ALTER TABLE users ALTER COLUMN password DROP NOT NULL;
