-- Users, the teams that they are members of, and how they sign in. Conventions as in 0001.
CREATE TABLE users (
    id            TEXT   NOT NULL PRIMARY KEY,
    -- In lower case: however it is written, it is one user's.
    email         TEXT   NOT NULL UNIQUE CHECK (length(email) >= 3),
    name          TEXT   NOT NULL,
    -- Argon2id, as a PHC string.
    password      TEXT   NOT NULL,
    created_at_ms BIGINT NOT NULL
);

-- The team of one user alone, which a request of theirs is for that names none.
ALTER TABLE teams ADD COLUMN personal_of TEXT REFERENCES users (id);
CREATE UNIQUE INDEX personal_teams ON teams (personal_of);

CREATE TABLE memberships (
    team_id       TEXT   NOT NULL REFERENCES teams (id),
    user_id       TEXT   NOT NULL REFERENCES users (id),
    role          TEXT   NOT NULL CHECK (role IN ('viewer', 'member', 'admin', 'owner')),
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (team_id, user_id)
);
CREATE INDEX memberships_by_user ON memberships (user_id, team_id);

-- Such a row goes when the invitation is accepted or withdrawn. Only the hash of its token is kept.
CREATE TABLE invitations (
    id            TEXT   NOT NULL PRIMARY KEY,
    team_id       TEXT   NOT NULL REFERENCES teams (id),
    role          TEXT   NOT NULL CHECK (role IN ('viewer', 'member', 'admin', 'owner')),
    -- The only one who may accept it; NULL: whoever has the token.
    email         TEXT,
    hash          TEXT   NOT NULL UNIQUE CHECK (length(hash) = 64),
    -- NULL: the operator.
    invited_by    TEXT   REFERENCES users (id),
    created_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL
);
CREATE INDEX invitations_of_team ON invitations (team_id, id);

-- Only the hash of a session's token is kept.
CREATE TABLE login_sessions (
    id              TEXT   NOT NULL PRIMARY KEY,
    user_id         TEXT   NOT NULL REFERENCES users (id),
    hash            TEXT   NOT NULL UNIQUE CHECK (length(hash) = 64),
    created_at_ms   BIGINT NOT NULL,
    expires_at_ms   BIGINT NOT NULL,
    last_used_at_ms BIGINT,
    ended_at_ms     BIGINT
);
CREATE INDEX login_sessions_of_user ON login_sessions (user_id, id);
-- It is asked every second for those that have ended just now.
CREATE INDEX login_sessions_by_end ON login_sessions (ended_at_ms);
CREATE INDEX login_sessions_by_expiry ON login_sessions (expires_at_ms);

ALTER TABLE api_keys ADD COLUMN created_by TEXT REFERENCES users (id);
ALTER TABLE api_keys ADD COLUMN expires_at_ms BIGINT;
ALTER TABLE api_keys ADD COLUMN last_used_at_ms BIGINT;
CREATE INDEX api_keys_by_end ON api_keys (revoked_at_ms);
CREATE INDEX api_keys_by_expiry ON api_keys (expires_at_ms);

-- Who was signed in; NULL: nobody, it was an API key or the operator.
ALTER TABLE audit ADD COLUMN user_id TEXT;
