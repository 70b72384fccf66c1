-- Users of merchants. Conventions as in 0001.

-- What a user may do in a realm of a merchant.
CREATE TABLE merchant_members (
    merchant_id   TEXT   NOT NULL REFERENCES merchants (id),
    realm         TEXT   NOT NULL CHECK (realm IN ('live', 'sandbox')),
    user_id       TEXT   NOT NULL REFERENCES users (id),
    role          TEXT   NOT NULL CHECK (role IN ('viewer', 'member', 'admin', 'owner')),
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, realm, user_id)
);
CREATE INDEX merchant_members_by_user ON merchant_members (user_id, merchant_id, realm);

-- As `invitations`: such a row goes when the invitation is accepted or withdrawn, and only the hash of its token is kept.
CREATE TABLE merchant_invitations (
    id            TEXT   NOT NULL PRIMARY KEY,
    merchant_id   TEXT   NOT NULL REFERENCES merchants (id),
    -- NULL: both.
    realm         TEXT   CHECK (realm IN ('live', 'sandbox')),
    role          TEXT   NOT NULL CHECK (role IN ('viewer', 'member', 'admin', 'owner')),
    -- The only one who may accept it; NULL: whoever has the token.
    email         TEXT,
    hash          TEXT   NOT NULL UNIQUE CHECK (length(hash) = 64),
    -- NULL: the operator.
    invited_by    TEXT   REFERENCES users (id),
    created_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL
);
CREATE INDEX merchant_invitations_of_merchant ON merchant_invitations (merchant_id, id);
