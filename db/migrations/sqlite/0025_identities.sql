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

-- NULL: the user signs in at a provider. (No column of SQLite becomes one that may be NULL.)
ALTER TABLE users ADD COLUMN password_or_null TEXT;
UPDATE users SET password_or_null = password;
ALTER TABLE users DROP COLUMN password;
ALTER TABLE users RENAME COLUMN password_or_null TO password;
